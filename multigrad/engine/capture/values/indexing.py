"""Indexing: the elements of `x[index]`, and the tensor after `x[index] = value`, also with several
numbers for an axis (`x[:, [0, 2]]`, `x[[0, 1], [2, 0]]`), symbolic integers, and masks.

An index is read into a list of items. What is basic in it (integers, slices, None) is applied
first, which leaves a part of the tensor; the arrays then take their elements of that part:

    x[1, [0, 2], :]     the items are 1, array([0, 2]) and the slice
                        x[1, :, :] by the basic index is the part
                        part[array([0, 2]), :] by the array index

A single list is taken along its axis, for every rank and length. For any other index NumPy itself
tells the elements that it picks of a tensor of this shape, which becomes a fact of the capture.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import optree

from ....core.ir.graph import MOST_ELEMENTS, Node
from ....core.ir.op import BOOL, PER_ELEMENT, SCALAR_SHAPE, UNKNOWN, T, is_float
from ....core.passes.simplify import COPY
from ....core.trace.trace import NeedsConcrete, Value, cast, known_shape, lift
from ....core.trace.xp import all as xp
from ..dialect import habits_of
from ..meanings import arrays, parts
from ..meanings.parts import holds_places, is_whole
from ..symbols import as_held

Tensor = Any
Array = np.ndarray[Any, Any]
WHOLE: Any = slice(None)


# --- x[index], and x[index] = value ---------------------------------------------------------------
def picked(x: Value, index: Any, outside: str | None = None, fill: Any = None) -> Any:
    """Return the elements of x at an index; for `outside` and `fill` see `parts.taken`."""
    index = symbolic_if_outside(x, index)
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
    """Return x with a value at an index; see `parts.put`."""
    index = symbolic_if_outside(x, index)
    if isinstance(value, Picked):
        if is_mask(index) and value.mask.node is index.node:
            return xp.where(_over_axes(index, x), value.whole, x)
        raise x.trace.error(
            "assigns what one mask picks to another place. Use xp.where(condition, value, tensor)"
        )
    if not isinstance(value, Value):
        value = x.trace.value(lift(x.trace, value))
    value = as_held(x, value)
    is_single = value.node.type.shape == SCALAR_SHAPE
    if is_whole(index):
        return xp.full_like(x, value) if is_single else value
    if is_mask(index) and is_single:
        return xp.where(_over_axes(index, x), value, x)
    if is_mask(index):
        raise x.trace.error("assigns to a part of a tensor. Use xp.where(condition, value, tensor)")
    try:
        if holds_array(index):
            index, value = put_at(x, index, value, outside)
        if all(map(is_whole, index if isinstance(index, tuple) else (index,))):
            return value
        with x.trace.backward.plainly():
            part = xp.getitem(x, index)
    except TypeError as error:
        raise x.trace.error(f"assigns to a part of a tensor not captured: {error}") from error
    return xp.put(x, value, part.node.attr("index"))


def _over_axes(mask: Any, x: Any) -> Value:
    """Return a mask for x: it is one of the first axes, where broadcasting would take the last."""
    mask_shape, shape = mask.node.type.shape, x.node.type.shape
    if mask_shape == SCALAR_SHAPE or (mask_shape == shape and mask_shape != UNKNOWN):
        return mask
    mask_shape, shape = tuple(mask.shape), tuple(x.shape)
    if mask_shape == shape:
        return mask
    if mask_shape != shape[: len(mask_shape)]:
        raise x.trace.error(
            f"indexes a tensor of shape {shape} by a mask of shape {mask_shape}, which must be "
            "that of its first axes. Use xp.where(condition, value, tensor)"
        )
    return xp.reshape(mask, (*mask_shape, *(1,) * (len(shape) - len(mask_shape))))


def new_axis(index: Any) -> int | None:
    """Return the axis that an index which does nothing else inserts: `[None]`, `[..., None]`."""
    items = index if isinstance(index, tuple) else (index,)
    if sum(item is None for item in items) != 1 or not all(i is None or is_whole(i) for i in items):
        return None
    place = next(i for i, item in enumerate(items) if item is None)
    if all(item is not Ellipsis for item in items[:place]):
        return place
    return place - len(items)


def selected(x: Any, mask: Any) -> Any:
    """Return the elements that torch selects with a mask of x's shape."""
    mask_shape, shape = mask.node.type.shape, x.node.type.shape
    if (mask_shape != shape or mask_shape == UNKNOWN) and tuple(mask.shape) != tuple(x.shape):
        raise TypeError("a mask of another shape")
    return picked(x, mask)


