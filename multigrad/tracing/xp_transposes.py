"""The functions that only VJPs call, not part of `xg.xp`; see `xp_all.py`.

Written from the op table by `python -m multigrad.cli.xp_functions`; change a row instead.
"""

from __future__ import annotations

from typing import Any

from .. import ops
from .trace import apply

Tensor = Any

__all__ = [
    "conv_left", "conv_right", "discounted_sum", "from_shard", "half", "hold", "last_put",
    "lu_permutation", "lu_pivots", "matmul_left", "matmul_right", "packed_eigh", "packed_lu",
    "packed_svd", "part", "qr_columns", "quantile_weights", "setitem", "solve_matrices",
    "sort_like", "take_along", "take_at", "to_shard", "triangular_solve", "unhold", "unpart",
    "unrepeat", "unsort", "untake", "untake_along", "untake_at", "untile", "unwindows",
]  # fmt: skip


def matmul_left(cotangent: Tensor, b: Tensor, like: Tensor) -> Tensor:
    """The cotangent of the left operand of matmul, in its shape."""
    return apply(ops.MATMUL_LEFT, cotangent, b, like)


def matmul_right(a: Tensor, cotangent: Tensor, like: Tensor) -> Tensor:
    """The cotangent of the right operand of matmul, in its shape."""
    return apply(ops.MATMUL_RIGHT, a, cotangent, like)


def unwindows(x: Tensor, like: Tensor, sizes: Any, strides: Any, dilations: Any) -> Tensor:
    """The sum of what windows brought from each element."""
    return apply(ops.UNWINDOWS, x, like, sizes=sizes, strides=strides, dilations=dilations)


def conv_left(
    cotangent: Tensor, w: Tensor, like: Tensor, strides: Any, dilations: Any, groups: Any
) -> Tensor:
    """The cotangent of the x of conv, in its shape; a transposed convolution."""
    return apply(
        ops.CONV_LEFT, cotangent, w, like, strides=strides, dilations=dilations, groups=groups
    )


def conv_right(
    x: Tensor, cotangent: Tensor, like: Tensor, strides: Any, dilations: Any, groups: Any
) -> Tensor:
    """The cotangent of the kernels of conv, in their shape."""
    return apply(
        ops.CONV_RIGHT, x, cotangent, like, strides=strides, dilations=dilations, groups=groups
    )


def triangular_solve(a: Tensor, b: Tensor, lower: Any, transposed: Any, unit: Any) -> Tensor:
    """The x of a x = b, or of its transpose; of a one triangle is read, ones for its diagonal."""
    return apply(ops.TRIANGULAR_SOLVE, a, b, lower=lower, transposed=transposed, unit=unit)


def solve_matrices(a: Tensor, b: Tensor) -> Tensor:
    """The x of a x = b, both matrices."""
    return apply(ops.SOLVE, a, b)


def packed_lu(x: Tensor) -> Tensor:
    """l, whose diagonal is one, and u in one matrix: the factors of x in other rows."""
    return apply(ops.LU, x)


def lu_pivots(x: Tensor) -> Tensor:
    """With which row each was exchanged in turn for the LU factors, from 0."""
    return apply(ops.LU_PIVOTS, x)


def lu_permutation(indices: Tensor, like: Tensor) -> Tensor:
    """Of pivots, where each row of l u stands in a matrix of as many rows as `like`."""
    return apply(ops.LU_PERMUTATION, indices, like)


def packed_svd(x: Tensor) -> Tensor:
    """Singular values, descending, in the first row; below it columns u, then v."""
    return apply(ops.SVD, x)


def packed_eigh(x: Tensor, lower: Any) -> Tensor:
    """Eigenvalues, ascending, above columns of eigenvectors; one triangle is read."""
    return apply(ops.EIGH, x, lower=lower)


def qr_columns(x: Tensor) -> Tensor:
    """The orthonormal columns q of the factors q r."""
    return apply(ops.QR, x)


def setitem(x: Tensor, like: Tensor, index: Any) -> Tensor:
    """Zeros in the shape of `like`, x where the index points."""
    return apply(ops.SETITEM, x, like, index=index)


