"""Rows of ops of whole arrays that backends share: what is made of their own rows, by the positions
along an axis, by a permutation, or by a library's functions of the same names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from ...core import ops
from ...core.backend.rows import Row, composing, rows_of
from ...core.ir.op import Op

Tensor = Any
Axis = int | tuple[int, ...] | None


def compositions(
    rows: Mapping[Op, Row],
    widened: Callable[[Row], Row],
    positions: Callable[[Tensor, int], Tensor] | None = None,
) -> dict[Op, Row]:
    """Return rows for the ops that are composed of others; a backend's own rows override them.

    Args:
        rows: the backend's own.
        widened: makes a function compute 16-bit floats in float32 and round once.
        positions: `(x, axis)` -> the index of each element along an axis, in a shape that
            broadcasts; without it there are no rows of held values and of masks of extremes.
    """
    composed: dict[Op, Row] = {}
    if ops.ALL_SUM in rows:  # where it is listed as unsupported, so is this
        composed[ops.ALL_NORM] = norm_over_shards(rows[ops.ALL_SUM], widened)
    if positions is not None:
        composed |= placed_rows(rows, positions)
    # A backend's own rows serve in compositions, too.
    known = composing({**composed, **rows}, dict, widened)
    made = [op for op in ops.CALLABLE_OPS if op.made_of is not None and op in known]
    return {**composed, **{op: known[op] for op in made}}


def norm_over_shards(all_sum: Row, widened: Callable[[Row], Row]) -> Row:
    """Return the row of `all_norm`."""

    def all_norm(x: Tensor, of: Tensor, *, names: Any, ord: float) -> Tensor:
        @widened
        def whole(x: Tensor) -> Tensor:
            if ord == 1:
                return all_sum(x, of, names=names)
            return all_sum(x**ord, of, names=names) ** (1 / ord)

        return whole(x)

    return all_norm


def placed_rows(
    rows: Mapping[Op, Row], positions: Callable[[Tensor, int], Tensor]
) -> dict[Op, Row]:
    """Return the rows that compare positions along an axis: held values, masks of extremes."""
    argmax = rows[ops.ARGMAX]
    argmin = rows[ops.ARGMIN]
    cummax = rows[ops.CUMMAX]
    full_like = rows[ops.FULL_LIKE]
    maximum = rows[ops.MAXIMUM]
    reshape = rows[ops.RESHAPE]
    reshape_like = rows[ops.RESHAPE_LIKE]
    take_along = rows[ops.TAKE_ALONG]
    untake_along = rows[ops.UNTAKE_ALONG]
    where = rows[ops.WHERE]

    def last_true(mask: Tensor, axis: int) -> Tensor:
        return cummax(where(mask, positions(mask, axis), -1), axis=axis)

    def zero_before(latest: Tensor, x: Tensor) -> Tensor:
        return where(latest < 0, 0, x)

    def only(find: Row, x: Tensor, axis: int | None) -> Tensor:
        if 0 in x.shape:
            return full_like(x, 0, dtype=None) != 0
        if axis is None:
            return reshape_like(only(find, reshape(x, shape=(-1,)), 0), x)
        return positions(x, axis) == find(x, axis=axis, keepdims=True)

    @lifted
    def argmax_mask(x: Tensor, *, axis: int | None) -> Tensor:
        return only(argmax, x, axis)

    @lifted
    def argmin_mask(x: Tensor, *, axis: int | None) -> Tensor:
        return only(argmin, x, axis)

    @lifted
    def hold(x: Tensor, mask: Tensor, *, axis: int) -> Tensor:
        latest = last_true(mask, axis)
        return zero_before(latest, take_along(x, maximum(latest, 0), axis=axis))

    @lifted
    def unhold(x: Tensor, mask: Tensor, *, axis: int) -> Tensor:
        latest = last_true(mask, axis)
        values = zero_before(latest, x)
        return untake_along(values, maximum(latest, 0), x, axis=axis)

    return rows_of(locals())


def lifted(row: Row) -> Row:
    """Return a row along an axis that takes scalars too, as arrays of one element."""

    @functools.wraps(row)
    def call(*arrays: Tensor, axis: Axis, **attrs: Any) -> Tensor:
        if all(array.ndim == 0 for array in arrays):
            result = row(*(array[None] for array in arrays), axis=0, **attrs)
            return result[0] if result.ndim else result
        return row(*arrays, axis=axis, **attrs)

    return call


def orderings(
    order: Callable[[Tensor, int, bool], Tensor], take: Callable[[Tensor, Tensor, int], Tensor]
) -> dict[Op, Row]:
    """Return the rows that sort values, built from a stable permutation.

    Args:
        order: `(x, axis, descending)` -> the permutation that sorts x; NaN is the largest.
        take: `(x, places, axis)` -> x at indices along an axis, separate for each row.
    """

    @lifted
    def sort(x: Tensor, *, axis: int, descending: bool) -> Tensor:
        return take(x, order(x, axis, descending), axis)

    @lifted
    def sort_like(values: Tensor, x: Tensor, *, axis: int, descending: bool) -> Tensor:
        return take(values, order(x, axis, descending), axis)

    @lifted
    def unsort(values: Tensor, x: Tensor, *, axis: int, descending: bool) -> Tensor:
        # The order of an order is its inverse.
        return take(values, order(order(x, axis, descending), axis, False), axis)

    @lifted
    def top_k_mask(x: Tensor, *, axis: int, k: int) -> Tensor:
        # The order of an order is the rank of each element.
        return order(order(x, axis, True), axis, False) < k

    return rows_of(locals())


def namesakes(library: Any, among: Iterable[Op] | None = None) -> dict[Op, Row]:
    """Return the rows that are a library's functions of such names, as NumPy has them; a backend's
    own rows override them. `among`: as in `rows_of`.
    """

    def reshape_like(x: Tensor, like: Tensor) -> Tensor:
        return library.reshape(x, like.shape)

    def broadcast_to(x: Tensor, like: Tensor) -> Tensor:
        return library.broadcast_to(x, like.shape)

    def roll(x: Tensor, *, shift: Any, axis: Axis) -> Tensor:
        return library.roll(x, shift, None if x.ndim == 0 else axis)

    def tril(x: Tensor, *, offset: int) -> Tensor:
        return library.tril(x, offset)

    def triu(x: Tensor, *, offset: int) -> Tensor:
        return library.triu(x, offset)

    def tile(x: Tensor, *, repetitions: tuple[int, ...]) -> Tensor:
        return library.tile(x, repetitions)

    def concatenate(*arrays: Tensor, axis: int) -> Tensor:
        return library.concatenate(arrays, axis)

    def stack(*arrays: Tensor, axis: int) -> Tensor:
        return library.stack(arrays, axis)

    def dim(x: Tensor, *, axis: int) -> int:
        return x.shape[axis]

    def size(x: Tensor) -> int:
        return x.size

    def logabsdet(x: Tensor) -> Tensor:
        return library.linalg.slogdet(x).logabsdet

    def signdet(x: Tensor) -> Tensor:
        return library.linalg.slogdet(x).sign

    def qr(x: Tensor) -> Tensor:
        return library.linalg.qr(x)[0]

    return rows_of(locals(), among)


Part = TypeVar("Part", bound=Callable[..., Any])
MARK = "__unwritten__"


def unwritten(part: Part) -> Part:
    """Mark a function, or a class of tensors, as still to be written."""
    setattr(part, MARK, True)
    return part