# --- what an index holds --------------------------------------------------------------------------
def holds_array(index: Any) -> bool:
    return any(map(_is_array, index if isinstance(index, tuple) else (index,)))


def _is_of_one_block(item: Any) -> bool:
    """Return whether an item takes neighbors along its axis, in jax a block that can be moved."""
    if isinstance(item, Value):
        return parts.rank(item) == 0
    return item.step in (None, 1, -1) if isinstance(item, slice) else not _is_array(item)


def _is_array(item: Any) -> bool:
    if isinstance(item, Value):
        return item.node.type.kind == "tensor"
    return isinstance(item, list | tuple) or getattr(item, "ndim", 0) > 0


def is_mask(index: Any) -> bool:
    return isinstance(index, Value) and index.node.type.dtype == BOOL


def symbolic_if_outside(x: Any, index: Any) -> Any:
    """Return an index whose constants become symbolic if one is known to be out of range.

    Libraries give such an index a meaning (clip, drop), which only symbolic indices have.
    """
    shape = known_shape(x) if habits_of(x.trace).outside[0] != "refused" else None
    items = index if isinstance(index, tuple) else (index,)
    if shape is None or any(isinstance(item, bool | np.bool_ | Value) for item in items):
        return index
    try:
        numpy_index = tuple(
            _read_array(x, item) if _is_array(item) else _read_basic(item) for item in items
        )
        np.broadcast_to(0, shape)[numpy_index]
    except IndexError:
        return tuple(
            parts.as_value(x, item) if isinstance(item, np.ndarray | int) else item
            for item in numpy_index
        )
    return index


# --- indices that hold arrays ---------------------------------------------------------------------
def take_at(x: Any, index: Any, outside: str | None = None, fill: Any = None) -> Value:
    """Return the elements at an index that holds arrays: a copy, as in every library.

    Raises:
        TypeError: the index is not captured, or out of range.
    """
    items = _read_items(x, index)
    if holds_places(index):
        _check_apart(x, items)
        outside = outside or habits_of(x.trace).outside[0]
        if outside == "nearest" and all(map(_is_of_one_block, items)):
            outside = "clip"  # it is moved inside, and gets the gradient
        elements = parts.taken(_basic_part(x, items), _array_index(items), outside, fill)
        return x.trace.value(elements.node)
    row = _find_only_list(x, items)
    if row is not None:
        elements = xp.take(_basic_part(x, items), items[row].tolist(), _axis_of_list(items, row))
    else:
        places = _flat_places(x, items)
        elements = xp.take(xp.reshape(x, -1), places.ravel().tolist(), 0)
        elements = elements if places.ndim == 1 else xp.reshape(elements, places.shape)
    result = x.trace.value(elements.node)
    result.how = COPY
    return result


