"""JAX's dialect, functions that give or take integer places; see `table.py`."""

from __future__ import annotations

import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from multigrad.capture.meanings import bits, extremes, index_tensors, places
from multigrad.graph.ir.types import BOOL, T, is_float
from multigrad.trace.axes import known_shape
from multigrad.trace.trace import Value, cast
from multigrad.trace.xp import all as xp
from multigrad.trace.xp import indices as indices_of_xp
from multigrad.trace.xp import transposes
from multigrad.trace.xp.indices import from_front

from .arrays import JAX

Tensor = Any


def take(
    a: Tensor,
    indices: Any,
    axis: Any = None,
    out: None = None,
    mode: Any = None,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    fill_value: Any = None,
) -> Tensor:
    if axis is None:
        a, axis = xp.reshape(a, -1), 0
    if mode not in (None, "fill", "clip", "wrap"):
        raise TypeError(f"take in the mode {mode!r}")
    if lies_inside(a, indices, axis, mode):
        return xp.take(a, indices, axis)
    if mode in ("clip", "wrap"):
        return places.take_in_mode(a, indices, axis, mode)
    at = places.as_places(a, indices)
    at, axis = from_front(at, a, axis), axis % a.ndim
    is_inside = index_tensors.beside_axes(
        indices_of_xp.is_inside(at, xp.dim(a, axis)), a.ndim - 1 - axis
    )
    return xp.where(is_inside, transposes.take_inside(a, at, axis=axis), filling(a, fill_value))


def lies_inside(x: Tensor, indices: Any, axis: int, mode: Any) -> bool:
    """Return whether indices are constants that lie inside as far as is known."""
    if isinstance(indices, Value) or np.ndim(indices) > 1:
        return False
    shape, known = known_shape(x), np.asarray(indices)
    if not known.size or known.dtype.kind not in "iu":
        return True
    length = np.inf if shape is None else shape[axis]
    least = 0 if mode in ("clip", "wrap") else -length
    return bool(least <= known.min() and known.max() < length)


def filling(x: Tensor, fill_value: Any) -> Any:
    """Return the number for elements that lie outside; where none is named, NaN, True, or the
    integer that is farthest from zero.
    """
    dtype = x.node.type.dtype
    if fill_value is not None or is_float(x.node.type):
        return math.nan if fill_value is None else fill_value
    if dtype == BOOL:
        return True
    limits = jnp.iinfo(dtype)
    return int(limits.min) or int(limits.max)


def take_along_axis(
    arr: Tensor, indices: Tensor, axis: Any = -1, mode: Any = None, fill_value: Any = None
) -> Tensor:
    if axis is None:
        arr, axis, indices = xp.reshape(arr, -1), 0, xp.reshape(places.as_places(arr, indices), -1)
    at = places.as_places(arr, indices)
    front = at if mode == "promise_in_bounds" else from_front(at, arr, axis)
    both = places.broadcast(arr, index_tensors.limited(front, arr, axis), axis)
    taken = transposes.take_along(*both, axis=axis)
    if mode == "clip":
        return taken
    is_inside = indices_of_xp.is_inside(front, xp.dim(arr, axis))
    if mode == "promise_in_bounds":  # no gradient goes back to the nearest one
        return xp.where(is_inside, taken, xp.stop_gradient(taken))
    if mode not in (None, "fill"):
        raise TypeError(f"take_along_axis in the mode {mode!r}")
    return xp.where(is_inside, taken, filling(arr, fill_value))


def put_along_axis(
    arr: Tensor, indices: Tensor, values: Any, axis: Any, inplace: bool = False, *, mode: Any = None
) -> Tensor:
    """Nothing is in place in jax, which asks for `inplace=False`."""
    if axis is None or mode not in (None, "fill", "drop", "clip"):
        raise TypeError("put_along_axis without an axis, or in a mode")
    arr, at = places.broadcast(arr, places.as_places(arr, indices), axis)
    at = from_front(at, arr, axis)
    if mode == "clip":
        at = index_tensors.limited(at, arr, axis)
    return indices_of_xp.put_along(arr, at, values, axis, "clip" if mode == "clip" else "inside")


def top_k(operand: Tensor, k: int, *, axis: int = -1) -> list[Tensor]:
    return list(extremes.topk(operand, k, axis))


def lax_argmax(operand: Tensor, axis: int, index_dtype: Any) -> Tensor:
    return cast(xp.argmax(operand, axis), index_dtype)


def lax_argmin(operand: Tensor, axis: int, index_dtype: Any) -> Tensor:
    return cast(xp.argmin(operand, axis), index_dtype)


def one_hot(x: Tensor, num_classes: Any, *, dtype: Any = None, axis: int = -1) -> Tensor:
    hot = xp.one_hot(x, operator.index(num_classes), axis)
    return cast(hot, T if dtype is None else dtype)


def bincount(x: Tensor, weights: Any = None, minlength: int = 0, *, length: Any = None) -> Tensor:
    """A negative number counts as 0, one beyond the length not at all."""
    if length is None:
        raise TypeError("bincount without a length, which depends on the values")
    ones = xp.ones_like(cast(x, T)) if weights is None else weights
    counts = places.segment_sum(ones, xp.maximum(places.as_places(x, x), 0), length)
    return cast(counts, "int64") if weights is None else counts


def segment_sum(
    data: Tensor,
    segment_ids: Any,
    num_segments: Any = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: Any = None,
    mode: Any = None,
) -> Tensor:
    if num_segments is None:
        raise TypeError("segment_sum without num_segments, which depend on the values")
    if mode == "clip":
        ids = places.as_places(data, segment_ids)
        segment_ids = xp.minimum(xp.maximum(ids, 0), operator.index(num_segments) - 1)
    elif mode not in (None, "fill", "drop"):
        raise TypeError(f"segment_sum in the mode {mode!r}")
    return places.segment_sum(data, segment_ids, num_segments)


ALIASES: dict[Any, Any] = {
    **JAX.called({places: "argmax; argmin; argsort"}),
    **JAX.taking_the_same(
        {
            __name__: """
                take; take_along_axis; put_along_axis; bincount; lax.top_k; lax_argmax: lax.argmax;
                lax_argmin: lax.argmin; nn.one_hot
            """,
            bits: "packbits; unpackbits",
        }
    ),
    jax.ops.segment_sum: segment_sum,
}
METHODS: dict[str, Any] = {
    name: ALIASES[getattr(jnp, name)] for name in ("argmax", "argmin", "argsort", "take")
}
