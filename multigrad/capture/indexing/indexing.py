"""Indices: what `x[index]` picks, and what `x[index] = value` makes of the whole tensor."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ...graph.ir.graph import Node
from ...graph.ir.types import BOOL, SCALAR_SHAPE, UNKNOWN, T, is_float
from ...graph.ops.results import PER_ELEMENT
from ...trace.trace import NeedsConcrete, Value, cast, lift
from ...trace.xp import all as xp
from ..meanings import arrays
from .arrays import holds_array, put_at, take_at, told_outside

Tensor = Any
TOTALS = ("sum", "mean")


def picked(x: Value, index: Any, outside: str | None = None, fill: Any = None) -> Any:
    """Return the elements of x at an index.

    Args:
        outside, fill: see `index_tensors.taken`.
    """
    index = told_outside(x, index)
    if is_mask(index):
        return Picked(x.trace.value(x.node), index)
    if is_whole(index):
        return arrays.renamed(x)
    axis = new_axis(index)
    if axis is not None:
        return xp.expand_dims(x, axis)
    try:
        if holds_array(index):
            return take_at(x, index, outside, fill)
        return xp.getitem(x, index)
    except TypeError as error:
        raise x.trace.error(f"indexes a tensor in a way not captured: {error}") from error


def assigned(x: Value, index: Any, value: Any, outside: str | None = None) -> Value:
    """Return x with a value at an index; see `index_tensors.put`."""
    index = told_outside(x, index)
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
            index, value = put_at(x, index, value, outside)
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


def selected(x: Any, mask: Any) -> Any:
    """Return what torch selects by a mask of x's shape.

    Raises:
        TypeError: the mask has another one.
    """
    own, whole = mask.node.type.shape, x.node.type.shape
    if (own != whole or own == UNKNOWN) and tuple(mask.shape) != tuple(x.shape):
        raise TypeError("a mask of another shape")
    return picked(x, mask)


def is_whole(index: Any) -> bool:
    """Return whether an index means all of a tensor."""
    return index is Ellipsis or (isinstance(index, slice) and index == slice(None))


def is_mask(index: Any) -> bool:
    """Return whether an index is a symbolic tensor of bools."""
    return isinstance(index, Value) and index.node.type.dtype == BOOL


class Picked:
    """`x[mask]`: how many elements that is, nobody knows; it can be computed with element by
    element, summed, and assigned to the same mask.
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
        if name in ("dtype", "device", "trace"):
            return getattr(self.whole, name)
        if name.startswith("_"):
            if name == "__len__":
                raise self._refuse()
            raise AttributeError(name)
        if name in TOTALS:
            return partial(self._total, name)
        method = getattr(type(self.whole), name, None)
        if method is not None and not callable(method):
            raise self._refuse()
        return partial(self._call, name)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Picked:
        """Return what a method gives that computes element by element."""
        own = name.removesuffix("_")
        found = self._combine(lambda x, *given: getattr(x, own)(*given, **kwargs), self, *args)
        if own == name:
            return found
        self.whole = found.whole  # in place, of what is a copy
        return self

    def _total(self, name: str, **options: Any) -> Value:
        """Return the sum or the mean of what is picked."""
        if options:
            raise self._refuse()
        x, mask = self.whole, _over_axes(self.mask, self.whole)
        if not is_float(x.node.type):
            raise self._refuse()
        kept = xp.where(mask, x, 0)
        if name == "sum":
            return xp.sum(kept)
        dtype = x.node.type.dtype
        if dtype == T:
            dtype = x.trace.facts.get("dtype")
            if dtype is None:
                raise NeedsConcrete("dtype")
        wide = "float64" if dtype == "float64" else "float32"  # 16 bits are added up in 32
        total = xp.sum(cast(kept, wide)) / xp.sum(cast(xp.broadcast_to(mask, x), wide))
        return cast(total, x.node.type.dtype)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        own = next(a for a in (*args, *(kwargs or {}).values()) if isinstance(a, Picked))
        if kwargs or own is not args[0]:
            raise own._refuse()
        name = getattr(function, "__name__", "")
        if name in TOTALS and len(args) == 1:
            return own._total(name)
        if name.endswith("_"):
            raise own._refuse()
        return own._combine(function, *args)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        raise self._refuse()

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise self._refuse()

    def __iter__(self) -> Any:
        raise self._refuse()

    def _combine(self, compute: Callable[..., Any], *operands: Any) -> Picked:
        """Compute on whole tensors, where all operands are picked by one mask or are one number,
        element by element.
        """
        wholes: list[Any] = []
        for operand in operands:
            if isinstance(operand, Picked) and operand.mask.node is self.mask.node:
                wholes.append(operand.whole)
            elif isinstance(operand, bool | int | float) or (
                isinstance(operand, Value) and operand.node.type.shape == SCALAR_SHAPE
            ):
                wholes.append(operand)
            elif isinstance(operand, Picked | Value | list | tuple) or hasattr(operand, "shape"):
                raise self._refuse()
            else:
                wholes.append(operand)
        found = compute(*wholes)
        nodes = [each.node for each in wholes if isinstance(each, Value)]
        if not (isinstance(found, Value) and is_per_element(found.node, nodes)):
            raise self._refuse()
        return Picked(found, self.mask)

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
        return self._combine(operator.neg, self)

    def __abs__(self) -> Picked:
        return self._combine(abs, self)


def is_per_element(node: Node, sources: Sequence[Node]) -> bool:
    """Return whether each element of a value depends on that element of the sources alone, and on
    those without axes.
    """
    if node in sources:
        return True
    if node.type.kind != "tensor" or node.type.shape == SCALAR_SHAPE:
        return all(
            (each.type.kind != "tensor" or each.type.shape == SCALAR_SHAPE)
            and is_per_element(each, sources)
            for each in node.operands
        )
    if not node.operands or node.op.result not in PER_ELEMENT:
        return False
    is_known = any(node.type.shape == source.type.shape for source in sources)
    return is_known and all(is_per_element(each, sources) for each in node.operands)
