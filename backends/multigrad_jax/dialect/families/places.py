"""JAX's dialect, functions that give or take integer places; see `table.py`."""

from __future__ import annotations

import math
import operator
from typing import Any

import jax
import jax.numpy as jnp

from multigrad.capture.meanings import bits, extremes, places
from multigrad.graph.ir.types import T, is_float
from multigrad.trace.trace import Value, cast
from multigrad.trace.xp import all as xp

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
    """What lies outside is an error here where no value is named, which jax fills with NaN."""
    if axis is None:
        a, axis = xp.reshape(a, -1), 0
    if fills(mode, fill_value):
        indices = places.as_places(a, indices)
        at, is_inside = moved_inside(indices, xp.dim(a, axis))
        is_inside = beside_axes(is_inside, axis % a.ndim, a.ndim)
        return xp.where(is_inside, xp.take(a, at, axis), filling(a, fill_value))
    return xp.take(a, brought_inside(indices, a, axis, mode), axis)


def fills(mode: Any, fill_value: Any) -> bool:
    """Return whether a mode says what stands for elements that lie outside."""
    return mode == "fill" or (mode is None and fill_value is not None)


def moved_inside(indices: Tensor, length: Any) -> tuple[Tensor, Tensor]:
    """Return indices counted from the front and limited, and which of them lie inside."""
    indices = xp.where(indices < 0, indices + length, indices)
    return xp.clip(indices, 0, length - 1), (indices >= 0) & (indices < length)


def beside_axes(mask: Tensor, before: int, rank: int) -> Tensor:
    """Return what is known of indices in the shape of what is taken at them along an axis."""
    return xp.reshape(mask, (*mask.shape, *(1,) * (rank - 1 - before)))


def filling(x: Tensor, fill_value: Any) -> Any:
    """Return the number for elements that lie outside; NaN where none is named."""
    if fill_value is None and not is_float(x.node.type.dtype):
        raise TypeError("a place outside of integers or bools, which none is named for")
    return math.nan if fill_value is None else fill_value


def brought_inside(indices: Any, x: Tensor, axis: int, mode: Any) -> Any:
    if mode in (None, "promise_in_bounds"):
        return indices
    if mode not in ("clip", "wrap") or not isinstance(indices, Value):
        raise TypeError(f"take in the mode {mode!r}")
    length = xp.dim(x, axis)
    return xp.clip(indices, 0, length - 1) if mode == "clip" else xp.remainder(indices, length)


def take_along_axis(
    arr: Tensor, indices: Tensor, axis: Any = -1, mode: Any = None, fill_value: Any = None
) -> Tensor:
    if axis is not None and fills(mode, fill_value):
        at, is_inside = moved_inside(places.as_places(arr, indices), xp.dim(arr, axis))
        taken = places.take_along_dim(arr, at, axis)
        return xp.where(is_inside, taken, filling(arr, fill_value))
    if mode not in (None, "promise_in_bounds"):
        raise TypeError(f"take_along_axis in the mode {mode!r}")
    return places.take_along_dim(arr, indices, axis)


def put_along_axis(
    arr: Tensor, indices: Tensor, values: Any, axis: Any, inplace: bool = False, *, mode: Any = None
) -> Tensor:
    """Nothing is in place in jax, which asks for `inplace=False`."""
    if axis is None or mode is not None:
        raise TypeError("put_along_axis without an axis, or in a mode")
    both = places.broadcast(arr, places.as_places(arr, indices), axis)
    return xp.put_along_axis(*both, values, axis)


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
    if length is None:
        raise TypeError("bincount without a length, which depends on the values")
    ones = xp.ones_like(cast(x, T)) if weights is None else weights
    counts = places.segment_sum(ones, x, length)
    return cast(counts, "int64") if weights is None else counts


def segment_sum(
    data: Tensor, segment_ids: Any, num_segments: Any = None, *ignored: Any, **options: Any
) -> Tensor:
    if num_segments is None:
        raise TypeError("segment_sum without num_segments, which depend on the values")
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