def put_at(
    x: Any, index: Any, value: Any, outside: str | None = None
) -> tuple[tuple[Any, ...], Tensor]:
    """Return an index without arrays, and the new contents of that part after a value is put; of
    two values for one place the last stays. TypeError as in `take_at`.
    """
    items = _read_items(x, index)
    # In torch an overwritten value of a repeated place gets a gradient, which the op version gives.
    is_repeated = habits_of(x.trace).overwritten_too and repeats(x, index)
    if holds_places(index) or is_repeated:
        _check_apart(x, items)
        part = parts.put(_basic_part(x, items), _array_index(items), value, outside)
        return _basic_index(items), part
    row = _find_only_list(x, items)
    if row is None:
        return (...,), _put_flat(x, _flat_places(x, items), value)
    part, axis, rows = _basic_part(x, items), _axis_of_list(items, row), items[row]
    if not rows.size:
        return _basic_index(items), part
    length = operator.index(xp.dim(part, axis))
    source = _last_put(np.arange(length)[rows], length)
    if value.node.type.shape != SCALAR_SHAPE:
        elements = xp.take(part, rows.tolist(), axis)
        value = xp.broadcast_to(value, elements)
        value = xp.take(value, np.maximum(source, 0).tolist(), axis)
    axes_after = -axis - 1 if axis < 0 else part.ndim - axis - 1
    return _basic_index(items), xp.where((source >= 0).reshape(-1, *(1,) * axes_after), value, part)


def add_at(
    x: Any, index: Any, value: Any, outside: str | None = None
) -> tuple[tuple[Any, ...], Tensor]:
    """Return an index without arrays, and the new contents of that part after a value is added."""
    items = _read_items(x, index)
    _check_apart(x, items)
    part = parts.added(_basic_part(x, items), _array_index(items), value, outside)
    return _basic_index(items), part


def repeats(x: Any, index: Any) -> bool:
    """Return whether an index that holds arrays names a place twice."""
    if holds_places(index):
        return False
    items = _read_items(x, index)
    row = _find_only_list(x, items)
    if row is None:
        places = _flat_places(x, items)
    else:
        places, axis = items[row], _axis_of_list(items, row)
        if places.size and places.min() < 0 <= places.max():
            places = places % operator.index(xp.dim(_basic_part(x, items), axis))
    return len(np.unique(places)) < places.size


def _check_apart(x: Any, items: list[Any]) -> None:
    """Refuse integers apart from an array, which put their axes first in some libraries only."""
    kinds = (np.ndarray, Value)
    slots = [i for i, item in enumerate(items) if isinstance(item, kinds) or _is_integer(item)]
    if not habits_of(x.trace).integers_first and slots != list(range(slots[0], slots[-1] + 1)):
        raise TypeError("an integer apart from a tensor in an index")


def _put_flat(x: Any, places: Array, value: Any) -> Tensor:
    if not places.size:
        return x
    shape = tuple(x.shape)
    source = _last_put(places, int(np.prod(shape)))
    if value.node.type.shape != SCALAR_SHAPE:
        flat = xp.reshape(xp.broadcast_to(value, places.shape), -1)
        value = xp.reshape(xp.take(flat, np.maximum(source, 0).tolist(), 0), shape)
    return xp.where((source >= 0).reshape(shape), value, x)


def _last_put(places: Array, length: int) -> Array:
    """Return for each element the number of the last value that is put there, or -1."""
    source = np.full(length, -1)
    source[places.ravel()] = np.arange(places.size)
    return source


def _flat_places(x: Any, items: list[Any]) -> Array:
    """Return the position of each element that an index picks, counted in the flat tensor."""
    shape = tuple(x.shape)
    numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    try:
        if habits_of(x.trace).integers_first:  # integers are applied first, not as arrays
            numbers, items = numbers[_basic_index(items)], _array_index(items)
        places = numbers[tuple(items)]
    except IndexError as error:
        raise TypeError(str(error)) from error
    if max(places.size, numbers.size) > MOST_ELEMENTS:
        raise TypeError(f"several arrays in an index of more than {MOST_ELEMENTS} elements")
    return places


