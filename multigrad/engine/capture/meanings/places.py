"""Functions of integer places (argmax, gather, scatter) under torch's and NumPy's names.

torch's indices count from the front and may be shorter than the tensor in the other axes; NumPy's
may count from the end and are broadcast. Each function says where the gradient of equal elements
goes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ....core import ops
from ....core.ir.op import BOOL, INPUT_SHAPE, INT64, SCALAR_SHAPE, WHOLE, T, is_float
from ....core.trace.coercion import is_exact
from ....core.trace.trace import Value, cast, cast_node, dtype_name, known_shape, lift
from ....core.trace.xp import all as xp
from ...lowering.calls import route_gradient
from ...trace.xp import transposes
from ...trace.xp.shapes import from_front
from ..dialect import habits_of, leave_order_open
from ..name_tables import Handler, handlers_by_name
from ..symbols import cast_in_graph
from .parts import check_range, cut, is_places, limited, put_slices, shape_of

Tensor = Any
Reduction = Callable[..., Tensor]


class Extremes:
    """A pair `.values`, `.indices`; the indices are recorded only when they are read."""

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


def _extreme(reduce: Reduction, pair: Reduction, find: Reduction) -> Reduction:
    # torch.max(x) reduces, torch.max(a, b) is elementwise, torch.max(x, dim) gives values and
    # indices.

    def record(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        other = kwargs.get("other", args[0] if args else None)
        if other is not None and not isinstance(other, int):
            return pair(input, other)
        return along(input, *args, **kwargs) if args or kwargs else reduce(input)

    def along(x: Tensor, dim: int, keepdim: bool = False) -> Extremes:
        # The value is taken from its place, which gets the whole gradient: the first of equal ones.
        places = find(x, axis=dim, keepdims=True)
        values = xp.take_along(x, places, axis=operator.index(dim))
        if not keepdim and x.node.type.shape != SCALAR_SHAPE:
            values, places = xp.squeeze(values, dim), xp.squeeze(places, dim)
        return Extremes(values, lambda: places)

    record.__name__ = record.__qualname__ = reduce.__name__
    return record


max, min = _extreme(xp.max, xp.maximum, xp.argmax), _extreme(xp.min, xp.minimum, xp.argmin)
EXTREMES = {"max": max, "min": min}


def sort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> Extremes:
    return Extremes(xp.sort(x, dim, descending), lambda: xp.argsort(x, dim, descending))


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Extremes:
    # Of equal elements the first come first; torch leaves the order open, which is noted.
    if not x.ndim:
        raise TypeError("topk of a tensor without axes")
    ordered, count = sort(x, dim, largest), whole(k)
    leave_order_open(ordered.values, "topk")
    return Extremes(cut(ordered.values, dim, 0, count), lambda: cut(ordered.indices, dim, 0, count))


def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Extremes:
    # The k-th smallest, counted from 1.
    ordered_pair, position = sort(x, dim), whole(k) - 1
    check_range(x, dim, position, 1)
    leave_order_open(ordered_pair.values, "kthvalue")

    def pick(tensor: Value) -> Value:
        element = xp.take(tensor, [position], dim)
        return element if keepdim else xp.squeeze(element, dim)

    return Extremes(pick(ordered_pair.values), lambda: pick(ordered_pair.indices))


def whole(k: Any) -> int:
    """Return a count as an integer; a symbolic one made by `round` is whole, as in Python."""
    is_rounded = isinstance(k, Value) and k.node.op is ops.ROUND
    return int(float(k)) if is_rounded else operator.index(k)


def is_differentiated(*operands: Any) -> bool:
    """Return whether the capture may differentiate through the ops that are recorded."""
    symbols = [each for each in operands if isinstance(each, Value)]
    floats = [each for each in symbols if is_float(each.node.type)]
    return bool(floats) and (
        symbols[0].trace.kind == "function" or symbols[0].trace.backward.is_taped
    )


def first_of(op: Reduction, loses: Reduction, x: Any, y: Any, *, missing: Any) -> Any:
    """Return the extreme of two; the whole gradient of equal ones goes to x.

    Args:
        loses: (x, y) -> bools, where x is not the extreme.
        missing: the operand whose NaN selects y.
    """
    if not is_differentiated(x, y):
        return op(x, y)
    # NaN is the only value that differs from itself.
    is_nan = xp.not_equal(missing, missing)
    return xp.where(xp.logical_or(loses(x, y), is_nan), y, x)


MISSING: Any = object()


def check_flag(name: str, value: Any) -> None:
    """Refuse what another library takes in the position of a flag, such as a dtype."""
    if not isinstance(value, bool | int | np.bool_ | None):
        raise TypeError(f"{name} is True or False, not {value!r:.40}; name other arguments")


def place(find: Reduction) -> Reduction:
    """Return a handler for the place of an extreme; bools count as integers."""

    def record(
        x: Tensor,
        dim: Any = None,
        keepdim: bool = False,
        *,
        axis: Any = MISSING,
        keepdims: bool = False,
        out: None = None,
    ) -> Tensor:
        check_flag("keepdim", keepdim)  # NumPy takes `out` in this position
        return find(counted(x), dim if axis is MISSING else axis, keepdim or keepdims)

    record.__name__ = record.__qualname__ = find.__name__
    return record


argmax, argmin = place(xp.argmax), place(xp.argmin)


def argsort(
    x: Tensor,
    dim: Any = -1,
    descending: bool = False,
    stable: bool = False,
    *,
    axis: Any = MISSING,
    kind: Any = None,
) -> Tensor:
    check_flag("descending", descending)  # NumPy takes `kind` in this position
    # NumPy's default may sort equal elements in any order, which is noted; ours is stable.
    sorted_axis = dim if axis is MISSING else axis
    x, sorted_axis = (xp.reshape(x, -1), 0) if sorted_axis is None else (x, sorted_axis)
    order = xp.argsort(x, sorted_axis, descending)
    if kind != "stable":
        leave_order_open(order, "argsort")
    return order


def counted(x: Tensor) -> Tensor:
    is_bools = isinstance(x, Value) and x.node.type.dtype == BOOL
    return cast(x, INT64) if is_bools and x.node.type.kind == "tensor" else x


def count_nonzero(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    # An integer, as in all libraries; `xg.xp.count_nonzero` gives a float.
    return xp.sum(cast(cast(x, BOOL), INT64), axis, keepdims)


def gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    dim = operator.index(dim)
    return xp.take_along(within(x, index, dim), as_places(x, index), axis=dim)


def as_places(x: Tensor, index: Any) -> Any:
    """Return an index, symbolic or constant, as a symbolic value."""
    trace = x.trace if isinstance(x, Value) else index.trace
    if is_places(index):
        return trace.value(index.node)
    if not hasattr(index, "dtype"):
        index = np.asarray(index)
    if not isinstance(index, Value) and not index.ndim:
        return xp.reshape(as_places(x, np.reshape(index, 1)), ())
    dtype = index.node.type.dtype if isinstance(index, Value) else dtype_name(index.dtype)
    if dtype not in (*WHOLE, "int", BOOL):
        name = "floats" if dtype == T else dtype
        raise TypeError(f"an index of {name}, which must be integers; cast it to int64 first")
    return trace.value(cast_node(lift(trace, index), INT64))


def as_tensor(x: Any, other: Any) -> Any:
    """Return a tensor, symbolic or constant, as a symbolic value in its own dtype."""
    if isinstance(x, Value):
        return x
    value = other.trace.value(lift(other.trace, x))
    return cast_in_graph(value, dtype_name(x.dtype)) if is_exact(other.trace) else value


def within(x: Tensor, index: Tensor, dim: int) -> Tensor:
    """Return the part of x that is as long as an index in all axes but `dim`."""
    shorter_axes = _others(x, index, dim)
    if not shorter_axes:
        return x
    lengths = shape_of(index)
    part = tuple(slice(0, n) if i in shorter_axes else slice(None) for i, n in enumerate(lengths))
    return x.trace.value(xp.getitem(x, part).node)


def as_long(x: Tensor, index: Tensor) -> Tensor:
    """Return the part of x that is as long as an index in all axes."""
    shape, index_shape = (each.node.type.shape for each in (x, index))
    if shape == index_shape in (INPUT_SHAPE, SCALAR_SHAPE) or shape_of(x) == shape_of(index):
        return x
    part = tuple(slice(0, n) for n in shape_of(index))
    return x.trace.value(xp.getitem(x, part).node)


def _others(x: Tensor, index: Tensor, dim: int) -> list[int]:
    # The axes but `dim` in which the index may be shorter. Equal symbolic shapes need no facts.
    shapes = [each.node.type.shape if isinstance(each, Value) else None for each in (x, index)]
    if shapes[0] == shapes[1] in (INPUT_SHAPE, SCALAR_SHAPE):
        return []
    shape, lengths = shape_of(x), shape_of(index)
    if len(shape) != len(lengths):
        raise TypeError(f"an index of {len(lengths)} axes into a tensor of {len(shape)}")
    return [i for i, n in enumerate(shape) if i != dim % (len(shape) or 1) and n != lengths[i]]


def take_in_mode(x: Tensor, indices: Any, axis: int, mode: str) -> Tensor:
    """Return slices at indices that are clipped to the range, or wrapped around."""
    if mode not in ("clip", "wrap"):
        raise TypeError(f"take in the mode {mode!r}; 'clip' and 'wrap' are known")
    places = as_places(x, indices)
    inside = xp.remainder(places, xp.dim(x, axis)) if mode == "wrap" else limited(places, x, axis)
    return transposes.take_at(x, inside, axis=axis)


def take_along_dim(x: Tensor, indices: Tensor, dim: Any = None) -> Tensor:
    # As NumPy's `take_along_axis`, but torch takes an index modulo the length.
    x, axis = (xp.reshape(x, -1), 0) if dim is None else (x, dim)
    places = xp.remainder(as_places(x, indices), xp.dim(x, axis))
    return take_along_axis(x, xp.reshape(places, -1) if dim is None else places, axis)


def take_along_axis(x: Tensor, indices: Tensor, axis: Any = -1) -> Tensor:
    # Broadcast in the other axes; without an axis x is flattened.
    if axis is None:
        return xp.take_along_axis(xp.reshape(x, -1), xp.reshape(as_places(x, indices), -1), 0)
    return xp.take_along_axis(*broadcast(x, as_places(x, indices), axis), axis)


def broadcast(x: Tensor, indices: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Broadcast both in all axes but one."""
    if not _others(x, indices, axis):
        return x, indices
    shapes = [list(shape_of(each)) for each in (x, indices)]
    axis = axis % len(shapes[0])
    lengths = [shape.pop(axis) for shape in shapes]
    common = list(np.broadcast_shapes(*map(tuple, shapes)))
    results = [
        xp.broadcast_to(each, (*common[:axis], n, *common[axis:]))
        for each, n in zip((x, indices), lengths, strict=True)
    ]
    return results[0], results[1]


