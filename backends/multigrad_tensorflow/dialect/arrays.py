"""TensorFlow's shapes, reductions, products, sorts and integer indices, in ops; see `table.py`.

A handler takes TensorFlow's own parameters in TensorFlow's order, without `name`; `table.py` fills
in the defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from operator import index
from typing import Any

import numpy as np
import tensorflow as tf

from multigrad.core.ir.op import T
from multigrad.core.trace.trace import NeedsConcrete, Value, cast, known_shape
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.meanings import arrays, creation, layers, parts, places
from multigrad.engine.capture.name_tables import Library
from multigrad.engine.capture.symbols import SymbolicDType, SymbolicShape, is_of_16_bits, own_dtype
from multigrad.engine.trace.xp import transposes
from multigrad.engine.trace.xp.shapes import is_inside

Handler = Callable[..., Any]


class Shape(SymbolicShape):
    """The result of `tf.shape(x)`; to TensorFlow's own functions a tensor, which fixes it."""

    __slots__ = ()

    def _known(self) -> tuple[int, ...]:
        shape = known_shape(self.value)
        return super()._known() if shape is None else shape

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return np.asarray(self._known(), np.int32)

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> Any:
        return tf.constant(self._known(), dtype or tf.int32)


def size(input: Any) -> Any:
    return len(input) if isinstance(input, SymbolicShape) else xp.size(input)


# Parameters that are attributes of an op, which TensorFlow takes as tensors or arrays too.
STATIC = """
    axes axis batch_dims depth k multiples num_lower num_segments num_upper perm repeats shape shift
"""


def static(value: Any) -> Any:
    """Return integers as Python's, from a tensor or an array too."""
    if isinstance(value, tf.Tensor | tf.TensorShape):
        return value.numpy().tolist() if isinstance(value, tf.Tensor) else value.as_list()
    return value.tolist() if isinstance(value, np.ndarray | np.integer) else value


TENSORFLOW = Library(tf, values={**dict.fromkeys(STATIC.split(), static), "keepdims": bool})


def squeeze(input: Value, axis: Any) -> Value:
    return xp.squeeze(input, None if axis == [] else axis)


def stack(values: Sequence[Any], axis: int) -> Any:
    # lengths of a shape stay a list of numbers
    if all(
        isinstance(v, int) or (isinstance(v, Value) and v.node.type.kind == "scalar")
        for v in values
    ):
        return list(values)
    return xp.stack(values, axis)


def slice_of(input_: Value, begin: Any, size: Any) -> Value:
    starts, lengths = static(begin), static(size)
    return xp.getitem(
        input_,
        tuple(
            slice(start, None if n == -1 else start + n)
            for start, n in zip(starts, lengths, strict=True)
        ),
    )


def band_part(input: Value, num_lower: Any, num_upper: Any) -> Value:
    """Return a band around the diagonal; a negative width keeps that side whole."""
    lower, upper = index(num_lower), index(num_upper)
    band = input if lower < 0 else xp.triu(input, -lower)
    return band if upper < 0 else xp.tril(band, upper)


def bias_add(value: Value, bias: Any, data_format: Any) -> Value:
    if str(data_format).startswith("NC") and data_format != "N...C":
        raise TypeError(f"bias_add in data format {data_format!r}; add a bias of the right shape")
    return value + bias


# --- made from a shape -------------------------------------------------------------------------
def made(make: Handler, function: Handler, shape: Any, dtype: Any) -> Value:
    """Return a tensor like the one whose shape is given, or TensorFlow's own for known lengths."""
    if isinstance(shape, SymbolicShape):
        return make(shape.value, dtype)
    return function(lengths_of(shape), known_dtype(dtype))


zeros, ones = partial(made, creation.zeros, tf.zeros), partial(made, creation.ones, tf.ones)


def known_dtype(dtype: Any) -> Any:
    """Return a dtype for a constant tensor, which must match the tensors that it meets."""
    if isinstance(dtype, SymbolicDType):
        raise NeedsConcrete("dtype")
    return dtype


