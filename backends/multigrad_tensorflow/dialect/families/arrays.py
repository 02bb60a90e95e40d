"""TensorFlow's reductions, products, sorts and integer indices, in ops; see `table.py`.

A handler takes TensorFlow's own parameters in TensorFlow's order, without `name`; `table.py` fills
in the defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import index
from typing import Any

import numpy as np

from multigrad.capture.meanings import index_tensors, layers, places
from multigrad.capture.symbols.dtypes import is_of_16_bits, own_dtype
from multigrad.capture.symbols.symbols import SymbolicShape
from multigrad.graph.ir.types import T
from multigrad.trace.trace import Value, cast
from multigrad.trace.xp import all as xp
from multigrad.trace.xp import transposes
from multigrad.trace.xp.shapes import is_inside

from .shapes import TENSORFLOW, static

Tensor = Any
Handler = Callable[..., Any]


# --- reductions -----------------------------------------------------------------------------------
def reduce_prod(input_tensor: Any, axis: Any, keepdims: bool) -> Tensor:
    if isinstance(input_tensor, SymbolicShape):
        # the product of a shape is the number of elements
        return input_tensor.numel()
    return xp.prod(input_tensor, axis, keepdims)


def count_nonzero(input: Tensor, axis: Any, keepdims: Any, dtype: Any) -> Tensor:
    return cast(places.count_nonzero(input, axis, keepdims), dtype)


def moments(x: Tensor, axes: Any, shift: Any, keepdims: bool) -> tuple[Tensor, Tensor]:
    # `shift` is ignored, as in TensorFlow 2
    return xp.mean(x, axes, keepdims), xp.var(x, axes, 0, keepdims)


def l2_loss(t: Tensor) -> Tensor:
    return xp.sum(xp.square(t)) / 2


def norm(tensor: Tensor, ord: Any, axis: Any, keepdims: Any) -> Tensor:
    # a norm of matrices is left to TensorFlow's own trace
    if isinstance(axis, tuple | list) and len(axis) == 2:
        raise TypeError(f"norm of order {ord!r} over two axes, a matrix norm")
    return xp.norm(tensor, axis, keepdims, 2 if ord == "euclidean" else float(ord))


def clip_by_norm(t: Tensor, clip_norm: Any, axes: Any) -> Tensor:
    """Return t, scaled to the limit if its norm is larger; a negative limit counts as 0."""
    clip_norm = xp.maximum(clip_norm, 0.0)
    total = xp.sum(xp.square(t), axes, keepdims=True)
    is_some = xp.greater(total, 0)  # sqrt has no slope at 0
    length = xp.where(is_some, xp.sqrt(xp.where(is_some, total, 1.0)), total)
    return t * clip_norm / xp.maximum(length, clip_norm)


def softmax(logits: Tensor, axis: Any) -> Tensor:
    return xp.softmax(logits, -1 if axis is None else axis)


def log_softmax(logits: Tensor, axis: Any) -> Tensor:
    return xp.log_softmax(logits, -1 if axis is None else axis)


def softmax_cross_entropy(labels: Any, logits: Any, axis: int) -> Tensor:
    own = own_dtype(logits)
    # TensorFlow computes 16-bit logits in float32, and casts the labels too
    logits = cast(logits, "float32") if is_of_16_bits(logits) else logits
    labels = cast(labels, own_dtype(logits)) if own_dtype(labels) else labels
    loss = -xp.sum(xp.multiply(labels, xp.log_softmax(logits, axis)), axis)
    return cast(loss, own) if own else loss


# --- running along an axis ------------------------------------------------------------------------
def cumsum(x: Tensor, axis: Any, exclusive: bool, reverse: bool) -> Tensor:
    axis = index(axis)
    return xp.cumsum(moved(x, axis, reverse, 0.0) if exclusive else x, axis, reverse)


def cumulative_logsumexp(x: Tensor, axis: Any, exclusive: bool, reverse: bool) -> Tensor:
    axis = index(axis)
    start = moved(x, axis, reverse, -math.inf) if exclusive else x
    return xp.logcumsumexp(start, axis, reverse)


def cumprod(x: Tensor, axis: Any, exclusive: bool, reverse: bool) -> Tensor:
    axis = index(axis)
    start = moved(x, axis, reverse, 1.0) if exclusive else x
    if not reverse:
        return xp.cumprod(start, axis)
    return xp.flip(xp.cumprod(xp.flip(start, axis), axis), axis)


def moved(x: Tensor, axis: int, reverse: bool, fill: float) -> Tensor:
    """Return x shifted one place along an axis, away from the start of the cumulation."""
    last = xp.swapaxes(x, axis, -1)
    wider = xp.pad(last, ((0, 1) if reverse else (1, 0),), fill)
    kept = wider[..., 1:] if reverse else wider[..., :-1]
    return xp.swapaxes(kept, axis, -1)


def sort(values: Tensor, axis: Any, direction: str) -> Tensor:
    return xp.sort(values, index(axis), direction == "DESCENDING")


# --- products -------------------------------------------------------------------------------------
def matmul(
    a: Any,
    b: Any,
    transpose_a: bool,
    transpose_b: bool,
    adjoint_a: bool,
    adjoint_b: bool,
    a_is_sparse: bool,
    b_is_sparse: bool,
    output_type: Any,
    *ignored: Any,
) -> Tensor:
    left = flipped(a) if transpose_a or adjoint_a else a
    right = flipped(b) if transpose_b or adjoint_b else b
    product = xp.matmul(left, right)
    return product if output_type is None else cast(product, output_type)


def flipped(x: Any) -> Any:
    return xp.matrix_transpose(x) if isinstance(x, Value) else np.swapaxes(np.asarray(x), -2, -1)


# --- integer places -------------------------------------------------------------------------------


def argmax(input: Tensor, axis: Any, output_type: Any) -> Tensor:
    return cast(places.argmax(input, index(static(axis or 0))), output_type)


def argmin(input: Tensor, axis: Any, output_type: Any) -> Tensor:
    return cast(places.argmin(input, index(static(axis or 0))), output_type)


def argsort(values: Tensor, axis: Any, direction: str, stable: bool) -> Tensor:
    return places.argsort(values, index(static(axis)), direction == "DESCENDING")


def top_k(input: Tensor, k: Any, sorted: bool, index_type: Any) -> places.Extremes:
    return places.topk(input, index(static(k)))


def gather(params: Any, indices: Any, validate_indices: Any, axis: Any, batch_dims: Any) -> Tensor:
    batch = index(static(batch_dims))
    over = batch if axis is None else index(static(axis))
    if batch == 0:
        if not isinstance(indices, Value):
            indices = np.asarray(indices if hasattr(indices, "shape") else static(indices))
        return places.taken_from_front(places.as_tensor(params, indices), indices, over)
    if over != batch or batch < 0:
        raise TypeError("gather with batch_dims along another axis than the next one")
    params = places.as_tensor(params, indices)
    at = places.as_places(params, indices)
    if at.ndim not in (batch, batch + 1):
        raise TypeError("gather with batch_dims and several axes of indices")
    single = at.ndim == batch
    at = xp.expand_dims(at, batch) if single else at
    for _ in range(params.ndim - at.ndim):
        at = xp.expand_dims(at, -1)
    taken = transposes.take_along(*places.broadcast(params, at, batch), axis=batch)
    return xp.squeeze(taken, batch) if single else taken


def gather_nd(params: Tensor, indices: Any, batch_dims: Any, bad_indices_policy: str) -> Tensor:
    if index(static(batch_dims)):
        raise TypeError("gather_nd with batch_dims")
    params = places.as_tensor(params, indices)
    outside = "inside" if bad_indices_policy == "IGNORE" else "refused"
    return index_tensors.taken(params, places.columns(params, indices), outside, from_end=False)


def one_hot(
    indices: Tensor, depth: Any, on_value: Any, off_value: Any, axis: Any, dtype: Any
) -> Tensor:
    hot = xp.one_hot(indices, index(static(depth)), -1 if axis is None else index(static(axis)))
    if on_value is None and off_value is None:
        return cast(hot, T if dtype is None else dtype)
    return xp.where(hot, 1 if on_value is None else on_value, 0 if off_value is None else off_value)


def scatter_nd(indices: Any, updates: Tensor, shape: Any) -> Tensor:
    lengths = tuple(index(n) for n in static(shape))
    updates = places.as_tensor(updates, indices)
    zeros = xp.broadcast_to(xp.sum(xp.zeros_like(updates)), lengths)
    return scatter_nd_add(zeros, indices, updates)


def scatter_nd_add(tensor: Tensor, indices: Any, updates: Any) -> Tensor:
    return written(index_tensors.added, tensor, indices, updates)


def scatter_nd_update(tensor: Tensor, indices: Any, updates: Any) -> Tensor:
    return written(index_tensors.put, tensor, indices, updates)


def written(write: Handler, tensor: Tensor, indices: Any, updates: Any) -> Tensor:
    x = places.as_tensor(tensor, updates if isinstance(updates, Value) else indices)
    return write(x, places.columns(x, indices), updates, "refused", from_end=False)


def segment_sum(data: Tensor, segment_ids: Any, num_segments: Any) -> Tensor:
    return places.segment_sum(data, segment_ids, index(static(num_segments)))


def sparse_cross_entropy(labels: Any, logits: Tensor) -> Tensor:
    logs = xp.log_softmax(places.as_tensor(logits, labels), -1)
    at = places.as_places(logs, labels)
    # TensorFlow raises for a label outside; a graph that cannot raise gives NaN
    known = xp.where(is_inside(at, xp.dim(logs, -1)), 1.0, math.nan)
    return layers.of_class(logs, at, -1) * known


# These accept an open shape; all others fix the shape in the capture.
TAKES_SHAPES = (reduce_prod,)
NAMED = TENSORFLOW.called(
    {
        xp: """
            all: reduce_all; any: reduce_any; logsumexp: reduce_logsumexp; max: reduce_max; mean:
            reduce_mean; min: reduce_min; sum: reduce_sum; norm: math.reduce_euclidean_norm; std:
            math.reduce_std; var: math.reduce_variance; einsum(kwargs=)
        """
    }
)
ALIASES: dict[Any, Handler] = TENSORFLOW.taking_the_same(
    {
        __name__: """
            reduce_prod; math.count_nonzero; nn.moments; nn.l2_loss; norm;
            clip_by_norm; nn.softmax; nn.log_softmax; softmax_cross_entropy:
            nn.softmax_cross_entropy_with_logits; cumsum; math.cumprod;
            math.cumulative_logsumexp; sort; matmul; argmax; argmin; argsort; gather; gather_nd;
            math.top_k; one_hot; scatter_nd; scatter_nd_add: tensor_scatter_nd_add;
            scatter_nd_update: tensor_scatter_nd_update; segment_sum: math.unsorted_segment_sum;
            sparse_cross_entropy: nn.sparse_softmax_cross_entropy_with_logits
        """
    }
)