def _find_only_list(x: Any, items: list[Any]) -> int | None:
    """Return the position of an index's only list, if it can be taken along its axis for any shape;
    None if not.
    """
    rows = [i for i, item in enumerate(items) if isinstance(item, np.ndarray)]
    if len(rows) != 1 or items[rows[0]].ndim != 1 or items[rows[0]].dtype.kind == "b":
        return None
    slots = [i for i, item in enumerate(items) if i in rows or _is_integer(item)]
    if habits_of(x.trace).integers_first or slots == list(range(slots[0], slots[-1] + 1)):
        return rows[0]
    if not x.trace.dialect:
        raise TypeError("an integer apart from a list means another thing in torch than in NumPy")
    return None


# --- from an index to its items, and their two parts ----------------------------------------------
def _read_items(x: Any, index: Any) -> list[Any]:
    is_nested = isinstance(index, list) and not all(map(_is_integer, index))
    if is_nested and not arrays.habits_for(x, "a list of lists as an index").nested_lists:
        raise TypeError("a list of lists is a tuple to some versions of torch, a tensor to others")
    items = index if isinstance(index, tuple) else (index,)
    return [_read_array(x, item) if _is_array(item) else _read_basic(item) for item in items]


def _is_integer(item: Any) -> bool:
    return not (item is None or item is Ellipsis or isinstance(item, slice) or _is_array(item))


def _read_basic(item: Any) -> Any:
    if isinstance(item, bool | np.bool_):
        raise TypeError("it indexes by one bool; use xp.where(condition, tensor, 0.0)")
    return operator.index(item) if _is_integer(item) else item


def _read_array(x: Any, item: Any) -> Any:
    """Return an item as NumPy's array of integers or bools, or symbolic integers; TypeError for
    anything else.
    """
    if isinstance(item, Value):
        if not holds_places(item):
            if item.node.type.dtype != BOOL:
                raise TypeError("it indexes by a tensor of floats; cast it to int64 first")
            raise TypeError("it indexes by a tensor; use xp.where(condition, tensor, 0.0)")
        return item
    index = _as_numbers(item) if isinstance(item, list | tuple) else item
    array = np.asarray(index.detach().cpu() if hasattr(index, "detach") else index)
    if isinstance(item, list | tuple) and not array.size:
        array = array.astype(np.intp)
    if array.dtype == np.uint8 and habits_of(x.trace).bytes_are_masks:
        array = array.astype(bool)
    if array.dtype.kind not in "iub":
        raise TypeError(f"it indexes by {array.dtype}")
    return array if array.dtype.kind == "b" else array.astype(np.intp)


def _as_numbers(items: Any) -> Any:
    """Return nested lists with Python's numbers for symbolic ones, which become facts."""
    if isinstance(items, list | tuple):
        return [_as_numbers(item) for item in items]
    return items if isinstance(items, bool | np.bool_) else operator.index(items)


def _basic_index(items: list[Any]) -> tuple[Any, ...]:
    """Return the index with the axes of its arrays left whole."""
    basic: list[Any] = []
    for item in items:
        if isinstance(item, Value):
            basic.append(WHOLE)
        elif isinstance(item, np.ndarray):
            basic += [WHOLE] * (item.ndim if item.dtype.kind == "b" else 1)
        else:
            basic.append(item)
    return tuple(basic)


def _array_index(items: list[Any]) -> list[Any]:
    """Return the items that remain to be applied after `_basic_index(items)`."""
    remaining = [item for item in items if not _is_integer(item)]
    return [WHOLE if item is None or isinstance(item, slice) else item for item in remaining]


def _basic_part(x: Any, items: list[Any]) -> Any:
    basic = _basic_index(items)
    return x if all(map(is_whole, basic)) else xp.getitem(x, basic)


def _axis_of_list(items: list[Any], row: int) -> int:
    """Return the axis of the part that a list indexes, from the end after an ellipsis."""
    items_before = _array_index(items[:row])
    if any(item is Ellipsis for item in items_before):
        return -1 - len(_array_index(items[row + 1 :]))
    return len(items_before)


