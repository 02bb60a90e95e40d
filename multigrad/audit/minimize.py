"""The smallest inputs that still break a law, for people to read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..look.runs import as_array
from ..look.subject import is_float_array

MOST_TRIES = 60  # audits of one law


def smallest(inputs: Sequence[Any], breaks: Callable[[Sequence[Any]], bool]) -> list[Any]:
    """Return inputs with fewer elements and rounder numbers that break what these do.

    Args:
        breaks: whether a law is broken with inputs.
    """
    best = [as_array(each) for each in inputs]
    tries = MOST_TRIES
    is_smaller = True
    while is_smaller and tries:
        is_smaller = False
        for candidate in _simpler(best):
            if not tries:
                break
            tries -= 1
            if breaks(candidate):
                best, is_smaller = candidate, True
                break
    return best


def _simpler(inputs: list[Any]) -> Iterator[list[Any]]:
    """Yield what is simpler, the largest steps first."""
    for axis in (0, -1):
        lengths = {x.shape[axis] for x in inputs if isinstance(x, np.ndarray) and x.ndim}
        if len(lengths) == 1 and max(lengths) > 1:
            length = max(lengths)
            for kept in (1, length // 2):
                if kept < length:
                    yield [_cut(x, axis, kept) for x in inputs]
    for place, x in enumerate(inputs):
        for simpler in _rounder(x) if isinstance(x, np.ndarray) and is_float_array(x) else ():
            if simpler.tobytes() != x.tobytes():
                yield [simpler if n == place else each for n, each in enumerate(inputs)]


def _cut(x: Any, axis: int, kept: int) -> Any:
    has_axes = isinstance(x, np.ndarray) and x.ndim
    return np.take(x, range(kept), axis=axis) if has_axes else x


def _rounder(x: Any) -> Iterator[Any]:
    """Yield an array of ones, of whole numbers, of numbers with one digit; of ones, none."""
    if np.all(x == 1):
        return
    yield np.ones_like(x)
    wide = x.astype(np.float64)
    for digits in (0, 1):
        yield np.round(wide, digits).astype(x.dtype)
