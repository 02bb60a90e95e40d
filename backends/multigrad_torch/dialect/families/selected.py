"""Torch's dialect, what is selected by order: medians, places among boundaries, running extremes,
the largest of what is scattered to one place; see `table.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from multigrad.capture.code.binding import handlers
from multigrad.capture.code.table import leave_order_open
from multigrad.capture.meanings import composites, places
from multigrad.capture.meanings.creation import with_numbers
from multigrad.capture.meanings.parts import length, rank, shape_of
from multigrad.capture.meanings.places import Extremes
from multigrad.capture.values import indexing
from multigrad.graph.ir.types import INT32, INT64, WHOLE
from multigrad.trace.trace import Value, cast, cast_node
from multigrad.trace.xp import all as xp

from ..schemas import TENSOR, TORCH

Tensor = Any


def median(input: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The lower of two in the middle; NaN where there is one."""
    if dim is None:
        refuse_ties(input, "median")
        return median(xp.reshape(input, -1), 0).values
    axis = operator.index(dim)
    leave_order_open(input, "median")
    order, is_nan = xp.argsort(input, axis), cast(xp.isnan(input), INT64)
    middle = xp.take(order, [(length(input, axis) - 1) // 2], axis)
    first = xp.argmax(is_nan, axis, keepdims=True)
    place = xp.where(xp.sum(is_nan, axis, keepdims=True) > 0, first, middle)
    values = xp.take_along(input, place, axis=axis)
    if not keepdim:
        values, place = xp.squeeze(values, axis), xp.squeeze(place, axis)
    return Extremes(values, lambda: place)


def refuse_ties(x: Tensor, name: str) -> None:
    """Refuse what divides a gradient among equal elements, where that is derived from the ops."""
    if x.trace.kind == "function":
        raise TypeError(f"{name} in a function whose gradient it derives")


def searchsorted(
    sorted_sequence: Tensor,
    input: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Tensor:
    """The place of each element by halves, as torch finds it of what is in no order, too."""
    if sorter is not None:
        raise TypeError("searchsorted with a sorter")
    if isinstance(input, bool | int | float):
        raise TypeError("searchsorted of a number")
    symbol = sorted_sequence if isinstance(sorted_sequence, Value) else input
    line, x = places.as_tensor(sorted_sequence, symbol), places.as_tensor(input, symbol)
    dtypes = line.node.type.dtype, x.node.type.dtype
    if len({*dtypes}) == 2 and {*dtypes} <= {*WHOLE} and rank(x) == 0:  # which gives way
        x = cast(x, dtypes[0])
    is_after = xp.greater if right or side == "right" else xp.greater_equal
    count = length(line, -1)
    start = cast(xp.zeros_like(x), INT64)
    end = start + count
    for _ in range(count.bit_length()):
        half = xp.bitwise_right_shift(start + end, 1)
        at = xp.minimum(half, count - 1)
        found = xp.take(line, at, 0) if line.ndim == 1 else xp.take_along(line, at, axis=-1)
        is_behind = xp.logical_and(start < end, xp.logical_not(is_after(found, x)))
        is_within = xp.logical_and(start < end, is_after(found, x))
        start, end = xp.where(is_behind, half + 1, start), xp.where(is_within, half, end)
    return cast(start, INT32) if out_int32 else start


def running(name: str, cumulate: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return a running extreme with its places, of equal ones the last."""

    def record(input: Tensor, dim: int) -> Extremes:
        axis = operator.index(dim)
        values = cumulate(input, axis)

        def find() -> Value:
            # As nodes: a pair that is returned is asked for its places when torch's code has run,
            # and neutral code would count in the input's dtype.
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
    """Put in order, the largest comes last, which is what stays."""
    axis = operator.index(dim)
    if reduce == "sum" and include_self:
        return places.scatter_add(input, axis, index, src)
    refuse_ties(input if isinstance(input, Value) else src, f"scatter_reduce by {reduce!r}")
    index = places.as_places(input if isinstance(input, Value) else src, index)
    x, given = places.as_tensor(input, index), places.as_long(places.as_tensor(src, index), index)
    if reduce in ("sum", "mean"):
        counts = places.scatter_add(xp.zeros_like(x), axis, index, xp.ones_like(given))
        start = x if include_self else xp.where(counts > 0, 0.0, x)
        total = places.scatter_add(start, axis, index, given)
        if reduce == "sum":
            return total
        return total / (counts + 1.0 if include_self else xp.maximum(counts, 1.0))
    if reduce not in ("amax", "amin"):
        raise TypeError(f"scatter_reduce by {reduce!r}; 'sum', 'mean', 'amax', 'amin' are known")
    sign = 1.0 if reduce == "amax" else -1.0
    order = xp.argsort(given * sign, axis)
    at, values = (xp.take_along(each, order, axis=axis) for each in (index, given))
    put = places.scatter(x, axis, at, values)
    extreme = xp.maximum if reduce == "amax" else xp.minimum
    return extreme(x, put) if include_self else put


def masked_scatter(input: Tensor, mask: Tensor, source: Any) -> Tensor:
    """What the same mask has selected goes back to its places."""
    if not isinstance(source, indexing.Picked):
        raise TypeError("values that the same mask has not selected")
    return indexing.assigned(input, mask, source)


def equal(input: Tensor, other: Tensor) -> Any:
    """Whether all elements are, which is True of tensors of one shape alone."""
    a, b = (
        x if isinstance(x, Value) else places.as_tensor(x, y)
        for x, y in ((input, other), (other, input))
    )
    return shape_of(a) == shape_of(b) and xp.all(xp.equal(a, b))


cummax, cummin = running("cummax", xp.cummax), running("cummin", xp.cummin)
OF_TENSORS = "cummax; cummin; equal; median; scatter_reduce"
MASKED: dict[Any, str] = {__name__: "masked_scatter", indexing: "selected: masked_select"}
OF_COMPOSITES = TENSOR.called({composites: "allclose"})
METHODS: dict[str, Callable[..., Any]] = {
    "allclose": OF_COMPOSITES[torch.Tensor.allclose],
    **handlers({__name__: OF_TENSORS}),
    **handlers(MASKED),
}
ALIASES: dict[Any, Callable[..., Any]] = {
    **TENSOR.taking_the_same({__name__: OF_TENSORS}),
    **TORCH.taking_the_same({__name__: f"{OF_TENSORS}; searchsorted"}),
    **TORCH.called(
        {composites: "allclose", __name__: "searchsorted: bucketize(boundaries=sorted_sequence)"}
    ),
    **OF_COMPOSITES,
    **TORCH.taking_the_same(MASKED),
    torch.tril_indices: partial(with_numbers, torch.tril_indices),
    torch.triu_indices: partial(with_numbers, torch.triu_indices),
}