def fill(dims: Any, value: Any) -> Value:
    if isinstance(dims, SymbolicShape):
        return xp.full_like(dims.value, value)
    lengths = lengths_of(dims)
    return xp.broadcast_to(value, lengths) if isinstance(value, Value) else tf.fill(lengths, value)


def lengths_of(shape: Any) -> Any:
    lengths = static(shape)
    return tuple(map(index, lengths)) if isinstance(lengths, list | tuple) else index(lengths)


def range_of(start: Any, limit: Any, delta: Any, dtype: Any) -> Any:
    # a constant, so symbolic lengths are fixed
    return tf.range(*(creation.length(n) for n in (start, limit, delta)), dtype=known_dtype(dtype))


def eye(num_rows: Any, num_columns: Any, batch_shape: Any, dtype: Any) -> Any:
    columns = None if num_columns is None else creation.length(num_columns)
    return tf.eye(creation.length(num_rows), columns, batch_shape, known_dtype(dtype))


def linspace(start: Any, stop: Any, num: Any, axis: int) -> Any:
    if isinstance(start, Value) or isinstance(stop, Value):
        raise TypeError("linspace from or to a tensor; of numbers it is known")
    return tf.linspace(start, stop, creation.length(num), axis=axis)


def uniform(shape: Any, minval: Any, maxval: Any, dtype: Any, seed: Any) -> Value:
    if not isinstance(dtype, SymbolicDType) and tf.as_dtype(dtype).is_integer:
        raise TypeError("a uniform draw of integers; floor a draw of floats")
    return creation.uniform(shape, minval, 1 if maxval is None else maxval, seed=seed)


# --- reductions -----------------------------------------------------------------------------------
def reduce_prod(input_tensor: Any, axis: Any, keepdims: bool) -> Value:
    if isinstance(input_tensor, SymbolicShape):
        # the product of a shape is the number of elements
        return input_tensor.numel()
    return xp.prod(input_tensor, axis, keepdims)


def count_nonzero(input: Value, axis: Any, keepdims: Any, dtype: Any) -> Value:
    return cast(places.count_nonzero(input, axis, keepdims), dtype)


def moments(x: Value, axes: Any, keepdims: bool) -> tuple[Value, Value]:
    return xp.mean(x, axes, keepdims), xp.var(x, axes, 0, keepdims)


def l2_loss(t: Value) -> Value:
    return xp.sum(xp.square(t)) / 2


def norm(tensor: Value, ord: Any, axis: Any, keepdims: Any) -> Value:
    # a norm of matrices is left to TensorFlow's own trace
    if isinstance(axis, tuple | list) and len(axis) == 2:
        raise TypeError(f"norm of order {ord!r} over two axes, a matrix norm")
    return xp.norm(tensor, axis, keepdims, 2 if ord == "euclidean" else float(ord))


def clip_by_norm(t: Value, clip_norm: Any, axes: Any) -> Value:
    """Return t, scaled to the limit if its norm is larger; a negative limit counts as 0."""
    clip_norm = xp.maximum(clip_norm, 0.0)
    total = xp.sum(xp.square(t), axes, keepdims=True)
    is_nonzero = xp.greater(total, 0)  # sqrt has no slope at 0
    length = xp.where(is_nonzero, xp.sqrt(xp.where(is_nonzero, total, 1.0)), total)
    return t * clip_norm / xp.maximum(length, clip_norm)


def softmax(logits: Value, axis: Any) -> Value:
    return xp.softmax(logits, -1 if axis is None else axis)


def log_softmax(logits: Value, axis: Any) -> Value:
    return xp.log_softmax(logits, -1 if axis is None else axis)