# --- what a mask picks ----------------------------------------------------------------------------
TOTALS = ("sum", "mean")


class Picked:
    """`x[mask]`, whose number of elements is not known.

    It takes part in elementwise functions, can be summed, and assigned to the same mask.
    """

    __slots__ = ("mask", "whole")
    value = None  # a variable would hold a tensor there; this tells that it is none

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
        # A name that ends in "_" updates in place: only this copy.
        method = name.removesuffix("_")
        result = self._combine(lambda x, *given: getattr(x, method)(*given, **kwargs), self, *args)
        if method == name:
            return result
        self.whole = result.whole
        return self

    def _total(self, name: str, **options: Any) -> Value:
        if options:
            raise self._refuse()
        x, mask = self.whole, _over_axes(self.mask, self.whole)
        if not is_float(x.node.type):
            raise self._refuse()
        zero_elsewhere = xp.where(mask, x, 0)
        if name == "sum":
            return xp.sum(zero_elsewhere)
        dtype = x.node.type.dtype
        if dtype == T:
            dtype = x.trace.facts.get("dtype")
            if dtype is None:
                raise NeedsConcrete("dtype")
        wide = "float64" if dtype == "float64" else "float32"  # 16 bits are added up in 32
        total = xp.sum(cast(zero_elsewhere, wide)) / xp.sum(cast(xp.broadcast_to(mask, x), wide))
        return cast(total, x.node.type.dtype)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given: Any = (args, kwargs)
        leaves = optree.tree_leaves(given)
        selection = next(each for each in leaves if isinstance(each, Picked))
        if kwargs or selection is not args[0]:
            raise selection._refuse()
        name = getattr(function, "__name__", "")
        if name in TOTALS and len(args) == 1:
            return selection._total(name)
        if name.endswith("_"):
            raise selection._refuse()
        return selection._combine(function, *args)

    def _refuse_call(self, *args: Any, **kwargs: Any) -> Any:
        raise self._refuse()

    __array_ufunc__ = __array__ = __iter__ = _refuse_call

    def _combine(self, compute: Callable[..., Any], *operands: Any) -> Picked:
        # All operands must be picked by the same mask, or be one number; then whole tensors
        # compute.
        wholes: list[Any] = []
        for operand in operands:
            if isinstance(operand, Picked) and operand.mask.node is self.mask.node:
                wholes.append(operand.whole)
                continue
            is_one = isinstance(operand, bool | int | float) or (  # also NumPy's float64
                isinstance(operand, Value) and operand.node.type.shape == SCALAR_SHAPE
            )
            is_tensor = isinstance(operand, Picked | Value | list | tuple)
            if not is_one and (is_tensor or hasattr(operand, "shape")):
                raise self._refuse()
            wholes.append(operand)
        result = compute(*wholes)
        nodes = [each.node for each in wholes if isinstance(each, Value)]
        if not (isinstance(result, Value) and is_per_element(result.node, nodes)):
            raise self._refuse()
        return Picked(result, self.mask)


def _of_picked(compute: Callable[..., Any], is_reflected: bool = False) -> Callable[..., Picked]:
    def operate(self: Picked, *others: Any) -> Picked:
        return self._combine(compute, *((*others, self) if is_reflected else (self, *others)))

    return operate


for _name in ("add", "sub", "mul", "truediv", "pow", "neg", "abs"):
    setattr(Picked, f"__{_name}__", _of_picked(getattr(operator, _name)))
for _name in ("add", "sub", "mul", "truediv"):
    setattr(Picked, f"__r{_name}__", _of_picked(getattr(operator, _name), True))


def is_per_element(node: Node, sources: Sequence[Node]) -> bool:
    """Return whether each element depends only on numbers and that element of the sources."""
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
    has_shape_of_source = any(node.type.shape == source.type.shape for source in sources)
    return has_shape_of_source and all(is_per_element(each, sources) for each in node.operands)