def scatter(
    x: Tensor,
    dim: int,
    index: Tensor,
    src: Any = MISSING,
    *,
    value: Any = MISSING,
    reduce: Any = None,
) -> Tensor:
    # Of two values for one place torch leaves the winner open; here the last one wins.
    values = src if value is MISSING else value
    if reduce is not None:
        if reduce != "add":
            raise TypeError(f"scatter with reduce={reduce!r}; 'add' is known")
        return scatter_add(x, dim, index, values)
    dim, index = operator.index(dim), as_places(x, index)
    shorter_axes = _others(x, index, dim)
    if 0 in (known_shape(index) or ()):
        return x
    part = within(x, index, dim)
    # `last_put` names the element that wins each place, -1 where none is put.
    winners = xp.last_put(index, part, axis=dim)
    is_tensor = isinstance(values, Value) and values.node.type.shape != SCALAR_SHAPE
    source = as_long(values, index) if is_tensor else values
    if is_tensor:
        values = xp.take_along(source, xp.maximum(winners, 0), axis=dim)
    is_put = winners >= 0
    if shorter_axes:
        filled = xp.where(is_put, values, xp.zeros_like(part))
        is_put_in_x = placed(cast(is_put, INT64), x) > 0
    else:
        filled, is_put_in_x = values, is_put
    result = xp.where(is_put_in_x, placed(filled, x) if shorter_axes else filled, x)
    if not is_tensor or not habits_of(x.trace).overwritten_too:
        return result
    # In torch all source elements get the gradient of their place, also those overwritten.
    added = xp.untake_along(source, index, part, axis=dim)
    gradient_source = xp.where(is_put_in_x, 0.0, x) + (placed(added, x) if shorter_axes else added)
    return route_gradient(x.trace, result.node, to=gradient_source.node)


