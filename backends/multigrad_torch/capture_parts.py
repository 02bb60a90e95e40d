"""Torch's dialect, parts, diagonals, neighbors and products; see `capture.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from multigrad.capture import composites, diagonals, methods, nans, neighbors, parts, products
from multigrad.capture import numpy as np_dialect
from multigrad.capture.arrays import at
from multigrad.capture.casts import cast
from multigrad.capture.elementwise import is_whole
from multigrad.ir.types import is_float
from multigrad.tracing import xp_all as xp

Tensor = Any
_T = torch.Tensor


# --- parts ----------------------------------------------------------------------------------------
def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    return parts.unstack(input, dim)


def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most so many parts, all but the last of one length."""
    return parts.pieces_of(input, max(-(-parts.length(input, dim) // chunks), 1), dim)


def split(tensor: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Parts of one length, or of those given."""
    if isinstance(split_size_or_sections, Sequence):
        return parts.pieces(tensor, split_size_or_sections, dim)
    return parts.pieces_of(tensor, split_size_or_sections, dim)


def split_method(self: Tensor, split_size: Any, dim: int = 0) -> tuple[Tensor, ...]:
    return split(self, split_size, dim)


def split_with_sizes(input: Tensor, split_sizes: Any, dim: int = 0) -> tuple[Tensor, ...]:
    return parts.pieces(input, split_sizes, dim)


def tensor_split(
    input: Tensor, indices_or_sections: Any = None, dim: int = 0, *, sections: Any = None,
    indices: Any = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    given = [g for g in (indices_or_sections, sections, indices) if g is not None]
    return parts.array_split(input, given[0], dim)


def hsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    return parts.hsplit(input, indices_or_sections)


def vsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    return parts.vsplit(input, indices_or_sections)


def dsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    return parts.dsplit(input, indices_or_sections)


def broadcast_tensors(*tensors: Any) -> tuple[Tensor, ...]:
    return parts.broadcast_arrays(*_given(tensors))


def meshgrid(*tensors: Any, indexing: str | None = None) -> tuple[Tensor, ...]:
    return parts.meshgrid(*_given(tensors), indexing=indexing or "ij")


def cartesian_prod(*tensors: Any) -> Tensor:
    return parts.cartesian_product(*tensors)


def _given(tensors: tuple[Any, ...]) -> Sequence[Tensor]:
    """Return tensors given one by one or as one sequence."""
    return tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    return parts.hstack(tensors)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    return parts.vstack(tensors)


def dstack(tensors: Sequence[Tensor]) -> Tensor:
    return parts.dstack(tensors)


def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    return parts.column_stack(tensors)


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    return parts.flatten(input, start_dim, end_dim)


def unflatten(input: Tensor, dim: int, sizes: Any) -> Tensor:
    return parts.unflatten(input, dim, sizes)


def rot90(input: Tensor, k: int = 1, dims: Any = (0, 1)) -> Tensor:
    return parts.rot90(input, k, dims)


def adjoint(input: Tensor) -> Tensor:
    return xp.matrix_transpose(input)


def flipud(input: Tensor) -> Tensor:
    return parts.flipud(input)


def fliplr(input: Tensor) -> Tensor:
    return parts.fliplr(input)


# --- diagonals ------------------------------------------------------------------------------------
def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    return diagonals.diag(input, diagonal)


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    return diagonals.diagonal(input, offset, dim1, dim2)


def linalg_diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    return diagonals.diagonal(A, offset, dim1, dim2)


def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    return diagonals.embedded(input, offset, dim1, dim2)


def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    return diagonals.diagflat(input, offset)


def trace(input: Tensor) -> Tensor:
    return diagonals.trace(input)


def kron(input: Tensor, other: Tensor) -> Tensor:
    return diagonals.kron(input, other)


# --- neighbors ------------------------------------------------------------------------------------
def diff(
    input: Tensor, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None
) -> Tensor:
    return neighbors.diff(input, n, dim, prepend, append)


def trapezoid(y: Tensor, x: Any = None, *, dx: Any = 1.0, dim: int = -1) -> Tensor:
    if x is None and is_whole(y):  # summed in 64 bits; the two ends are added in their own
        ends = xp.add(at(y, dim, 0), at(y, dim, -1))
        return xp.multiply(xp.sum(cast(y, "int64"), dim) - xp.multiply(ends, 0.5), dx)
    return neighbors.trapezoid(y, x, dx, dim)


def cumulative_trapezoid(y: Tensor, x: Any = None, *, dx: Any = 1.0, dim: int = -1) -> Tensor:
    return neighbors.cumulative_trapezoid(y, x, dx, dim)


def unfold(self: Tensor, dimension: int, size: int, step: int) -> Tensor:
    return neighbors.windows(self, dimension, size, step)


MOST_EXPONENT = 2200  # beyond it all of float64 is 0 or inf
MODES = {"circular": "wrap", "constant": "constant", "reflect": "reflect", "replicate": "edge"}


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Tensor:
    """`pad` lists (before, after) from the last axis on; a negative number cuts."""
    if mode not in MODES:
        raise TypeError(f"pad in mode {mode!r}; {', '.join(MODES)} are known")
    if len(pad) % 2:
        raise TypeError(f"pad takes pairs, not {len(pad)} numbers")
    if not pad:
        return methods.clone(input)
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    fill = 0.0 if value is None else value
    return neighbors.padded(input, tuple(reversed(pairs)), MODES[mode], fill)


# --- products -------------------------------------------------------------------------------------
def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return products.added(input, xp.matmul(mat1, mat2), beta, alpha)


def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return products.added(input, xp.matmul(mat, vec), beta, alpha)


def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    product = xp.multiply(xp.expand_dims(vec1, 1), xp.expand_dims(vec2, 0))
    return products.added(input, product, beta, alpha)


def baddbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    return products.added(input, xp.matmul(batch1, batch2), beta, alpha)


def addbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    return products.added(input, xp.sum(xp.matmul(batch1, batch2), 0), beta, alpha)


def dot(input: Tensor, tensor: Tensor) -> Tensor:
    return xp.matmul(input, tensor)


def inner(input: Tensor, other: Tensor) -> Tensor:
    return products.inner(input, other)


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    return xp.outer(input, vec2)


def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    return products.tensordot(a, b, dims)


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    return products.multi_dot(tensors)


def matrix_power(A: Tensor, n: int) -> Tensor:
    return products.matrix_power(A, n)


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    return xp.vecdot(x, y, dim)


def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    if dim is None:
        raise TypeError("cross without a dim; torch takes the first of length 3")
    return products.cross(input, other, dim)


def linalg_cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    return products.cross(input, other, dim)


def cov(
    input: Tensor, *, correction: int = 1, fweights: Any = None, aweights: Any = None
) -> Tensor:
    if fweights is not None or aweights is not None:
        raise TypeError("cov with weights")
    return products.covariance(input, correction)


# --- reductions -----------------------------------------------------------------------------------
def nansum(input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return nans.nansum(input, dim, keepdim)


def nanmean(input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return nans.nanmean(input, dim, keepdim)


def with_mean(name: str, reduce: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return a function that gives a measure of spread, and the mean."""

    def record(
        input: Tensor, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *,
        correction: Any = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        n = (1 if unbiased else 0) if correction is None else correction
        return reduce(input, dim, n, keepdim), xp.mean(input, dim, keepdim)

    record.__name__ = record.__qualname__ = name
    return record


def aminmax(input: Tensor, *, dim: Any = None, keepdim: bool = False) -> Any:
    least, most = xp.min(input, dim, keepdim), xp.max(input, dim, keepdim)
    return torch.return_types.aminmax((least, most))


def dist(input: Tensor, other: Tensor, p: Any = 2) -> Tensor:
    return methods.norm(xp.subtract(input, other), p)


# --- elementwise ----------------------------------------------------------------------------------
def round_(input: Tensor, *, decimals: int = 0) -> Tensor:
    return np_dialect.round_(input, decimals)


def msort(input: Tensor) -> Tensor:
    return xp.sort(input, 0)


def corrcoef(input: Tensor) -> Tensor:
    return products.correlation(input)


def logaddexp2(input: Tensor, other: Tensor) -> Tensor:
    return composites.logaddexp2(input, other)


def float_power(input: Tensor, exponent: Any) -> Tensor:
    return xp.pow(xp.cast(input, "float64"), exponent)


def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """Floats by integers, which C takes for 32 bits, in steps that do not overflow before their
    product.
    """
    if not (is_whole(other) and is_float(input.node.type)):
        return xp.multiply(input, xp.exp2(other))
    exponent = xp.clip(cast(other, "int32"), -MOST_EXPONENT, MOST_EXPONENT)
    part = xp.floor_divide(exponent, 3)
    step, last = (xp.exp2(xp.cast_like(n, input)) for n in (part, exponent - 2 * part))
    scaled = input * step * step * last
    return xp.where(xp.equal(input, 0.0) & xp.isinf(step), input, scaled)


def isclose(
    input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    return composites.isclose(input, other, rtol, atol, equal_nan)


def entr(input: Tensor) -> Tensor:
    return composites.entr(input)


# Under one name in torch and among its tensors' methods.
SHARED: dict[str, Callable[..., Any]] = {
    "addbmm": addbmm, "addmm": addmm, "addmv": addmv, "addr": addr, "adjoint": adjoint,
    "aminmax": aminmax, "baddbmm": baddbmm, "chunk": chunk, "corrcoef": corrcoef, "cov": cov,
    "cross": cross, "diag": diag, "diag_embed": diag_embed, "diagflat": diagflat,
    "diagonal": diagonal, "diff": diff, "dist": dist, "dot": dot, "dsplit": dsplit,
    "flatten": flatten, "fliplr": fliplr, "flipud": flipud, "float_power": float_power,
    "ger": outer, "hsplit": hsplit, "inner": inner, "isclose": isclose, "kron": kron,
    "ldexp": ldexp, "logaddexp2": logaddexp2, "msort": msort,
    "matrix_power": matrix_power, "nanmean": nanmean,
    "nansum": nansum, "outer": outer, "rot90": rot90, "round": round_,
    "split_with_sizes": split_with_sizes, "tensor_split": tensor_split, "trace": trace,
    "unbind": unbind, "unflatten": unflatten, "vdot": dot, "vsplit": vsplit,
}  # fmt: skip
METHODS: dict[str, Callable[..., Any]] = {**SHARED, "split": split_method, "unfold": unfold}

ALIASES: dict[Any, Callable[..., Any]] = {
    **{getattr(torch, name): handler for name, handler in SHARED.items()},
    **{getattr(_T, name): handler for name, handler in METHODS.items()},
    torch.functional.split: split, torch.tensor_split: tensor_split,
    torch.split_with_sizes: split_with_sizes, torch.broadcast_tensors: broadcast_tensors,
    torch.meshgrid: meshgrid, torch.cartesian_prod: cartesian_prod, torch.hstack: hstack,
    torch.vstack: vstack, torch.row_stack: vstack, torch.dstack: dstack,
    torch.column_stack: column_stack, torch.atleast_1d: parts.each(parts.atleast_1d),
    torch.atleast_2d: parts.each(parts.atleast_2d), torch.atleast_3d: parts.each(parts.atleast_3d),
    torch.block_diag: parts.block_diag, torch.linalg.diagonal: linalg_diagonal,
    torch.trapezoid: trapezoid, torch.trapz: trapezoid,
    torch.cumulative_trapezoid: cumulative_trapezoid, F.pad: pad, torch.tensordot: tensordot,
    torch.chain_matmul: products.chain, torch.linalg.multi_dot: multi_dot,
    torch.linalg.matrix_power: matrix_power, torch.linalg.vecdot: vecdot,
    torch.linalg.cross: linalg_cross,
    torch.std_mean: with_mean("std_mean", xp.std), torch.var_mean: with_mean("var_mean", xp.var),
    torch.special.entr: entr, torch.special.round: round_,
}  # fmt: skip
