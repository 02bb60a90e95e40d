"""Tables of rows for backends, made of the rows in their files and of rows that all share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..graph import ops
from ..graph.ir.op import Op
from ..graph.ops.table import compose, parts_of

Row = Callable[..., Any]
Tensor = Any
Axis = int | tuple[int, ...] | None


def rows_of(functions: Mapping[str, Any]) -> dict[Op, Row]:
    """Return the functions in a file that are named after their ops: `abs`, or `abs_`."""
    spellings = ((op, name) for op in ops.CALLABLE_OPS for name in (op.name, f"{op.name}_"))
    rows = {op: functions[name] for op, name in spellings if name in functions}
    file = functions.get("__name__")  # none where these are the locals of a function
    # What a file imports of ours may have an op's name by chance, as `active_rules.part` has.
    return {op: row for op, row in rows.items() if file is None or not _is_of_core(row)}


def _is_of_core(function: Any) -> bool:
    return (getattr(function, "__module__", None) or "").startswith("multigrad.")


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
    all_sum = rows.get(ops.ALL_SUM)

    def all_norm(x: Tensor, of: Tensor, *, names: Any, ord: float) -> Tensor:
        @widened
        def whole(x: Tensor) -> Tensor:
            assert all_sum is not None
            if ord == 1:
                return all_sum(x, of, names=names)
            return all_sum(x**ord, of, names=names) ** (1 / ord)

        return whole(x)

    # Found by its name, as the rows in a backend's files are.
    composed = rows_of(locals())
    if positions is not None:
        composed |= placed_rows(rows, positions)
    if all_sum is None:  # listed as unsupported, as this is then
        del composed[ops.ALL_NORM]
    waiting = [op for op in ops.CALLABLE_OPS if op.made_of is not None]
    known = {**composed, **rows}
    # Until nothing more is ready, because a composition may use another one.
    while ready := [op for op in waiting if all(p in known or p.symbol for p in parts_of(op))]:
        for op in ready:
            row = compose(op, known)
            if op.rounds:
                row = widened_draw(row, widened) if op.random else widened(row)
            composed[op] = row
            # Further compositions use the backend's own row, if it has one.
            known.setdefault(op, composed[op])
        waiting = [op for op in waiting if op not in composed]
    return composed


def widened_draw(row: Row, widened: Callable[[Row], Row]) -> Row:
    # Only x is widened: the key, which comes first, is no tensor of floats.

    def call(key: Any, x: Tensor) -> Tensor:
        @widened
        def draw(x: Tensor) -> Tensor:
            return row(key, x)

        return draw(x)

    return call


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


Part = TypeVar("Part", bound=Callable[..., Any])
MARK = "__unwritten__"


def unwritten(part: Part) -> Part:
    """Mark a function, or a class of tensors, as still to be written."""
    setattr(part, MARK, True)
    return part