def softmax_cross_entropy(labels: Any, logits: Any, axis: int) -> Value:
    dtype = own_dtype(logits)
    # TensorFlow computes 16-bit logits in float32, and casts the labels too
    logits = cast(logits, "float32") if is_of_16_bits(logits) else logits
    labels = cast(labels, own_dtype(logits)) if own_dtype(labels) else labels
    loss = -xp.sum(xp.multiply(labels, xp.log_softmax(logits, axis)), axis)
    return cast(loss, dtype) if dtype else loss


def cumsum(x: Value, axis: Any, exclusive: bool, reverse: bool) -> Value:
    axis = index(axis)
    return xp.cumsum(moved(x, axis, reverse, 0.0) if exclusive else x, axis, reverse)


def cumulative_logsumexp(x: Value, axis: Any, exclusive: bool, reverse: bool) -> Value:
    axis = index(axis)
    start = moved(x, axis, reverse, -math.inf) if exclusive else x
    return xp.logcumsumexp(start, axis, reverse)


def cumprod(x: Value, axis: Any, exclusive: bool, reverse: bool) -> Value:
    axis = index(axis)
    start = moved(x, axis, reverse, 1.0) if exclusive else x
    if not reverse:
        return xp.cumprod(start, axis)
    return xp.flip(xp.cumprod(xp.flip(start, axis), axis), axis)


def moved(x: Value, axis: int, reverse: bool, fill: float) -> Value:
    """Return x shifted one place along an axis, away from the start of the cumulation."""
    rows = xp.swapaxes(x, axis, -1)
    wider = xp.pad(rows, ((0, 1) if reverse else (1, 0),), fill)
    result = wider[..., 1:] if reverse else wider[..., :-1]
    return xp.swapaxes(result, axis, -1)


def sort(values: Value, axis: Any, direction: str) -> Value:
    return xp.sort(values, index(axis), direction == "DESCENDING")


def matmul(
    a: Any,
    b: Any,
    transpose_a: bool,
    transpose_b: bool,
    adjoint_a: bool,
    adjoint_b: bool,
    output_type: Any,
) -> Value:
    left = flipped(a) if transpose_a or adjoint_a else a
    right = flipped(b) if transpose_b or adjoint_b else b
    product = xp.matmul(left, right)
    return product if output_type is None else cast(product, output_type)


def flipped(x: Any) -> Any:
    return xp.matrix_transpose(x) if isinstance(x, Value) else np.swapaxes(np.asarray(x), -2, -1)


# --- integer places -------------------------------------------------------------------------------


def argmax(input: Value, axis: Any, output_type: Any) -> Value:
    return cast(places.argmax(input, index(axis or 0)), output_type)


def argmin(input: Value, axis: Any, output_type: Any) -> Value:
    return cast(places.argmin(input, index(axis or 0)), output_type)


def argsort(values: Value, axis: Any, direction: str) -> Value:
    return places.argsort(values, index(axis), direction == "DESCENDING")


def gather(params: Any, indices: Any, axis: Any, batch_dims: Any) -> Value:
    batch = index(batch_dims)
    place = batch if axis is None else index(axis)
    if batch == 0:
        if not isinstance(indices, Value):
            indices = np.asarray(indices if hasattr(indices, "shape") else static(indices))
        return places.taken_from_front(places.as_tensor(params, indices), indices, place)
    if place != batch or batch < 0:
        raise TypeError("gather with batch_dims along another axis than the next one")
    params = places.as_tensor(params, indices)
    positions = places.as_places(params, indices)
    if positions.ndim not in (batch, batch + 1):
        raise TypeError("gather with batch_dims and several axes of indices")
    is_single = positions.ndim == batch
    positions = xp.expand_dims(positions, batch) if is_single else positions
    for _ in range(params.ndim - positions.ndim):
        positions = xp.expand_dims(positions, -1)
    elements = transposes.take_along(*places.broadcast(params, positions, batch), axis=batch)
    return xp.squeeze(elements, batch) if is_single else elements


