"""Keras's dialect, parts, diagonals, neighbors, products and layers; see `dialect.py`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from multigrad.capture import diagonals, layers, neighbors, numpy_parts, parts, products
from multigrad.tracing import xp_all as xp

from .dialect_elementwise import taking

Tensor = Any
Handler = Callable[..., Any]


def stacked(function: Handler) -> Handler:
    """Return a function of a sequence, which Keras calls `xs`."""

    def call(xs: Sequence[Tensor]) -> Tensor:
        return function(xs)

    call.__name__ = function.__name__
    return call


def split(x: Tensor, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    return [*parts.split(x, indices_or_sections, axis)]


def array_split(x: Tensor, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    return [*parts.array_split(x, indices_or_sections, axis)]


def unstack(x: Tensor, num: int | None = None, axis: int = 0) -> list[Tensor]:
    count = parts.length(x, axis) if num is None else operator.index(num)
    return [xp.take(x, i, axis) for i in range(count)]


def meshgrid(*x: Tensor, indexing: str = "xy") -> list[Tensor]:
    return [*parts.meshgrid(*x, indexing=indexing)]


def rot90(array: Tensor, k: int = 1, axes: Any = (0, 1)) -> Tensor:
    return parts.rot90(array, k, axes)


def diag(x: Tensor, k: int = 0) -> Tensor:
    return diagonals.diag(x, k)


def diagflat(x: Tensor, k: int = 0) -> Tensor:
    return diagonals.diagflat(x, k)


def diagonal(x: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    return diagonals.diagonal(x, offset, axis1, axis2)


def trace(x: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    return diagonals.trace(x, offset, axis1, axis2)


def average(x: Tensor, axis: Any = None, weights: Any = None) -> Tensor:
    return numpy_parts.average(x, axis, weights)


def cross(x1: Tensor, x2: Tensor, axisa: int = -1, axisb: int = -1, axisc: int = -1,
          axis: int | None = None) -> Tensor:  # fmt: skip
    return numpy_parts.cross(x1, x2, axisa, axisb, axisc, axis=axis)


def ptp(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return numpy_parts.ptp(x, axis, keepdims=keepdims)


def batch_normalization(x: Tensor, mean: Any, variance: Any, axis: int, offset: Any = None,
                        scale: Any = None, epsilon: float = 1e-3) -> Tensor:  # fmt: skip
    return layers.batch_norm(x, mean, variance, scale, offset, eps=epsilon, axis=axis)


PARTS: dict[str, Handler] = {
    **{f.__name__: f for f in (split, array_split, unstack, meshgrid, rot90, parts.expand_dims)},
    **{f.__name__: f for f in (diag, diagflat, diagonal, trace, average, ptp)},
    "diff": neighbors.diff,
    "trapezoid": neighbors.trapezoid,
    "hstack": stacked(parts.hstack),
    "vstack": stacked(parts.vstack),
    "dstack": stacked(parts.dstack),
    **taking("x1 x2 axis", {"append": parts.append}),
}
PRODUCTS: dict[str, Handler] = {
    "cross": cross,
    **taking("x1 x2", {"inner": products.inner, "kron": diagonals.kron}),
    **taking("x1 x2 axes", {"tensordot": products.tensordot}),
}
OPS: dict[str, Handler] = {**PARTS, **PRODUCTS, "batch_normalization": batch_normalization}
