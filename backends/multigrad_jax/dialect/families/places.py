"""JAX's dialect, functions that give or take integer places; see `table.py`."""

from __future__ import annotations

import math
import operator
from typing import Any

import jax.numpy as jnp
import numpy as np

from multigrad.capture.meanings import composites, index_tensors, places
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


def top_k(operand: Tensor, k: int, *, axis: int = -1) -> list[Tensor]:
    return list(places.topk(operand, k, axis))


def one_hot(x: Tensor, num_classes: Any, *, dtype: Any = None, axis: int = -1) -> Tensor:
    hot = xp.one_hot(x, operator.index(num_classes), axis)
    return cast(hot, T if dtype is None else dtype)


ALIASES: dict[Any, Any] = {
    **JAX.called({places: "argmax; argmin; argsort"}),
    **JAX.taking_the_same(
        {
            __name__: "take; take_along_axis; lax.top_k; nn.one_hot",
            composites: "packbits; unpackbits",
        }
    ),
}
METHODS: dict[str, Any] = {
    name: ALIASES[getattr(jnp, name)] for name in ("argmax", "argmin", "argsort", "take")
}