def placed(part: Tensor, like: Tensor) -> Tensor:
    """Return a tensor of zeros shaped like the whole, with the part at its beginning."""
    lengths = zip(shape_of(like), shape_of(part), strict=True)
    return xp.pad(part, [(0, n - m) for n, m in lengths])


def scatter_add(x: Tensor, dim: int, index: Tensor, src: Any) -> Tensor:
    dim, index = operator.index(dim), as_places(x, index)
    shorter_axes = _others(x, index, dim)
    part = within(x, index, dim)
    if not isinstance(src, Value):
        src = xp.zeros_like(xp.take_along(part, index, axis=dim)) + src  # for each place
    added = xp.untake_along(as_long(src, index), index, part, axis=dim)
    return x + (placed(added, x) if shorter_axes else added)


def along_axes(x: Tensor) -> Tensor:
    """Refuse a tensor without axes, which torch indexes as one of length 1."""
    if isinstance(x, Value) and not x.ndim:  # type: ignore[attr-defined]
        raise TypeError("an index into a tensor without axes")
    return x


def index_select(x: Tensor, dim: int, index: Any) -> Tensor:
    x = as_tensor(along_axes(x), index)
    return taken_from_front(x, index, operator.index(dim))


def taken_from_front(x: Tensor, index: Any, axis: int) -> Tensor:
    """Return slices at indices that do not count from the end, as in torch and TensorFlow."""
    if isinstance(index, Value):
        return transposes.take_at(x, as_places(x, index), axis=axis)
    numbers = np.asarray(index)
    if numbers.size and numbers.min() < 0:
        raise TypeError(f"the index {numbers.min()}, which lies outside: none counts from the end")
    if numbers.ndim > 1:
        return transposes.take_at(x, as_places(x, index), axis=axis)
    return xp.take(x, index, axis)


