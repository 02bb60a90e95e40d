"""Torch's dialect, parts, diagonals, neighbors and products; see `table.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from multigrad.capture.dialects import numpy as np_dialect
from multigrad.capture.meanings import composites, diagonals, neighbors, parts, products, reductions
from multigrad.capture.meanings.casts import cast
from multigrad.capture.values import methods
from multigrad.capture.values.elementwise import is_whole
from multigrad.graph.ir.types import is_float
from multigrad.trace.trace import copy_of
from multigrad.trace.xp import all as xp

from ..schemas import TENSOR, TORCH

Tensor = Any
_T = torch.Tensor
AT_LEAST = ("atleast_1d", "atleast_2d", "atleast_3d")


# --- parts ----------------------------------------------------------------------------------------
def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most so many parts, all but the last of one length."""
    return parts.pieces_of(input, max(-(-parts.length(input, dim) // chunks), 1), dim)


def split(tensor: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Parts of one length, or of those given."""
    if isinstance(split_size_or_sections, Sequence):
        return parts.pieces(tensor, split_size_or_sections, dim)
    return parts.pieces_of(tensor, split_size_or_sections, dim)


def tensor_split(
    input: Tensor,
    indices_or_sections: Any = None,
    dim: int = 0,
    *,
    sections: Any = None,
    indices: Any = None,
) -> tuple[Tensor, ...]:
    given = [g for g in (indices_or_sections, sections, indices) if g is not None]
    return parts.array_split(input, given[0], dim)


def broadcast_tensors(*tensors: Any) -> tuple[Tensor, ...]:
    return parts.broadcast_arrays(*_given(tensors))


def meshgrid(*tensors: Any, indexing: str | None = None) -> tuple[Tensor, ...]:
    return parts.meshgrid(*_given(tensors), indexing=indexing or "ij")


def _given(tensors: tuple[Any, ...]) -> Sequence[Tensor]:
    """Return tensors given one by one or as one sequence."""
    return tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors


# --- diagonals ------------------------------------------------------------------------------------
# --- neighbors ------------------------------------------------------------------------------------
def trapezoid(y: Tensor, x: Any = None, *, dx: Any = 1.0, dim: int = -1) -> Tensor:
    if x is None:
        return neighbors.trapezoid_less_ends(y, dx, dim)
    return neighbors.trapezoid(y, x, dx, dim)


MOST_EXPONENT = 2200  # beyond it all of float64 is 0 or inf
MODES = {"circular": "wrap", "constant": "constant", "reflect": "reflect", "replicate": "edge"}


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Tensor:
    """`pad` lists (before, after) from the last axis on; a negative number cuts."""
    if mode not in MODES:
        raise TypeError(f"pad in mode {mode!r}; {', '.join(MODES)} are known")
    if len(pad) % 2:
        raise TypeError(f"pad takes pairs, not {len(pad)} numbers")
    if not pad:
        return copy_of(input)
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


def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    if dim is None:
        raise TypeError("cross without a dim; torch takes the first of length 3")
    return products.cross(input, other, dim)


def cov(
    input: Tensor, *, correction: int = 1, fweights: Any = None, aweights: Any = None
) -> Tensor:
    if fweights is not None or aweights is not None:
        raise TypeError("cov with weights")
    return products.covariance(input, correction)


# --- reductions -----------------------------------------------------------------------------------
def with_mean(measure: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return a function that gives a measure of spread, and the mean."""

    def record(
        input: Tensor,
        dim: Any = None,
        unbiased: bool = True,
        keepdim: bool = False,
        *,
        correction: Any = None,
    ) -> tuple[Tensor, Tensor]:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        options = {"unbiased": unbiased, "correction": correction}
        return measure(input, dim, keepdim, **options), xp.mean(input, dim, keepdim)

    record.__name__ = record.__qualname__ = f"{measure.__name__}_mean"
    return record


std_mean, var_mean = with_mean(reductions.std), with_mean(reductions.var)


def aminmax(input: Tensor, *, dim: Any = None, keepdim: bool = False) -> Any:
    least, most = xp.min(input, dim, keepdim), xp.max(input, dim, keepdim)
    return torch.return_types.aminmax((least, most))


def dist(input: Tensor, other: Tensor, p: Any = 2) -> Tensor:
    return methods.norm(xp.subtract(input, other), p)


# --- elementwise ----------------------------------------------------------------------------------
def msort(input: Tensor) -> Tensor:
    return xp.sort(input, 0)


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


# Under one name in torch and among its tensors' methods: what means the same, and what does not.
NAMED: dict[Any, str] = {
    composites: "isclose; logaddexp2",
    diagonals: """
        diag(diagonal=k); diagonal; embedded: diag_embed; diagflat(offset=k); trace; kron
    """,
    reductions: "nansum; nanmean",
    neighbors: "diff",
    np_dialect: "round_: round",
    parts: """
        unstack: unbind; pieces: split_with_sizes; hsplit; vsplit; dsplit; flatten; unflatten;
        rot90; flipud; fliplr
    """,
    products: "inner; matrix_power; correlation: corrcoef",
    xp: "matrix_transpose: adjoint; matmul: dot vdot; outer: outer ger",
}
SHARED: dict[Any, str] = {
    __name__: """
        addbmm; addmm; addmv; addr; aminmax; baddbmm; chunk; cov; cross; dist; float_power; ldexp;
        msort; tensor_split
    """,
}
OF_TENSORS: dict[Any, Callable[..., Any]] = {
    **TENSOR.taking_the_same(SHARED),
    **TENSOR.called(NAMED),
    **TENSOR.called({neighbors: "windows: unfold"}),
    _T.split: TENSOR.bound(_T.split, split, {"split_size": "split_size_or_sections"}),
}
METHODS = {method.__name__: record for method, record in OF_TENSORS.items()}

ALIASES: dict[Any, Callable[..., Any]] = {
    **OF_TENSORS,
    **TORCH.taking_the_same(SHARED),
    **TORCH.called(NAMED),
    **TORCH.called(
        {
            composites: "entr: special.entr",
            diagonals: "diagonal: linalg.diagonal",
            neighbors: "cumulative_trapezoid",
            np_dialect: "round_: special.round",
            parts: "hstack; vstack: vstack row_stack; dstack; column_stack",
            products: """
                tensordot; multi_dot: linalg.multi_dot; matrix_power: linalg.matrix_power; cross:
                linalg.cross
            """,
            xp: "vecdot: linalg.vecdot",
        }
    ),
    **TORCH.taking_the_same(
        {
            parts: "block_diag; cartesian_product: cartesian_prod",
            products: "chain: chain_matmul",
            __name__: """
                F.pad; broadcast_tensors; functional.split; meshgrid; std_mean; trapezoid: trapezoid
                trapz; var_mean
            """,
        }
    ),
    **{getattr(torch, name): parts.each(getattr(parts, name)) for name in AT_LEAST},
}
