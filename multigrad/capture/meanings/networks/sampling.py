"""Pictures at other places: resized along their axes, and sampled where a grid says.

Both are made of the elements that are read and their weights, so that a derivative comes by itself,
and NaN reaches what reads it and no more. x is (batch, channels, *lengths), as in PyTorch; lengths
are fixed in the capture.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....graph.ir.types import INT64
from ....trace.trace import cast
from ....trace.xp import all as xp
from ..parts import rank, shape_of
from .convolutions import lengths

Tensor = Any
Numbers = np.ndarray[Any, Any]
Taps = list[tuple[Tensor, Any]]  # places along an axis, as floats, and their weights
MOST_TAKEN = 8  # where an element is made of more, all are multiplied by a matrix


# --- resizing -------------------------------------------------------------------------------------
def resized(x: Tensor, axis: int, length: int, resize: Callable[[Numbers], Any]) -> Tensor:
    """x with another length along an axis.

    Args:
        axis: counted from the end.
        resize: what the library makes along the last axis of float64: the weights are what it makes
            of an identity; what an element reads, that which NaN in its place makes NaN.
    """
    unit = np.eye(length)
    weights = np.asarray(resize(unit), np.float64)
    with np.errstate(invalid="ignore"):
        reads = np.isnan(np.asarray(resize(np.where(unit, np.nan, 0.0)), np.float64))
    most = int(reads.sum(0).max(initial=0))
    if most > MOST_TAKEN:
        moved = xp.matmul(xp.moveaxis(x, axis, -1), xp.cast_like(weights, x))
        return xp.moveaxis(moved, -1, axis)
    total: Any = None
    for places, shares in taps_of(weights, reads, most):
        part = xp.take(x, places, axis)
        if not np.all(shares == 1):
            part = part * xp.cast_like(shares.reshape(-1, *(1,) * (-axis - 1)), x)
        total = part if total is None else total + part
    return x if total is None else total


def taps_of(weights: Numbers, reads: Numbers, most: int) -> list[tuple[Numbers, Numbers]]:
    """Return, one after another, a place that each element reads, and its share of it; an element
    that reads fewer places reads its last in parts: a weight of zero would make NaN of infinity, as
    torch's own does in places.
    """
    places = np.zeros((most, reads.shape[1]), int)
    shares = np.zeros((most, reads.shape[1]))
    for i, column in enumerate(reads.T):
        found = np.flatnonzero(column)
        places[:, i] = [*found, *[found[-1]] * (most - len(found))]
        shares[: len(found), i] = weights[found, i]
        for k in range(len(found), most):
            shares[k - 1, i] /= 2
            shares[k, i] = shares[k - 1, i]
    return list(zip(places, shares, strict=True))


# --- sampling at a grid ---------------------------------------------------------------------------
def grid_sample(x: Tensor, grid: Tensor, mode: str, padding: str, align_corners: bool) -> Tensor:
    """The elements of x at the places of a grid, from -1 to 1, of which the first is that along the
    last axis.

    Raises:
        TypeError: another mode or padding, or axes that do not fit.
    """
    axes = rank(x) - 2
    if mode not in TAPS or padding not in ("zeros", "border", "reflection"):
        raise TypeError(f"grid_sample with mode={mode!r} and padding_mode={padding!r}")
    if rank(grid) != rank(x) or (mode == "bicubic" and axes != 2):
        raise TypeError(f"grid_sample by {mode!r} of {rank(x)} axes at {rank(grid)}")
    sizes = lengths(x, axes)
    along: list[Taps] = []
    for i, size in enumerate(sizes):
        place = xp.getitem(grid, (..., axes - 1 - i))
        along.append(
            TAPS[mode](unnormalized(place, size, align_corners), size, padding, align_corners)
        )
    lead, outer = shape_of(x)[:2], shape_of(grid)[1:-1]
    flat = xp.reshape(x, (*lead, math.prod(sizes)))
    total: Any = None
    for corner in itertools.product(*along):
        part = at_corner(flat, corner, sizes, (*lead, *outer))
        total = part if total is None else total + part
    return total


def at_corner(flat: Tensor, corner: Any, sizes: Sequence[int], shape: tuple[int, ...]) -> Tensor:
    """Return the elements at one place along each axis, zero outside, times their weights."""
    inside: Any = None
    weight: Any = None
    where: Any = 0.0
    for (place, share), size in zip(corner, sizes, strict=True):
        is_in = xp.logical_and(xp.greater_equal(place, 0), xp.less_equal(place, size - 1))
        inside = is_in if inside is None else xp.logical_and(inside, is_in)
        where = where * size + xp.where(is_in, xp.stop_gradient(place), 0.0)
        weight = share if weight is None or share is None else weight * share
    batch, channels, *outer = shape
    index = xp.reshape(cast(where, INT64), (batch, 1, math.prod(outer)))
    index = xp.broadcast_to(index, (batch, channels, math.prod(outer)))
    seen = xp.reshape(xp.take_along(flat, index, axis=-1), shape)
    seen = xp.where(xp.expand_dims(inside, 1), seen, 0.0)
    return seen if weight is None else seen * xp.expand_dims(weight, 1)


def unnormalized(place: Tensor, size: int, align_corners: bool) -> Tensor:
    if align_corners:
        return (place + 1) / 2 * (size - 1)
    return ((place + 1) * size - 1) / 2


def bounded(place: Tensor, size: int, padding: str, align_corners: bool) -> Tensor:
    """A place brought inside, as the padding says."""
    if padding == "zeros":
        return place
    if padding == "reflection":
        low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
        place = reflected(place, low, high - low)
    # At an end and beyond, and at NaN, there is no slope, as in torch.
    inside = xp.logical_and(xp.greater(place, 0), xp.less(place, size - 1))
    end = xp.where(xp.greater(place, 0), size - 1.0, 0.0)
    return xp.where(inside, place, end)


def reflected(place: Tensor, low: float, span: float) -> Tensor:
    if span == 0:
        return xp.zeros_like(place)
    far = xp.abs(place - low)
    turns = xp.floor(far / span)
    rest = xp.fmod(far, span)
    return low + xp.where(xp.equal(xp.fmod(turns, 2.0), 0), rest, span - rest)


def nearest(place: Tensor, size: int, padding: str, align_corners: bool) -> Taps:
    return [(xp.round(bounded(place, size, padding, align_corners)), None)]


def linear(place: Tensor, size: int, padding: str, align_corners: bool) -> Taps:
    place = bounded(place, size, padding, align_corners)
    first = xp.floor(place)
    rest = place - first
    return [(first, 1 - rest), (first + 1, rest)]


def cubic(place: Tensor, size: int, padding: str, align_corners: bool) -> Taps:
    """Keys, Cubic convolution interpolation, 1981, with a = -0.75."""
    first, a = xp.floor(place), -0.75
    t = place - first
    ahead, beyond, before = 1 - t, 2 - t, t + 1
    shares = (
        ((a * before - 5 * a) * before + 8 * a) * before - 4 * a,
        ((a + 2) * t - (a + 3)) * t * t + 1,
        ((a + 2) * ahead - (a + 3)) * ahead * ahead + 1,
        ((a * beyond - 5 * a) * beyond + 8 * a) * beyond - 4 * a,
    )
    places = (bounded(first + i, size, padding, align_corners) for i in (-1, 0, 1, 2))
    return list(zip(places, shares, strict=True))


TAPS: dict[str, Callable[..., Taps]] = {"nearest": nearest, "bilinear": linear, "bicubic": cubic}
