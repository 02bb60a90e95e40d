"""Convolutions and pooling under the names that libraries give them, composed from the ops.

Here x is (batch, channels, *lengths) and kernels are (out channels, channels of a group, *sizes),
as in PyTorch; dialects with channels at the end move them. Lengths that borders depend on are fixed
in the capture.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....trace.xp import all as xp
from ..arrays import cut
from ..parts import length, rank, shape_of

Tensor = Any
Ints = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]


def per_axis(given: Any, axes: int) -> Ints:
    """Return a number for each axis, of one number or of a sequence of them."""
    if isinstance(given, list | tuple | np.ndarray):
        numbers = tuple(operator.index(n) for n in given)
        return numbers * axes if len(numbers) == 1 else numbers
    return (operator.index(given),) * axes


def lengths(x: Tensor, axes: int) -> Ints:
    return tuple(length(x, axis) for axis in range(-axes, 0))


def reach(sizes: Ints, dilations: Ints) -> Ints:
    """How many elements a window spans."""
    return tuple(d * (k - 1) + 1 for k, d in zip(sizes, dilations, strict=True))


def same_border(x: Tensor, sizes: Ints, strides: Ints, dilations: Ints) -> Pairs:
    """The border with which windows by strides are as many as elements by strides."""
    pairs = []
    spans = reach(sizes, dilations)
    for n, span, step in zip(lengths(x, len(sizes)), spans, strides, strict=True):
        total = max((math.ceil(n / step) - 1) * step + span - n, 0)
        pairs.append((total // 2, total - total // 2))
    return tuple(pairs)


def bordered(x: Tensor, pairs: Pairs, fill: float = 0.0) -> Tensor:
    """x with a border; a negative width cuts."""
    if any(width < 0 for pair in pairs for width in pair):
        cuts = tuple(slice(max(-a, 0), -max(-b, 0) or None) for a, b in pairs)
        x = xp.getitem(x, (..., *cuts))
        pairs = tuple((max(a, 0), max(b, 0)) for a, b in pairs)
    return xp.pad(x, pairs, fill) if any(map(any, pairs)) else x


# --- convolutions ---------------------------------------------------------------------------------
def convolution(
    x: Tensor,
    kernels: Tensor,
    bias: Any = None,
    *,
    strides: Ints,
    border: Pairs | str,
    dilations: Ints,
    groups: int = 1,
) -> Tensor:
    """Sums of products of kernels with windows, plus a bias per channel.

    Args:
        border: pairs, "same" (see `same_border`) or "valid" (none).
    """
    if border == "valid":
        border = ()
    elif border == "same":
        border = same_border(x, lengths(kernels, len(strides)), strides, dilations)
    elif isinstance(border, str):
        raise TypeError(f"a convolution with padding {border!r}; 'same' and 'valid' are known")
    seen = bordered(x, border)
    return biased(xp.conv(seen, kernels, strides, dilations, groups), bias)


def biased(x: Tensor, bias: Any) -> Tensor:
    if bias is None:
        return x
    return xp.add(x, xp.reshape(bias, (-1, *(1,) * (rank(x) - 2))))


def transposed(
    x: Tensor,
    kernels: Tensor,
    bias: Any = None,
    *,
    strides: Ints,
    border: Pairs,
    dilations: Ints,
    groups: int = 1,
    more: Ints | None = None,
) -> Tensor:
    """What a convolution's cotangent becomes: each element spreads the kernels.

    Args:
        kernels: (channels of x, out channels of a group, *sizes).
        border: what is cut away, as pairs; a negative width adds.
        more: elements at the end that no kernel reaches.
    """
    axes = len(strides)
    more = more or (0,) * axes
    spans = reach(lengths(kernels, axes), dilations)
    whole = tuple(
        (n - 1) * step + span + extra
        for n, step, span, extra in zip(lengths(x, axes), strides, spans, more, strict=True)
    )
    channels = length(kernels, 1) * groups
    corner = xp.getitem(x, (slice(None), *(slice(1),) * (1 + axes)))
    like = xp.tile(xp.zeros_like(corner), (1, channels, *whole))
    steps = {"strides": strides, "dilations": dilations}
    result = xp.conv_left(x, kernels, like, **steps, groups=groups)
    return biased(bordered(result, tuple((-a, -b) for a, b in border)), bias)


def spread(x: Tensor, steps: Ints) -> Tensor:
    """x with step - 1 zeros between its elements along each of the last axes."""
    for i, step in enumerate(steps):
        if step > 1:
            axis, shape = rank(x) - len(steps) + i, shape_of(x)
            borders = ((0, step - 1), *((0, 0),) * (rank(x) - 1 - axis))
            apart = xp.pad(xp.expand_dims(x, axis + 1), borders)
            whole = (*shape[:axis], shape[axis] * step, *shape[axis + 1 :])
            x = cut(xp.reshape(apart, whole), axis, 0, (shape[axis] - 1) * step + 1)
    return x


# --- pooling --------------------------------------------------------------------------------------
def max_pool(x: Tensor, sizes: Ints, strides: Ints, border: Pairs, dilations: Ints) -> Tensor:
    """The largest of each window; its gradient goes to the first of equal ones, in rows."""
    seen = xp.windows(bordered(x, border, -math.inf), sizes, strides, dilations)
    for _ in sizes:
        seen = first_largest(seen)
    return seen


def first_largest(x: Tensor) -> Tensor:
    places = xp.argmax(x, -1, keepdims=True)
    return xp.squeeze(xp.take_along_axis(x, places, -1), -1)


def mean_pool(
    x: Tensor, sizes: Ints, strides: Ints, border: Pairs, beyond: Pairs = (), counted: bool = True
) -> Tensor:
    """The mean of each window.

    Args:
        border: zeros around x.
        beyond: elements around these that never count.
        counted: whether the border counts.
    """
    over, ones = tuple(range(-len(sizes), 0)), (1,) * len(sizes)
    seen = xp.windows(bordered(bordered(x, border), beyond), sizes, strides, ones)
    if not any(map(any, beyond)) and (counted or not any(map(any, border))):
        return xp.mean(seen, over)
    whole = xp.ones_like(cut(cut(x, 0, 0, 1), 1, 0, 1))
    marks = bordered(bordered(whole, border, float(counted)), beyond)
    return xp.sum(seen, over) / xp.sum(xp.windows(marks, sizes, strides, ones), over)


def ceiling(x: Tensor, sizes: Ints, strides: Ints, border: Pairs, dilations: Ints) -> Pairs:
    """What is needed at the end so that a last window counts that begins within x or before it."""
    pairs = []
    spans = reach(sizes, dilations)
    for n, span, step, (before, after) in zip(
        lengths(x, len(sizes)), spans, strides, border, strict=True
    ):
        count = -((n + before + after - span) // -step) + 1
        count -= (count - 1) * step >= n + before
        pairs.append((0, max((count - 1) * step + span - n - before - after, 0)))
    return tuple(pairs)


def adaptive(x: Tensor, counts: Sequence[Any], reduce: Any) -> Tensor:
    """As many parts of each of the last axes as are asked for, each reduced to one element.

    Args:
        counts: by axis, None for as many as there are.
        reduce: `reduce(x)` takes the last axis away.
    """
    for i in range(len(counts)):
        axis, count = rank(x) - 1 - i, counts[-1 - i]
        n = length(x, axis)
        if count is None or count == n:
            continue
        parts = [
            reduce(xp.moveaxis(cut(x, axis, j * n // count, -((j + 1) * n // -count)), axis, -1))
            for j in range(count)
        ]
        x = xp.stack(parts, axis)
    return x


# --- layouts --------------------------------------------------------------------------------------
def channels_first(x: Tensor) -> Tensor:
    return xp.moveaxis(x, -1, 1)


def channels_last(x: Tensor) -> Tensor:
    return xp.moveaxis(x, 1, -1)


def out_channels_first(kernels: Tensor) -> Tensor:
    """(*sizes, channels, out channels) to (out channels, channels, *sizes)."""
    last = rank(kernels) - 1
    return xp.permute_dims(kernels, (last, last - 1, *range(last - 1)))


def by_channel(kernels: Tensor) -> Tensor:
    """(*sizes, channels, multiplier) to (channels * multiplier, 1, *sizes): each on its own."""
    *sizes, channels, times = shape_of(kernels)
    return out_channels_first(xp.reshape(kernels, (*sizes, 1, channels * times)))
