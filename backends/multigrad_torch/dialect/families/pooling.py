"""Torch's dialect, the places of what pooling has picked, `return_indices=True`, and what puts it
back there; see `table.py`.

A place counts through all of the last axes of the input, as if they were one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from multigrad.capture.meanings import arrays, places
from multigrad.capture.meanings.networks import convolutions
from multigrad.capture.meanings.networks.convolutions import lengths, per_axis
from multigrad.capture.meanings.parts import length, shape_of
from multigrad.graph.ir.types import INT64
from multigrad.trace.trace import cast_node, lift
from multigrad.trace.xp import all as xp

from .convolutions import pooling_of

Tensor = Any


def with_indices(axes: int) -> Callable[..., Any]:
    """Return the pooling of the last axes that gives places, too."""

    def record(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> tuple[Tensor, Tensor]:
        given = (kernel_size, stride, padding, dilation)
        sizes, strides, border, dilations = pooling_of(input, *given, ceil_mode, axes=axes)
        steps = (sizes, strides, dilations)
        seen = windows(input, border, -math.inf, steps)
        which = xp.argmax(seen, -1, keepdims=True)
        if any(map(any, border)):  # where all are -inf, the first that is no border
            inside = windows(xp.ones_like(input), border, 0.0, steps)
            is_least = xp.equal(xp.max(seen, -1, keepdims=True), -math.inf)
            which = xp.where(is_least, xp.argmax(inside, -1, keepdims=True), which)
        values = xp.squeeze(xp.take_along(seen, which, axis=-1), -1)
        within = constant(input, offsets(lengths(input, axes), sizes, dilations))
        found = xp.take(within, xp.squeeze(which, -1), 0)
        starts = [
            (np.arange(length(values, i - axes)) * step - before) * width
            for i, (step, (before, _), width) in enumerate(
                zip(strides, border, widths(lengths(input, axes)), strict=True)
            )
        ]
        for i, start in enumerate(starts):
            found = found + constant(input, start.reshape(-1, *(1,) * (axes - 1 - i)))
        return values, found

    record.__name__ = record.__qualname__ = f"max_pool{axes}d_with_indices"
    return record


def windows(x: Tensor, border: Any, fill: float, steps: tuple[Any, Any, Any]) -> Tensor:
    """Return the elements of each window along one axis."""
    return flat(xp.windows(convolutions.bordered(x, border, fill), *steps), len(steps[0]))


def flat(seen: Tensor, axes: int) -> Tensor:
    """Return windows whose last axes are made one."""
    shape = shape_of(seen)
    return xp.reshape(seen, (*shape[: len(shape) - axes], math.prod(shape[len(shape) - axes :])))


def widths(shape: Sequence[int]) -> list[int]:
    """Return by axis how many places one step along it is."""
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def offsets(shape: Sequence[int], sizes: Any, dilations: Any) -> np.ndarray[Any, Any]:
    """Return how far each element of a window is from its first."""
    found: Any = np.zeros((1,) * len(sizes), int)
    for i, (size, step, width) in enumerate(zip(sizes, dilations, widths(shape), strict=True)):
        along = np.arange(size) * step * width
        found = found + along.reshape(-1, *(1,) * (len(sizes) - 1 - i))
    return found.ravel()


def constant(like: Tensor, numbers: np.ndarray[Any, Any]) -> Tensor:
    """Return integers as a symbolic value."""
    return like.trace.value(cast_node(lift(like.trace, numbers), INT64))


def unpool(axes: int) -> Callable[..., Tensor]:
    """Return what puts elements where pooling has picked them, among zeros."""

    def record(
        input: Tensor,
        indices: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        output_size: Any = None,
    ) -> Tensor:
        sizes = per_axis(kernel_size, axes)
        strides = sizes if stride is None or stride in ([], ()) else per_axis(stride, axes)
        given = zip(lengths(input, axes), sizes, strides, per_axis(padding, axes), strict=True)
        shape = [(n - 1) * step + size - 2 * border for n, size, step, border in given]
        if output_size is not None:
            whole = [operator.index(n) for n in arrays.numbers((output_size,))]
            if len(whole) not in (axes, axes + 2):
                raise TypeError(f"unpooling to {len(whole)} lengths")
            shape = whole[-axes:]
        lead = shape_of(input)[:-axes]
        zeros = xp.broadcast_to(xp.sum(xp.zeros_like(input)), (*lead, math.prod(shape)))
        put = places.scatter(zeros, -1, flat(indices, axes), flat(input, axes))
        return xp.reshape(put, (*lead, *shape))

    record.__name__ = record.__qualname__ = f"max_unpool{axes}d"
    return record


ALIASES: dict[Any, Callable[..., Any]] = {
    torch.max_pool1d_with_indices: with_indices(1),
    **{getattr(F, f"max_pool{n}d_with_indices"): with_indices(n) for n in (1, 2, 3)},
    **{getattr(F, f"max_unpool{n}d"): unpool(n) for n in (1, 2, 3)},
}
