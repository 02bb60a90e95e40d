"""The meaning in ops of primitives that take or put elements at indices or in windows.

A gather or scatter of any form takes or puts elements of the flattened tensor, at places computed
here from the start of each window. A window outside is moved inside, filled or dropped, by its
mode. See `primitives.py` for the other primitives.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.lax import GatherScatterMode

from multigrad.core import ops
from multigrad.core.ir.op import BOOL, INT32
from multigrad.core.lowering.derivatives import accumulate_all
from multigrad.core.trace.trace import Value, cast
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.meanings import layers
from multigrad.engine.trace.xp import transposes
from multigrad.engine.trace.xp.shapes import put_at

from .equations import EquationStep, Handler, Operand, Shape, Unknown, integers

Places = Any  # integers: an array that is known, or a value


def places_of(step: EquationStep, i: int) -> Places:
    """Return an operand of integers: as an array if its numbers are known, else as a value."""
    operand = step.operands[i]
    return operand.known if operand.known is not None else step.whole(i)


def clamped(places: Places, most: int) -> Places:
    if isinstance(places, Value):
        return xp.minimum(xp.maximum(places, 0), most)
    return np.clip(places, 0, most)


def plus(a: Places, b: Places) -> Places:
    return b + a if isinstance(b, Value) else a + b


def extreme(function: Callable[..., Any]) -> Handler:
    def handle(step: EquationStep) -> Operand:
        (axis,) = integers(step.params["axes"])
        x = step.whole()
        x = cast(x, INT32) if x.node.type.dtype == BOOL else x
        return step.result(cast(function(x, axis), INT32))

    return handle


def sort(step: EquationStep) -> list[Operand]:
    axis = step.params["dimension"]
    if len(step.operands) == 1:
        return [step.result(xp.sort(step.whole(), axis))]
    if step.params["num_keys"] != 1:
        raise Unknown("a sort by several keys")
    places = xp.argsort(step.whole(), axis)
    results = [transposes.take_along(step.whole(), places, axis=axis)]
    for i, operand in enumerate(step.operands[1:], start=1):
        # argsort is a sort with an iota operand
        if _counts(operand, step.shapes[i], axis):
            results.append(cast(places, INT32))
        else:
            results.append(transposes.take_along(step.whole_tensor(i), places, axis=axis))
    return [step.result(result) for result in results]


def _counts(operand: Operand, shape: Shape, axis: int) -> bool:
    # True of 0, 1, 2, ... along the axis.
    if operand.known is None or operand.known.dtype.kind not in "iu":
        return False
    places = np.broadcast_to(counting_along(shape[axis], axis, len(shape)), shape)
    return bool(np.array_equal(operand.known, places))


def top_k(step: EquationStep) -> list[Operand]:
    axis, k = step.params["axis"], step.params["k"]
    places = xp.argsort(step.whole(), axis, descending=True)
    top_places = xp.getitem(places, (*(slice(None),) * axis, slice(0, k)))
    values = transposes.take_along(step.whole(), top_places, axis=axis)
    return [step.result(values), step.result(cast(top_places, INT32))]


def strides_of(shape: Shape) -> list[int]:
    lengths = integers(shape)
    return [math.prod(lengths[i + 1 :]) for i in range(len(lengths))]


def counting_along(n: int, axis: int, rank: int) -> np.ndarray[Any, Any]:
    ones = [1] * rank
    ones[axis] = n
    return np.arange(n).reshape(ones)


def windows(
    indices: Places,
    *,
    shape: Shape,
    sizes: Sequence[int],
    result: Shape,
    offsets: Sequence[int],
    inserted: Sequence[int],
    start_map: Sequence[int],
    batches: Sequence[tuple[int, int]],
    moves: bool,
) -> tuple[Places, Places | None]:
    """Return the places of windows in the flattened tensor, and which are inside; None: all are.

    Args:
        indices: the starts; the last axis has those of one window.
        shape: that of the tensor.
        sizes: those of a window, 1 along an inserted or batch axis.
        result: the shape of the places.
        offsets: the axes of the result along which windows extend.
        inserted: the axes of the tensor that windows lack.
        start_map: the axes of the tensor that the starts index.
        batches: matching axes of the tensor and the indices.
        moves: whether a window outside is moved inside.
    """
    lengths, rank, strides = integers(shape), len(result), strides_of(shape)
    index_axes = [axis for axis in range(rank) if axis not in offsets]
    window_axes = [d for d in range(len(lengths)) if d not in (*inserted, *(d for d, _ in batches))]
    places: Any = np.zeros((1,) * rank, np.int64)
    for d, axis in zip(window_axes, offsets, strict=True):
        places = places + strides[d] * counting_along(sizes[d], axis, rank)
    for d, i in batches:
        places = places + strides[d] * counting_along(lengths[d], index_axes[i], rank)
    mask: Any = None
    index_shape = [1] * rank
    for axis in index_axes:
        index_shape[axis] = integers(result)[axis]
    for k, d in enumerate(start_map):
        start = (
            xp.reshape(xp.getitem(indices, (..., k)), index_shape)
            if isinstance(indices, Value)
            else indices[..., k].reshape(index_shape)
        )
        last_start = lengths[d] - sizes[d]
        if not moves:
            is_inside = (start >= 0) & (start <= last_start)
            mask = is_inside if mask is None else mask & is_inside
        places = plus(places, clamped(start, last_start) * strides[d])
    if isinstance(mask, np.ndarray) and mask.all():
        mask = None
    return places, mask


def _broadcast(places: Places, shape: Shape) -> Places:
    if isinstance(places, Value):
        return xp.broadcast_to(places, integers(shape))
    return np.broadcast_to(places, shape)


def take_flat(x: Value, places: Places) -> Value:
    return transposes.take_at(xp.reshape(x, -1), places, axis=0)


def gather(step: EquationStep) -> Operand:
    numbers, sizes = step.params["dimension_numbers"], step.params["slice_sizes"]
    row = _row(step, numbers, sizes)
    if row is not None:
        return row
    mode = GatherScatterMode.from_any(step.params["mode"])
    places, mask = windows(
        places_of(step, 1),
        shape=step.shapes[0],
        sizes=integers(sizes),
        result=step.shape,
        offsets=numbers.offset_dims,
        inserted=numbers.collapsed_slice_dims,
        start_map=numbers.start_index_map,
        batches=list(
            zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
        ),
        moves=mode is GatherScatterMode.CLIP,
    )
    x = step.whole_tensor(0)
    elements = take_flat(x, _broadcast(places, step.shape))
    if mask is None:
        return step.result(elements)
    # JAX reads the nearest one, which gets no gradient.
    if mode is GatherScatterMode.PROMISE_IN_BOUNDS:
        return step.result(xp.where(mask, elements, xp.stop_gradient(elements)))
    fill = step.params["fill_value"]
    if x.node.type.dtype == BOOL:
        raise Unknown("a gather of bools from outside")
    if fill is None:
        is_float = step.dtypes[0].kind not in "iu"
        fill = math.nan if is_float else int(np.iinfo(step.dtypes[0]).min)
    return step.result(xp.where(mask, elements, fill))


def _row(step: EquationStep, numbers: Any, sizes: Sequence[Any]) -> Operand | None:
    # A whole row or column at a known index, as `x[0]` in code with open lengths; None: another
    # gather.
    starts = step.operands[1].known
    if len(numbers.start_index_map) != 1 or numbers.collapsed_slice_dims != numbers.start_index_map:
        return None
    (axis,) = numbers.start_index_map
    other_sizes = [n for i, n in enumerate(sizes) if i != axis]
    if step.shapes[1] != (1,) or starts is None or int(starts.reshape(())) < 0:
        return None
    length = step.shapes[0][axis]
    if other_sizes != [n for i, n in enumerate(step.shapes[0]) if i != axis]:
        return None
    if isinstance(length, int) and int(starts.reshape(())) >= length:
        return None
    index = (*(slice(None),) * axis, int(starts.reshape(())))
    return step.result(xp.getitem(step.whole(), index))


def dynamic_slice(step: EquationStep) -> Operand:
    """Record a slice at any start; one that would end outside is moved inside, as in jax."""
    x, sizes = step.whole_tensor(0), integers(step.params["slice_sizes"])
    for axis, (length, size) in enumerate(zip(step.shapes[0], sizes, strict=True)):
        if size == length:
            continue
        start = clamped(places_of(step, 1 + axis), operator.index(length) - size)
        if isinstance(start, Value):
            x = transposes.take_at(x, xp.reshape(start, (1,)) + np.arange(size), axis=axis)
        else:
            window = slice(int(start), int(start) + size)
            x = xp.getitem(x, (*(slice(None),) * axis, window))
    return step.result(x)


def dynamic_update_slice(step: EquationStep) -> Operand:
    lengths, sizes = integers(step.shapes[0]), integers(step.shapes[1])
    strides, rank = strides_of(lengths), len(lengths)
    flat: Any = np.zeros((1,) * rank, np.int64)
    for axis, (length, size) in enumerate(zip(lengths, sizes, strict=True)):
        start = clamped(places_of(step, 2 + axis), length - size)
        if isinstance(start, Value):
            start = xp.reshape(start, (1,) * rank)
        flat = plus(flat, plus(start, counting_along(size, axis, rank)) * strides[axis])
    places = _flat_list(_broadcast(flat, sizes))
    x, updates = step.whole_tensor(0), step.whole_tensor(1)
    result = put_at(xp.reshape(x, -1), places, xp.reshape(updates, -1), 0)
    return step.result(xp.reshape(result, lengths))


def _flat_list(places: Places) -> Places:
    return xp.reshape(places, -1) if isinstance(places, Value) else places.reshape(-1)


def scatter(combine: Callable[[Value, Places, Value], Value]) -> Handler:
    """Return the handler of a scatter: (flat tensor, places, flat updates) -> flat result."""

    def handle(step: EquationStep) -> Operand:
        numbers, lengths = step.params["dimension_numbers"], integers(step.shapes[0])
        if not math.prod(lengths):  # which has no last place, and takes nothing
            return step.result(step.whole_tensor(0))
        jaxpr = step.params.get("update_jaxpr")
        if jaxpr is not None and len(jaxpr.eqns) > 1:
            raise Unknown("a scatter with a function of its own, as in x.at[i].apply")
        batches = numbers.operand_batching_dims
        window_axes = [
            d for d in range(len(lengths)) if d not in (*numbers.inserted_window_dims, *batches)
        ]
        sizes = [1] * len(lengths)
        for d, axis in zip(window_axes, numbers.update_window_dims, strict=True):
            sizes[d] = operator.index(step.shapes[2][axis])
        mode = GatherScatterMode.from_any(step.params["mode"])
        flat, mask = windows(
            places_of(step, 1),
            shape=lengths,
            sizes=sizes,
            result=step.shapes[2],
            offsets=numbers.update_window_dims,
            inserted=numbers.inserted_window_dims,
            start_map=numbers.scatter_dims_to_operand_dims,
            batches=list(zip(batches, numbers.scatter_indices_batching_dims, strict=True)),
            moves=mode is GatherScatterMode.CLIP,
        )
        size = math.prod(lengths)
        x = xp.reshape(step.whole_tensor(0), -1)
        if mask is not None:  # dropped updates go to an extra last place
            x = xp.concatenate([x, xp.zeros_like(xp.getitem(x, (slice(0, 1),)))], 0)
            flat = (
                np.where(mask, flat, size)
                if isinstance(flat, np.ndarray)
                else xp.where(mask, flat, size)
            )
        places = _flat_list(_broadcast(flat, step.shapes[2]))
        updates = xp.reshape(step.whole_tensor(2), -1)
        result = combine(x, places, updates)
        if mask is not None:
            result = xp.getitem(result, (slice(0, size),))
        return step.result(xp.reshape(result, lengths))

    return handle


def put(x: Value, places: Places, updates: Value) -> Value:
    return put_at(x, places, updates, 0)


def add(x: Value, places: Places, updates: Value) -> Value:
    return x + transposes.untake_at(updates, places, x, axis=0)


def computed(function: Callable[..., Value]) -> Callable[[Value, Places, Value], Value]:
    """Return a scatter of `function(old, update)` at known, distinct places."""

    def combine(x: Value, places: Places, updates: Value) -> Value:
        if isinstance(places, Value) or len(set(places.tolist())) != places.size:
            raise Unknown("a scatter by other than sums at places that may come twice")
        old_values = transposes.take_at(x, places, axis=0)
        return put_at(x, places, function(old_values, updates), 0)

    return combine


def pad(step: EquationStep) -> Operand:
    fill, config = step.operands[1], step.params["padding_config"]
    node = fill.value.node
    is_plain = all(low >= 0 and high >= 0 and not inner for low, high, inner in config)
    if is_plain and node.op is ops.CONST and not isinstance(node.attr("value"), bool):
        widths = tuple((int(low), int(high)) for low, high, _ in config)
        return step.result(xp.pad(step.whole(), widths, float(node.attr("value"))))
    lengths, result_shape = integers(step.shapes[0]), integers(step.shape)
    places = np.full(result_shape, -1)
    target, source = [], []
    for (low, _, inner), length, total in zip(config, lengths, result_shape, strict=True):
        positions = int(low) + np.arange(length) * (int(inner) + 1)
        is_inside = (positions >= 0) & (positions < total)
        target.append(positions[is_inside])
        source.append(np.arange(length)[is_inside])
    places[np.ix_(*target)] = np.arange(math.prod(lengths)).reshape(lengths)[np.ix_(*source)]
    if not places.size or not math.prod(lengths):
        if node.type.kind != "scalar":
            raise Unknown("a pad of nothing by what is no number")
        return step.result(step.scope.filled(fill.value, result_shape))
    picks = take_flat(step.whole_tensor(0), np.maximum(places, 0))
    return step.result(picks if (places >= 0).all() else xp.where(places >= 0, picks, fill.value))


# --- convolutions, poolings, their gradients ------------------------------------------------------
def border_of(step: EquationStep) -> layers.Pairs:
    pairs = map(integers, step.params["padding"])
    return tuple((before, after) for before, after in pairs)


def conv_general_dilated(step: EquationStep) -> Operand:
    params, numbers = step.params, step.params["dimension_numbers"]
    x, kernels = step.whole(0), step.whole(1)
    sum_dtype = params["preferred_element_type"]
    if sum_dtype is not None and sum_dtype != step.dtypes[0]:  # the sums have this dtype too
        x, kernels = (cast(each, step.scope.dtype_name(sum_dtype)) for each in (x, kernels))
    x, groups = xp.permute_dims(x, numbers.lhs_spec), params["feature_group_count"]
    if params["batch_group_count"] > 1:  # parts of the batch, each with kernels of its own
        groups = params["batch_group_count"]
        channels, *lengths = (step.shapes[0][axis] for axis in numbers.lhs_spec[1:])
        parts = xp.reshape(x, integers((groups, -1, channels, *lengths)))
        x = xp.reshape(xp.moveaxis(parts, 0, 1), integers((-1, groups * channels, *lengths)))
    result = layers.convolution(
        layers.spread(x, integers(params["lhs_dilation"])),
        xp.permute_dims(kernels, numbers.rhs_spec),
        strides=integers(params["window_strides"]),
        border=border_of(step),
        dilations=integers(params["rhs_dilation"]),
        groups=groups,
    )
    order = [numbers.out_spec.index(i) for i in range(len(numbers.out_spec))]
    return step.result(xp.permute_dims(result, order))


def windows_of(step: EquationStep) -> tuple[Any, ...]:
    params = step.params
    if set(params.get("base_dilation", ())) - {1}:
        raise Unknown("windows with base_dilation", lacks="windows with base_dilation")
    sizes, strides = integers(params["window_dimensions"]), integers(params["window_strides"])
    spacing = integers(params.get("window_dilation", (1,) * len(sizes)))
    return sizes, strides, border_of(step), spacing


def reduce_window(step: EquationStep, reduce: Callable[..., Value]) -> Operand:
    return step.result(reduce(step.whole(), *windows_of(step)))


def select_and_scatter_add(step: EquationStep) -> Operand:
    """Record the gradient of a pooling, from its cotangent and the pooled tensor."""
    pool = layers.max_pool if step.params["select_prim"] is jax.lax.ge_p else smallest
    x = step.whole_tensor(1)
    pooled = pool(x, *windows_of(step))
    seeds = [(pooled.node, step.whole_tensor())]
    return step.result(accumulate_all(step.scope.trace, seeds, [x.node])[0])


def smallest(x: Value, *windows: Any) -> Value:
    return xp.negative(layers.max_pool(xp.negative(x), *windows))


def summed(x: Value, sizes: Any, strides: Any, border: Any, spacing: Any) -> Value:
    parts = xp.windows(layers.bordered(x, border), sizes, strides, spacing)
    return xp.sum(parts, tuple(range(-len(sizes), 0)))


ARRAYS: dict[str, Handler] = {
    "argmax": extreme(xp.argmax),
    "argmin": extreme(xp.argmin),
    "conv_general_dilated": conv_general_dilated,
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update_slice,
    "gather": gather,
    "pad": pad,
    "reduce_window_max": partial(reduce_window, reduce=layers.max_pool),
    "reduce_window_min": partial(reduce_window, reduce=smallest),
    "reduce_window_sum": partial(reduce_window, reduce=summed),
    "scatter": scatter(put),
    "scatter-add": scatter(add),
    "scatter-max": scatter(computed(xp.maximum)),
    "scatter-min": scatter(computed(xp.minimum)),
    "scatter-mul": scatter(computed(xp.multiply)),
    "scatter_add": scatter(add),
    "select_and_scatter_add": select_and_scatter_add,
    "sort": sort,
    "top_k": top_k,
}