def untake(x: Tensor, like: Tensor, indices: Any, axis: Any) -> Tensor:
    """Zeros in the shape of `like`, x added at indices along an axis."""
    return apply(ops.UNTAKE, x, like, indices=indices, axis=axis)


def half(x: Tensor, position: Any, axis: Any) -> Tensor:
    """The first or second half along an axis of even length."""
    return apply(ops.HALF, x, position=position, axis=axis)


def part(x: Tensor, like: Tensor, start: Tensor, axis: Any) -> Tensor:
    """As much of x along an axis as `like` is long, from start."""
    return apply(ops.PART, x, like, start, axis=axis)


def unpart(x: Tensor, like: Tensor, start: Tensor, axis: Any) -> Tensor:
    """Zeros in the shape of `like`, x from start on."""
    return apply(ops.UNPART, x, like, start, axis=axis)


def untile(x: Tensor, like: Tensor, repetitions: Any) -> Tensor:
    """The sum over the copies that tile makes."""
    return apply(ops.UNTILE, x, like, repetitions=repetitions)


def unrepeat(x: Tensor, like: Tensor, repeats: Any, axis: Any) -> Tensor:
    """The sum over the copies that repeat makes."""
    return apply(ops.UNREPEAT, x, like, repeats=repeats, axis=axis)


def discounted_sum(values: Tensor, y: Tensor, axis: Any, reverse: Any) -> Tensor:
    """Sums of values[j] exp(y[i] - y[j]), j up to i (`reverse`: from i on); y falls that way."""
    return apply(ops.DISCOUNTED_SUM, values, y, axis=axis, reverse=reverse)


def hold(x: Tensor, mask: Tensor, axis: Any) -> Tensor:
    """The last value at which the mask held; 0 before the first."""
    return apply(ops.HOLD, x, mask, axis=axis)


def unhold(x: Tensor, mask: Tensor, axis: Any) -> Tensor:
    """Sums from each place where the mask holds to the next; 0 elsewhere."""
    return apply(ops.UNHOLD, x, mask, axis=axis)


def sort_like(values: Tensor, x: Tensor, axis: Any, descending: Any) -> Tensor:
    """Values in the order that sorts x."""
    return apply(ops.SORT_LIKE, values, x, axis=axis, descending=descending)


def unsort(values: Tensor, x: Tensor, axis: Any, descending: Any) -> Tensor:
    """Values in the order of sorted x, put back."""
    return apply(ops.UNSORT, values, x, axis=axis, descending=descending)


def take_along(x: Tensor, indices: Tensor, axis: Any) -> Tensor:
    """The elements of x at places along an axis, each row by its own."""
    return apply(ops.TAKE_ALONG, x, indices, axis=axis)


def untake_along(x: Tensor, indices: Tensor, like: Tensor, axis: Any) -> Tensor:
    """Zeros in the shape of `like`, x added at places along an axis, each row by its own."""
    return apply(ops.UNTAKE_ALONG, x, indices, like, axis=axis)


def take_at(x: Tensor, indices: Tensor, axis: Any) -> Tensor:
    """The slices of x at places along an axis, which becomes those of the indices."""
    return apply(ops.TAKE_AT, x, indices, axis=axis)


def untake_at(x: Tensor, indices: Tensor, like: Tensor, axis: Any) -> Tensor:
    """Zeros in the shape of `like`, slices of x added at places along an axis."""
    return apply(ops.UNTAKE_AT, x, indices, like, axis=axis)


def last_put(indices: Tensor, like: Tensor, axis: Any) -> Tensor:
    """For each place of `like` along an axis, where it stands last among indices; -1: nowhere."""
    return apply(ops.LAST_PUT, indices, like, axis=axis)


def quantile_weights(x: Tensor, q: Any, axis: Any) -> Tensor:
    """What each element contributes to the q-quantile."""
    return apply(ops.QUANTILE_WEIGHTS, x, q=q, axis=axis)


def to_shard(x: Tensor) -> Tensor:
    """The shard in hand of an array that is one object over all shards."""
    return apply(ops.TO_SHARD, x)


def from_shard(x: Tensor, like: Tensor) -> Tensor:
    """The array of which each shard has its own part, placed as `like`."""
    return apply(ops.FROM_SHARD, x, like)