def gather_nd(params: Value, indices: Any, bad_indices_policy: str) -> Value:
    params = places.as_tensor(params, indices)
    outside = "inside" if bad_indices_policy == "IGNORE" else "refused"
    return parts.taken(params, places.columns(params, indices), outside, from_end=False)


def one_hot(
    indices: Value, depth: Any, on_value: Any, off_value: Any, axis: Any, dtype: Any
) -> Value:
    hot = xp.one_hot(indices, index(depth), -1 if axis is None else index(axis))
    if on_value is None and off_value is None:
        return cast(hot, T if dtype is None else dtype)
    return xp.where(hot, 1 if on_value is None else on_value, 0 if off_value is None else off_value)


def scatter_nd(indices: Any, updates: Value, shape: Any) -> Value:
    lengths = tuple(map(index, shape))
    updates = places.as_tensor(updates, indices)
    base = xp.broadcast_to(xp.sum(xp.zeros_like(updates)), lengths)
    return scatter_nd_add(base, indices, updates)


def scatter_nd_add(tensor: Value, indices: Any, updates: Any) -> Value:
    return written(parts.added, tensor, indices, updates)


def scatter_nd_update(tensor: Value, indices: Any, updates: Any) -> Value:
    return written(parts.put, tensor, indices, updates)


def written(write: Handler, tensor: Value, indices: Any, updates: Any) -> Value:
    x = places.as_tensor(tensor, updates if isinstance(updates, Value) else indices)
    return write(x, places.columns(x, indices), updates, "refused", from_end=False)


def sparse_cross_entropy(labels: Any, logits: Value) -> Value:
    logs = xp.log_softmax(places.as_tensor(logits, labels), -1)
    positions = places.as_places(logs, labels)
    # TensorFlow raises for a label outside; a graph that cannot raise gives NaN
    mask = xp.where(is_inside(positions, xp.dim(logs, -1)), 1.0, math.nan)
    return layers.of_class(logs, positions, -1) * mask


# These accept an open shape; all others fix the shape in the capture.
TAKES_SHAPES = (
    arrays.expand, arrays.reshape, creation.normal, fill, ones, reduce_prod, size, uniform, zeros,
)  # fmt: skip
ALIASES: dict[Any, Handler] = TENSORFLOW.called(
    {
        xp: """
            matrix_transpose: linalg.matrix_transpose linalg.adjoint; flip: reverse; roll; tile;
            repeat; concatenate: concat; expand_dims; all: reduce_all; any: reduce_any; logsumexp:
            reduce_logsumexp; max: reduce_max; mean: reduce_mean; min: reduce_min; sum: reduce_sum;
            norm: math.reduce_euclidean_norm; std: math.reduce_std; var: math.reduce_variance;
            permute_dims: transpose(perm=axes); einsum(kwargs=)
        """,
        arrays: "expand: broadcast_to; reshape",
        creation: "random.normal(dtype=)",
        parts: "rank",
        places: """
            segment_sum: math.unsorted_segment_sum; topk: math.top_k(sorted=, index_type=)
        """,
        __name__: """
            Shape: shape(out_type=); size(out_type=); squeeze; stack; slice_of: slice;
            linalg.band_part; nn.bias_add; zeros; ones; fill; range_of: range; eye; linspace;
            random.uniform; reduce_prod; math.count_nonzero;
            nn.moments(shift=); nn.l2_loss; norm; clip_by_norm; nn.softmax; nn.log_softmax;
            softmax_cross_entropy: nn.softmax_cross_entropy_with_logits; cumsum; math.cumprod;
            math.cumulative_logsumexp; sort; matmul(a_is_sparse=, b_is_sparse=, grad_a=, grad_b=);
            argmax; argmin; argsort(stable=); gather(validate_indices=); gather_nd; one_hot;
            scatter_nd; scatter_nd_add: tensor_scatter_nd_add; scatter_nd_update:
            tensor_scatter_nd_update;
            sparse_cross_entropy: nn.sparse_softmax_cross_entropy_with_logits
        """,
    }
)