def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    scaled_source = source if isinstance(alpha, int) and alpha == 1 else source * alpha
    places = as_places(along_axes(x), index)
    return x + transposes.untake_at(scaled_source, places, x, axis=operator.index(dim))


def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return put_slices(along_axes(x), as_places(x, index), source, operator.index(dim))


def index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    front = from_front(as_places(x, index), along_axes(x), operator.index(dim))
    return put_slices(x, front, value, operator.index(dim))


def one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    if operator.index(num_classes) < 0:
        raise TypeError("one_hot without num_classes, whose shape depends on the values")
    hot = xp.one_hot(x, operator.index(num_classes))  # only its shape is read
    winners = transposes.last_put(xp.expand_dims(cast(x, INT64), -1), cast(hot, INT64), axis=-1)
    return cast(winners >= 0, INT64)


def np_take(
    a: Tensor, indices: Any, axis: Any = None, out: None = None, mode: str = "raise"
) -> Tensor:
    if out is not None:
        raise TypeError("take with out in fourth place; write out=")
    if axis is None:
        a, axis = xp.reshape(a, -1), 0
    # NumPy subtracts one length at a time in this mode: for large indices, as in a proof, it runs
    # for hours.
    if mode == "wrap":
        raise TypeError("take in the mode 'wrap'; write np.take(x, indices % length, axis)")
    return xp.take(a, indices, axis) if mode == "raise" else take_in_mode(a, indices, axis, mode)


def np_put_along_axis(x: Tensor, indices: Tensor, values: Any, axis: Any) -> None:
    # In place; nothing is returned.
    if axis is None:
        raise TypeError("put_along_axis without an axis")
    result = xp.put_along_axis(x, broadcast(x, as_places(x, indices), axis)[1], values, axis)
    x.update(result)


def segment_sum(data: Tensor, segment_ids: Any, num_segments: int) -> Tensor:
    """Return the sums of slices with the same id; those with an id out of range are dropped."""
    trace = data.trace if isinstance(data, Value) else segment_ids.trace
    data, ids = trace.value(lift(trace, data)), as_places(data, segment_ids)
    count = operator.index(num_segments)
    if count < 0:
        raise TypeError(f"num_segments={count}, which must not be negative")
    shape = shape_of(data)[len(shape_of(ids)) :]
    zeros = xp.broadcast_to(xp.sum(xp.zeros_like(data)), (count, *shape))  # of data's dtype
    return transposes.untake_inside(data, ids, zeros, axis=0) if count else zeros


def columns(x: Tensor, indices: Any) -> list[Any]:
    places = as_places(x, indices)
    return [places[..., i] for i in range(shape_of(places)[-1])]


METHODS: dict[str, Handler] = handlers_by_name(
    {
        __name__: """
            argmax; argmin; argsort; gather; index_add; index_copy; index_fill; index_select;
            kthvalue; scatter; scatter_add; take_along_dim
        """,
    }
)
FUNCTIONS: dict[Any, Handler] = {
    np.argmax: argmax,
    np.argmin: argmin,
    np.put_along_axis: np_put_along_axis,
}
