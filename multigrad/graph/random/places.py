"""Parts of a whole array: a key that knows which elements its shard draws, on any framework."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...errors import RuleValueError


class PlacedKey(NamedTuple):
    """A key by which a shard draws its part of what the whole array would draw.

    Attributes:
        key: the whole array's.
        start: where the shard's first element stands among all elements, row by row.
        whole: the whole array's shape.
    """

    key: Any
    start: Any
    whole: tuple[Any, ...]


def place(key: Any, starts: Sequence[Any], whole: Sequence[Any]) -> PlacedKey:
    """Place a key: a shard starts at `starts` of an array of shape `whole`."""
    start = sum(first * stride for first, stride in zip(starts, strides(whole), strict=True))
    return PlacedKey(key, start, tuple(whole))


def strides(shape: Sequence[Any]) -> list[Any]:
    """Give how many elements lie between neighbors along each axis of an array."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def split_axes(whole: Sequence[Any], shape: Sequence[Any]) -> int:
    """Return how many leading axes cut a part into runs of neighbors in the whole array."""
    check_axes(whole, len(shape))
    partial = (axis for axis in reversed(range(len(shape))) if shape[axis] != whole[axis])
    return next(partial, 0)


def check_axes(whole: Sequence[Any], number: int) -> None:
    """Raise where a key was placed for an array of other axes."""
    if len(whole) != number:
        raise RuleValueError(
            f"a key placed for a part of an array of shape {tuple(whole)} cannot draw for one of "
            f"{number} axes: place it for what is drawn"
        )
