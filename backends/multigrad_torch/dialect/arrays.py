"""torch's dialect: array functions (axes, parts, products), selection by order, and linear algebra.

Views never copy, so updates go both ways. Whether the result of `reshape` and the like is a view
depends on how a tensor lies in memory.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import torch

from multigrad.core.ir.op import INT32, INT64, WHOLE, T
from multigrad.core.trace.trace import Value, cast, cast_node
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.dialect import leave_order_open
from multigrad.engine.capture.dialects import numpy as np_dialect
from multigrad.engine.capture.meanings import arrays, complexes, composites, matrices, parts, places
from multigrad.engine.capture.meanings.creation import with_numbers
from multigrad.engine.capture.meanings.parts import length, rank, shape_of
from multigrad.engine.capture.meanings.places import Extremes
from multigrad.engine.capture.name_tables import handlers_by_name, reflected
from multigrad.engine.capture.values import indexing
from multigrad.engine.trace.assertions import note_assertion
from multigrad.engine.trace.xp import transposes

from . import introspection
from .types import TENSOR, TORCH

Tensor = Any


def softmax(input: Tensor, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    if dim is None:
        raise TypeError("softmax without a dim")
    return arrays.softmax(input, dim, dtype)


def log_softmax(input: Tensor, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    if dim is None:
        raise TypeError("log_softmax without a dim")
    return arrays.log_softmax(input, dim, dtype)


def einsum(equation: str, *operands: Any) -> Tensor:
    return xp.einsum(equation, *_given(operands))


# --- parts ----------------------------------------------------------------------------------------
def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Return at most so many parts; all but the last have one length."""
    return parts.pieces_of(input, max(-(-parts.length(input, dim) // chunks), 1), dim)


def split(tensor: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    if isinstance(split_size_or_sections, Sequence):
        return parts.pieces(tensor, split_size_or_sections, dim)
    return parts.pieces_of(tensor, split_size_or_sections, dim)


def broadcast_tensors(*tensors: Any) -> tuple[Tensor, ...]:
    return parts.broadcast_arrays(*_given(tensors))


def _given(tensors: tuple[Any, ...]) -> Sequence[Tensor]:
    return tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors


# --- products -------------------------------------------------------------------------------------
def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return matrices.added(input, xp.matmul(mat1, mat2), beta, alpha)


def addbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    return matrices.added(input, xp.sum(xp.matmul(batch1, batch2), 0), beta, alpha)


# --- views ----------------------------------------------------------------------------------------
def viewing(record: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a handler so that every step of its result is marked as a view in any case."""

    @wraps(record)
    def certain(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        result = record(x, *args, **kwargs)
        step = result
        while isinstance(step, Value) and step is not x:
            step.is_certain = True
            step = step.base
        return result

    return certain


view, view_as = viewing(arrays.view), viewing(arrays.view_as)


expand = viewing(introspection.expand)
diagonal = viewing(TENSOR.called({matrices: "diagonal"})[torch.Tensor.diagonal])


def fill_diagonal_(x: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """Write into the diagonal of a matrix; with more axes torch fills one through all of them."""
    if len(shape_of(x)) != 2 or wrap:
        raise TypeError("fill_diagonal_ of other than a matrix, or with wrap")
    diagonal(x)[...] = fill_value
    return x


# --- other orders of axes -------------------------------------------------------------------------
def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    return (
        arrays.renamed(input) if lacks_axes(input, dim0, dim1) else xp.swapaxes(input, dim0, dim1)
    )


def movedim(input: Tensor, source: Any, destination: Any) -> Tensor:
    is_whole = lacks_axes(input, source, destination)
    return arrays.renamed(input) if is_whole else xp.moveaxis(input, source, destination)


def transpose_method(x: Tensor, *axes: Any, **named: Any) -> Tensor:
    """Exchange two axes if the method is torch's, else permute them."""
    if named or (len(axes) == 2 and arrays.habits_for(x, "transpose").exchanges_two):
        return transpose(x, *axes, **named)
    return arrays.transpose(x, *axes)


def lacks_axes(x: Tensor, *dims: Any) -> bool:
    """Return whether a tensor is 0-d if these dims are valid for one; its rank is then a fact."""
    return all(type(dim) is int and dim in (0, -1) for dim in dims) and x.ndim == 0


# --- what is selected by order --------------------------------------------------------------------
def median(input: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the lower of the two middle elements; NaN if there is one."""
    if dim is None:
        refuse_ties(input, "median")
        return median(xp.reshape(input, -1), 0).values
    axis = operator.index(dim)
    leave_order_open(input, "median")
    order, is_nan = xp.argsort(input, axis), cast(xp.isnan(input), INT64)
    # Sorted last, NaN would not be the median, hence a choice.
    middle = xp.take(order, [(length(input, axis) - 1) // 2], axis)
    first = xp.argmax(is_nan, axis, keepdims=True)
    position = xp.where(xp.sum(is_nan, axis, keepdims=True) > 0, first, middle)
    values = xp.take_along(input, position, axis=axis)
    if not keepdim:
        values, position = xp.squeeze(values, axis), xp.squeeze(position, axis)
    return Extremes(values, lambda: position)


def refuse_ties(x: Tensor, name: str) -> None:
    """Refuse a gradient that is divided among equal elements where it is derived from the ops."""
    if x.trace.kind == "function":
        raise TypeError(f"{name} in a function whose gradient it derives")


def searchsorted(
    sorted_sequence: Tensor,
    input: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
) -> Tensor:
    """Return each element's position by bisection, as torch does even in unsorted sequences."""
    if isinstance(input, bool | int | float):
        raise TypeError("searchsorted of a number")
    symbol = sorted_sequence if isinstance(sorted_sequence, Value) else input
    line, x = places.as_tensor(sorted_sequence, symbol), places.as_tensor(input, symbol)
    dtypes = line.node.type.dtype, x.node.type.dtype
    if len({*dtypes}) == 2 and {*dtypes} <= {*WHOLE} and rank(x) == 0:  # 0-d: takes the other dtype
        x = cast(x, dtypes[0])
    is_after = xp.greater if right or side == "right" else xp.greater_equal
    count = length(line, -1)
    start = cast(xp.zeros_like(x), INT64)
    end = start + count
    for _ in range(count.bit_length()):
        half = xp.bitwise_right_shift(start + end, 1)
        mid = xp.minimum(half, count - 1)
        neighbors = xp.take(line, mid, 0) if line.ndim == 1 else xp.take_along(line, mid, axis=-1)
        is_behind = xp.logical_and(start < end, xp.logical_not(is_after(neighbors, x)))
        is_within = xp.logical_and(start < end, is_after(neighbors, x))
        start, end = xp.where(is_behind, half + 1, start), xp.where(is_within, half, end)
    return cast(start, INT32) if out_int32 else start


def running(name: str, cumulate: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return a running extreme with its positions; of equal elements the last."""

    def record(input: Tensor, dim: int) -> Extremes:
        axis = operator.index(dim)
        values = cumulate(input, axis)

        def find() -> Value:
            # As nodes: asked for after torch's code has run, neutral code counts in other dtypes.
            ones = input.trace.value(cast_node(xp.ones_like(input).node, INT64))
            steps = xp.cumsum(ones, axis) - 1
            is_met = xp.logical_or(xp.equal(input, values), xp.isnan(input))
            return xp.cummax(xp.where(is_met, steps, 0), axis)

        return Extremes(values, find)

    record.__name__ = record.__qualname__ = name
    return record


def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Record a reduction into positions; for extremes sorted, so that the wanted one comes last."""
    axis = operator.index(dim)
    if reduce == "sum" and include_self:
        return places.scatter_add(input, axis, index, src)
    refuse_ties(input if isinstance(input, Value) else src, f"scatter_reduce by {reduce!r}")
    index = places.as_places(input if isinstance(input, Value) else src, index)
    x, updates = places.as_tensor(input, index), places.as_long(places.as_tensor(src, index), index)
    if reduce in ("sum", "mean"):
        counts = places.scatter_add(xp.zeros_like(x), axis, index, xp.ones_like(updates))
        start = x if include_self else xp.where(counts > 0, 0.0, x)
        total = places.scatter_add(start, axis, index, updates)
        if reduce == "sum":
            return total
        return total / (counts + 1.0 if include_self else xp.maximum(counts, 1.0))
    if reduce not in ("amax", "amin"):
        raise TypeError(f"scatter_reduce by {reduce!r}; 'sum', 'mean', 'amax', 'amin' are known")
    sign = 1.0 if reduce == "amax" else -1.0
    order = xp.argsort(updates * sign, axis)
    sorted_index, values = (xp.take_along(each, order, axis=axis) for each in (index, updates))
    result = places.scatter(x, axis, sorted_index, values)
    extreme = xp.maximum if reduce == "amax" else xp.minimum
    return extreme(x, result) if include_self else result


def masked_scatter(input: Tensor, mask: Tensor, source: Any) -> Tensor:
    """Record values that go back to where the same mask has selected them."""
    if not isinstance(source, indexing.Picked):
        raise TypeError("values that the same mask has not selected")
    return indexing.assigned(input, mask, source)


def equal(input: Tensor, other: Tensor) -> Any:
    """Return whether all elements are equal; False for tensors of different shapes."""
    a, b = places.as_tensor(input, other), places.as_tensor(other, input)
    return shape_of(a) == shape_of(b) and xp.all(xp.equal(a, b))


cummax, cummin = running("cummax", xp.cummax), running("cummin", xp.cummin)


# --- linear algebra -------------------------------------------------------------------------------
# `cholesky_ex` and the like return in `info` whether they succeeded, and the code may branch on it.
# Here success is asserted, so that torch itself runs the code if it fails.


def succeeded(x: Tensor, result: Tensor) -> Tensor:
    """Return zeros, one for each matrix, and assert that the result is finite."""
    if isinstance(result, Value) and result.trace.kind != "rule":
        note_assertion(xp.all(xp.isfinite(result)), True, RuntimeError)
    lead = () if parts.rank(x) == 2 else parts.shape_of(x)[:-2]
    return torch.zeros(lead, dtype=torch.int32)


# --- factors --------------------------------------------------------------------------------------
def cholesky_ex(A: Tensor, *, upper: bool = False) -> Any:
    factor = matrices.cholesky(A, upper)
    return torch.return_types.linalg_cholesky_ex((factor, succeeded(A, factor)))


def lu_factor_ex(A: Tensor) -> Any:
    factors, pivots = matrices.lu_factor(A, 1)
    # A zero pivot makes the reciprocal infinite.
    diagonal = matrices.matrix_diagonal(factors)
    return torch.return_types.linalg_lu_factor_ex(
        (factors, pivots, succeeded(A, xp.reciprocal(diagonal)))
    )


def lu(A: Tensor) -> Any:
    return torch.return_types.linalg_lu(matrices.lu(A))


def linalg_lu_solve(
    LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    permutation = transposes.lu_permutation(pivots - 1, LU)
    if left:
        return matrices.lu_solve(LU, permutation, B, adjoint)
    return matrices.turned(matrices.lu_solve(LU, permutation, matrices.turned(B), not adjoint))


def lu_unpack(LU_data: Tensor, LU_pivots: Tensor) -> Any:
    permutation = transposes.lu_permutation(LU_pivots - 1, LU_data)
    matrix = xp.cast(matrices.permutation_matrix(permutation), T)
    return torch.return_types.lu_unpack((matrix, *matrices.unpacked(LU_data)))


def linalg_svd(A: Tensor, full_matrices: bool = True) -> Any:
    return torch.return_types.linalg_svd(matrices.svd(A, full_matrices))


def eigh(A: Tensor, UPLO: str = "L") -> Any:
    return torch.return_types.linalg_eigh(matrices.eigh(A, matrices.is_upper(UPLO)))


def linalg_qr(A: Tensor, mode: str = "reduced") -> Any:
    if mode == "r":
        raise TypeError("qr of r alone, of which torch has no gradient")
    return torch.return_types.linalg_qr(matrices.numpy_qr(A, mode))


# --- systems --------------------------------------------------------------------------------------
def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """Record `solve`; B holds vectors if it has one axis, or A's shape without its last axis."""
    is_vectors = parts.rank(B) == 1
    if not is_vectors and matrices.has_vectors(A, B):
        is_vectors = parts.shape_of(B) == parts.shape_of(A)[:-1]
    if left or is_vectors:
        return matrices.solve(A if left else matrices.turned(A), B, is_vectors)
    return matrices.solve_at_right(A, B)


def solve_ex(A: Tensor, B: Tensor, *, left: bool = True) -> Any:
    result = solve(A, B, left=left)
    return torch.return_types.linalg_solve_ex((result, succeeded(A, result)))


def solve_triangular(
    A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    return matrices.solve_triangular(A, B, left, lower=not upper, unit_diagonal=unitriangular)


# --- inverses and determinants --------------------------------------------------------------------
def inv_ex(A: Tensor) -> Any:
    inverse = xp.inv(A)
    return torch.return_types.linalg_inv_ex((inverse, succeeded(A, inverse)))


def pinv(A: Tensor, rcond: Any = None, *, rtol: Any = None) -> Tensor:
    return matrices.pinv(A, rcond if rtol is None else rtol)


def linalg_slogdet(A: Tensor) -> Any:
    return torch.return_types.linalg_slogdet(xp.slogdet(A))


# Functions with one name in torch and as methods: first those of one meaning, then the others.
NAMED: dict[Any, str] = {
    __name__: "transpose: swapaxes(axis0=dim0, axis1=dim1); pinv: pinverse",
    matrices: """
        cholesky; cholesky_inverse; cholesky_solve; diag(diagonal=k); correlation: corrcoef;
        covariance: cov
    """,
    composites: "allclose; isclose; logaddexp2",
    np_dialect: "round_: round",
    parts: "unstack: unbind; pieces: split_with_sizes; flatten",
    xp: "matmul: dot vdot; outer: outer ger; det; expm: matrix_exp; inv: inverse",
}
SHARED: dict[Any, str] = {
    __name__: """
        addbmm; addmm; chunk; cummax; cummin; diagonal; equal; median; movedim: moveaxis
        movedim; scatter_reduce; transpose: swapdims
    """
}
MASKED: dict[Any, str] = {__name__: "masked_scatter", indexing: "selected: masked_select"}
OF_TENSORS: dict[Any, Callable[..., Any]] = {
    **TENSOR.taking_the_same(SHARED),
    **TENSOR.called(NAMED),
    **TENSOR.called({parts: "windows: unfold"}),
    torch.Tensor.split: TENSOR.bound(
        torch.Tensor.split, split, {"split_size": "split_size_or_sections"}
    ),
}
METHODS: dict[str, Callable[..., Any]] = {
    **{method.__name__: record for method, record in OF_TENSORS.items()},
    "logcumsumexp": xp.logcumsumexp,
    **handlers_by_name(
        {__name__: "expand; fill_diagonal_; transpose_method: transpose; view; view_as"}
    ),
    **handlers_by_name(MASKED),
}
AS_METHODS = "count_nonzero logsumexp repeat_interleave roll select t tril triu"
ALIASES: dict[Any, Callable[..., Any]] = {
    **OF_TENSORS,
    **TENSOR.called({places: "sort"}),
    **TENSOR.taking_the_same({__name__: "transpose; view; view_as"}),
    **TORCH.called(NAMED),
    **TORCH.called(
        {
            __name__: """
                searchsorted: searchsorted bucketize(boundaries=sorted_sequence); lu_unpack;
                cholesky_ex: linalg.cholesky_ex; inv_ex: linalg.inv_ex; solve_ex: linalg.solve_ex;
                pinv: linalg.pinv; lu: linalg.lu; lu_factor_ex: linalg.lu_factor_ex;
                linalg_svd: linalg.svd
            """,
            arrays: "reshape; expand: broadcast_to",
            parts: "hstack; vstack",
            places: "sort",
            matrices: """
                tensordot; cross: linalg.cross; svdvals: linalg.svdvals; cholesky: linalg.cholesky;
                norm: linalg.norm; vector_norm: linalg.vector_norm
            """,
            xp: """
                glu: F.glu; stack; concatenate: cat concat concatenate; permute_dims: permute; flip;
                tile; logcumsumexp; vecdot: linalg.vecdot; det: linalg.det; expm: linalg.matrix_exp;
                inv: linalg.inv
            """,
        }
    ),
    **TORCH.taking_the_same(SHARED),
    **TORCH.taking_the_same(MASKED),
    **TORCH.taking_the_same(
        {
            arrays: """
                cumprod; cumsum; narrow; log_softmax: special.log_softmax; quantile; ravel; softmax:
                special.softmax; squeeze
            """,
            places: """
                kthvalue; topk; F.one_hot; argmax; argmin; argsort; gather; index_add;
                index_copy; index_fill; index_select; scatter; scatter_add; take_along_dim
            """,
            __name__: """
                broadcast_tensors; einsum; functional.split;
                log_softmax: log_softmax F.log_softmax; softmax: softmax F.softmax; transpose;
                solve: linalg.solve; solve_triangular: linalg.solve_triangular;
                linalg_slogdet: linalg.slogdet; linalg_lu_solve: linalg.lu_solve; eigh: linalg.eigh;
                linalg_qr: linalg.qr
            """,
        }
    ),
    **{getattr(torch, name): arrays.METHODS[name] for name in AS_METHODS.split()},
    torch.special.logsumexp: arrays.METHODS["logsumexp"],
    torch.Tensor.__rmatmul__: reflected(xp.matmul),
    torch.Tensor.repeat: arrays.tile,
    torch.tril_indices: partial(with_numbers, torch.tril_indices),
    torch.triu_indices: partial(with_numbers, torch.triu_indices),
    **complexes.of_library(torch.fft),
    torch.complex: complexes.Complex,
    torch.polar: complexes.polar,
    torch.view_as_complex: complexes.view_as_complex,
}
