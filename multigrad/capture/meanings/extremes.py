"""Values with their places, as torch returns them: of sorts, of extremes along a dim; and whose
gradient it is where two are equal.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

from ...graph import ops
from ...graph.ir.types import SCALAR_SHAPE, is_float
from ...trace.trace import Value
from ...trace.xp import all as xp
from ..code.table import leave_order_open

Tensor = Any
Reduction = Callable[..., Tensor]


class Extremes:
    """`.values` and `.indices`, which are recorded when they are asked for; unpacked, both."""

    __slots__ = ("_places", "values")

    def __init__(self, values: Value, places: Callable[[], Value]) -> None:
        self.values = values
        self._places = places

    @property
    def indices(self) -> Value:
        return self._places()

    def __getitem__(self, index: Any) -> Any:
        return (self.values, self.indices)[index]

    def __iter__(self) -> Iterator[Value]:
        return iter((self.values, self.indices))

    def __len__(self) -> int:
        return 2


def max(input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """torch.max(x), torch.max(a, b); torch.max(x, dim) gives values and indices."""
    return _extremes(xp.max, xp.maximum, xp.argmax, input, *args, **kwargs)


def min(input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """torch.min(x), torch.min(a, b); torch.min(x, dim) gives values and indices."""
    return _extremes(xp.min, xp.minimum, xp.argmin, input, *args, **kwargs)


EXTREMES = {"max": max, "min": min}


def _extremes(
    reduce: Reduction, pair: Reduction, find: Reduction, x: Tensor, *args: Any, **kwargs: Any
) -> Any:
    other = kwargs.get("other", args[0] if args else None)
    if other is not None and not isinstance(other, int):
        return pair(x, other)
    if not args and not kwargs:
        return reduce(x)

    def along(dim: int, keepdim: bool = False) -> Extremes:
        """Taken from its place, which gets the whole gradient: of equal ones the first."""
        places = find(x, axis=dim, keepdims=True)
        values = xp.take_along(x, places, axis=operator.index(dim))
        if not keepdim and x.node.type.shape != SCALAR_SHAPE:
            values, places = xp.squeeze(values, dim), xp.squeeze(places, dim)
        return Extremes(values, lambda: places)

    return along(*args, **kwargs)


def sort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> Extremes:
    return Extremes(xp.sort(x, dim, descending), lambda: xp.argsort(x, dim, descending))


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Extremes:
    """Of equal ones the first, where torch leaves the choice open."""
    if not x.ndim:
        raise TypeError("topk of a tensor without axes")
    found, count = sort(x, dim, largest), whole(k)
    leave_order_open(found.values, "topk")
    return Extremes(_cut(found.values, dim, count), lambda: _cut(found.indices, dim, count))


def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Extremes:
    """The k-th smallest, counted from 1."""
    found, place = sort(x, dim), whole(k) - 1
    leave_order_open(found.values, "kthvalue")

    def pick(ordered: Value) -> Value:
        kept = xp.take(ordered, [place], dim)
        return kept if keepdim else xp.squeeze(kept, dim)

    return Extremes(pick(found.values), lambda: pick(found.indices))


def whole(k: Any) -> int:
    """Return a number of elements; one made by rounding a length is whole, as Python's is."""
    is_rounded = isinstance(k, Value) and k.node.op is ops.ROUND
    return int(float(k)) if is_rounded else operator.index(k)


def _cut(x: Value, axis: int, count: int) -> Value:
    """Return the first elements along an axis."""
    whole, part = slice(None), slice(0, count)
    if axis < 0:
        return xp.getitem(x, (..., part, *(whole,) * (-axis - 1)))
    return xp.getitem(x, (*(whole,) * axis, part))


def is_differentiated(*operands: Any) -> bool:
    """Return whether a derivative of what is captured may be taken by the meaning of its ops."""
    symbols = [each for each in operands if isinstance(each, Value)]
    floats = [each for each in symbols if is_float(each.node.type)]
    return bool(floats) and (symbols[0].trace.kind == "function" or symbols[0].trace.is_taped)


def first_of(op: Reduction, loses: Reduction, x: Any, y: Any, *, missing: Any) -> Any:
    """Return the extreme of two by its op; of equal ones x gets the whole gradient.

    Args:
        loses: whether x is not the one that is looked for: (x, y) -> bools.
        missing: the operand which, where it is NaN, makes it y.
    """
    if not is_differentiated(x, y):
        return op(x, y)
    is_nan = xp.not_equal(missing, missing)
    return xp.where(xp.logical_or(loses(x, y), is_nan), y, x)
