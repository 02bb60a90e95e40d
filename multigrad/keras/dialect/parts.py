"""Keras's dialect, parts, diagonals, neighbors, products and layers; see `table.py`."""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

import keras

from multigrad.capture.dialects import numpy_parts
from multigrad.capture.meanings import diagonals, neighbors, parts, products
from multigrad.capture.meanings.networks import layers
from multigrad.capture.symbols.dtypes import own_dtype
from multigrad.graph.ir.types import BOOL, WHOLE
from multigrad.trace.trace import cast
from multigrad.trace.xp import all as xp

from .asked import stacks_vectors, subtracts_ends
from .elementwise import KERAS, of_floats

Tensor = Any
Handler = Callable[..., Any]


def split(x: Tensor, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    return [*parts.split(x, indices_or_sections, axis)]


def array_split(x: Tensor, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    return [*parts.array_split(x, indices_or_sections, axis)]


def unstack(x: Tensor, num: int | None = None, axis: int = 0) -> list[Tensor]:
    count = parts.length(x, axis)
    if num is not None and operator.index(num) != count:
        raise TypeError(f"unstack into {num} of {count}")
    return [xp.take(x, i, axis) for i in range(count)]


def meshgrid(*x: Tensor, indexing: str = "xy") -> list[Tensor]:
    return [*parts.meshgrid(*x, indexing=indexing)]


def trapezoid(y: Tensor, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Tensor:
    y = cast(y, keras.config.floatx()) if own_dtype(y) == BOOL else y
    if {own_dtype(y), own_dtype(x)} & {*WHOLE}:
        raise TypeError("integers, which wrap in some of Keras's backends: cast to a float first")
    if x is None and subtracts_ends():
        return neighbors.trapezoid_less_ends(y, dx, axis)
    return neighbors.trapezoid(y, x, dx, axis)


def hstack(xs: Any) -> Tensor:
    return parts.hstack(listed(xs))


def vstack(xs: Any) -> Tensor:
    return parts.vstack(listed(xs)) if stacks_vectors() else xp.concatenate(listed(xs), 0)


def listed(xs: Any) -> Any:
    """Refuse a tensor whose first axis would stand for a list: Keras's backends part."""
    if not isinstance(xs, list | tuple):
        raise TypeError("a tensor instead of a list of tensors")
    return xs


WRITTEN = (split, array_split, unstack, meshgrid, trapezoid, hstack, vstack)
OPS: dict[str, Handler] = {f.__name__: f for f in WRITTEN}
inner, tensordot = of_floats(products.inner), of_floats(products.tensordot)
NAMED = KERAS.called(
    {
        diagonals: "diag; diagflat; diagonal; kron; trace",
        layers: "batch_norm: batch_normalization(offset=shift)",
        neighbors: "diff",
        numpy_parts: "average; cross; ptp",
        parts: "append; dstack; expand_dims; rot90",
        sys.modules[__name__]: "inner; tensordot",
    }
)
