"""Indices: what `x[index]` picks, and what `x[index] = value` makes of the whole tensor."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from ...graph.ir.types import BOOL, SCALAR_SHAPE, UNKNOWN, T
from ...trace.trace import Value, lift
from ...trace.xp import all as xp
from ..meanings import arrays
from .arrays import holds_array, put_at, take_at

Tensor = Any


def picked(x: Value, index: Any) -> Any:
    """Return the elements of x at an index."""
    if is_mask(index):
        return Picked(x.trace.value(x.node), index)
    if is_whole(index):
        return arrays.renamed(x)
    axis = new_axis(index)
    if axis is not None:
        return xp.expand_dims(x, axis)
    try:
        return take_at(x, index) if holds_array(index) else xp.getitem(x, index)
    except TypeError as error:
        raise x.trace.error(f"indexes a tensor in a way not captured: {error}") from error


def assigned(x: Value, index: Any, value: Any) -> Value:
    """Return x with a value at an index."""
    if isinstance(value, Picked):
        if is_mask(index) and value.mask.node is index.node:
            return xp.where(_over_axes(index, x), value.whole, x)
        raise x.trace.error(
            "assigns what one mask picks to another place. Use xp.where(condition, value, tensor)"
        )
    if not isinstance(value, Value):
        value = x.trace.value(lift(x.trace, value))
    single = value.node.type.shape == SCALAR_SHAPE
    if is_whole(index):
        return xp.full_like(x, value) if single else value
    if is_mask(index) and single:
        return xp.where(_over_axes(index, x), value, x)
    if is_mask(index):
        raise x.trace.error("assigns to a part of a tensor. Use xp.where(condition, value, tensor)")
    if holds_array(index):
        try:
            index, value = put_at(x, index, value)
        except TypeError as error:
            raise x.trace.error(f"assigns to a part of a tensor not captured: {error}") from error
        single = False
    if all(map(is_whole, index if isinstance(index, tuple) else (index,))):
        return value
    return _placed(x, index, value, single)


def _over_axes(mask: Any, x: Any) -> Value:
    """Return a mask for the first axes of x, to which it belongs, where broadcasting takes the
    last.
    """
    own, whole = mask.node.type.shape, x.node.type.shape
    if own == SCALAR_SHAPE or (own == whole and own != UNKNOWN):
        return mask
    own, whole = tuple(mask.shape), tuple(x.shape)
    if own == whole:
        return mask
    if own != whole[: len(own)]:
        raise x.trace.error(
            f"indexes a tensor of shape {whole} by a mask of shape {own}, which must be that of "
            "its first axes. Use xp.where(condition, value, tensor)"
        )
    return xp.reshape(mask, (*own, *(1,) * (len(whole) - len(own))))


def _placed(x: Value, index: Any, value: Value, single: bool) -> Value:
    """Return x with a value at a static index."""
    try:
        with x.trace.plainly():
            part = xp.getitem(x, index)
    except TypeError as error:
        raise x.trace.error(f"assigns to a part of a tensor not captured: {error}") from error
    at = part.node.attr("index")
    here = xp.setitem(xp.ones_like(part, T), x, at) > 0
    if single:
        return xp.where(here, value, x)
    return xp.where(here, xp.setitem(xp.broadcast_to(value, part), x, at), x)


def new_axis(index: Any) -> int | None:
    """Return where an index that does nothing else makes an axis: `[None]`, `[:, None]`, `[...,
    None]`.
    """
    items = index if isinstance(index, tuple) else (index,)
    if sum(item is None for item in items) != 1 or not all(i is None or is_whole(i) for i in items):
        return None
    place = next(i for i, item in enumerate(items) if item is None)
    if all(item is not Ellipsis for item in items[:place]):
        return place
    return place - len(items)


def is_whole(index: Any) -> bool:
    """Return whether an index means all of a tensor."""
    return index is Ellipsis or (isinstance(index, slice) and index == slice(None))


def is_mask(index: Any) -> bool:
    """Return whether an index is a symbolic tensor of bools."""
    return isinstance(index, Value) and index.node.type.dtype == BOOL


class Picked:
    """`x[mask]`: how many elements that is, nobody knows; it can be computed with and assigned to
    the same mask.
    """

    __slots__ = ("mask", "whole")
    value = None  # it is no variable, which would hold a tensor there

    def __init__(self, whole: Value, mask: Value) -> None:
        self.whole = whole
        self.mask = mask

    def _refuse(self) -> Exception:
        return self.whole.trace.error(
            "indexes a tensor by a mask, which gives no known number of elements. Use "
            "xp.where(condition, tensor, 0.0)"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__len__":
            raise AttributeError(name)
        raise self._refuse()

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        raise next(a for a in args if isinstance(a, Picked))._refuse()

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        raise self._refuse()

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise self._refuse()

    def __iter__(self) -> Any:
        raise self._refuse()

    def _combine(self, compute: Callable[[Any, Any], Any], a: Any, b: Any) -> Picked:
        """Compute on whole tensors, where all operands are picked by one mask or are one number."""
        wholes = []
        for operand in (a, b):
            if isinstance(operand, Picked) and operand.mask.node is self.mask.node:
                wholes.append(operand.whole)
            elif isinstance(operand, bool | int | float) or (
                isinstance(operand, Value) and operand.node.type.shape == SCALAR_SHAPE
            ):
                wholes.append(operand)
            else:
                raise self._refuse()
        return Picked(compute(*wholes), self.mask)

    def __add__(self, other: Any) -> Picked:
        return self._combine(operator.add, self, other)

    def __radd__(self, other: Any) -> Picked:
        return self._combine(operator.add, other, self)

    def __sub__(self, other: Any) -> Picked:
        return self._combine(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Picked:
        return self._combine(operator.sub, other, self)

    def __mul__(self, other: Any) -> Picked:
        return self._combine(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Picked:
        return self._combine(operator.mul, other, self)

    def __truediv__(self, other: Any) -> Picked:
        return self._combine(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Picked:
        return self._combine(operator.truediv, other, self)

    def __pow__(self, other: Any) -> Picked:
        return self._combine(operator.pow, self, other)

    def __neg__(self) -> Picked:
        return Picked(-self.whole, self.mask)

    def __abs__(self) -> Picked:
        return Picked(abs(self.whole), self.mask)
