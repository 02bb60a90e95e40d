"""TensorFlow's dialect, functions that give or take integer places; see `table.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import index
from typing import Any

import numpy as np

from multigrad.capture.meanings import index_tensors, layers, places
from multigrad.graph.ir.types import T
from multigrad.trace.trace import Value, cast
from multigrad.trace.xp import all as xp
from multigrad.trace.xp import indices, transposes

from .shapes import TENSORFLOW, static

Tensor = Any
Handler = Callable[..., Any]


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
    """NaN for a label outside where TensorFlow cannot raise."""
    logs = xp.log_softmax(places.as_tensor(logits, labels), -1)
    at = places.as_places(logs, labels)
    known = xp.where(indices.is_inside(at, xp.dim(logs, -1)), 1.0, math.nan)
    return layers.of_class(logs, at, -1) * known


ALIASES: dict[Any, Handler] = {
    **TENSORFLOW.taking_the_same(
        {
            __name__: """
                argmax; argmin; argsort; gather; gather_nd; math.top_k; one_hot; scatter_nd;
                scatter_nd_add: tensor_scatter_nd_add; scatter_nd_update: tensor_scatter_nd_update;
                segment_sum: math.unsorted_segment_sum; sparse_cross_entropy:
                nn.sparse_softmax_cross_entropy_with_logits
            """,
        }
    ),
}
