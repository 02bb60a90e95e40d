"""What combines neighbors along an axis: differences, integrals, windows, borders."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from ...trace.trace import Value
from ...trace.xp import all as xp
from .arrays import at
from .parts import length, rank

Tensor = Any


def diff(a: Tensor, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Tensor:
    """Each element less the one before it, n times."""
    if prepend is not None or append is not None:
        before, after = (
            None if end is None else _border(end, a, axis) for end in (prepend, append)
        )
        a = xp.concatenate([part for part in (before, a, after) if part is not None], axis)
    for _ in range(n):
        a = xp.subtract(at(a, axis, slice(1, None)), at(a, axis, slice(None, -1)))
    return a


def _border(end: Any, x: Tensor, axis: int) -> Tensor:
    """Return what stands before or after x; a number is one such slice."""
    if rank(end):
        return end
    return xp.full_like(at(x, axis, slice(0, 1)), end)


def ediff1d(x: Tensor, to_end: Any = None, to_begin: Any = None) -> Tensor:
    if to_end is not None or to_begin is not None:
        raise TypeError("ediff1d with to_end or to_begin; concatenate them")
    return diff(xp.reshape(x, -1))


def trapezoid(y: Tensor, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Tensor:
    """The integral by the trapezoid rule."""
    return xp.sum(_trapezoids(y, x, dx, axis), axis)


def _trapezoids(y: Tensor, x: Any, dx: Any, axis: int) -> Tensor:
    width = dx
    if x is not None:
        is_line = rank(x) == 1
        width = diff(x, axis=0 if is_line else axis)
        if is_line and rank(y) > 1:
            after = -axis - 1 if axis < 0 else rank(y) - axis - 1
            width = xp.reshape(width, (-1, *(1,) * after))
    pair = xp.add(at(y, axis, slice(1, None)), at(y, axis, slice(None, -1)))
    return xp.divide(xp.multiply(width, pair), 2.0)


def windows(x: Tensor, axis: int, size: Any, step: Any = 1) -> Tensor:
    """Every window of a length along an axis, its elements along a new last axis."""
    if axis in (0, -1) and not rank(x):
        raise TypeError("windows of a tensor without axes")
    last = xp.moveaxis(x, axis, -1)
    seen = xp.windows(last, operator.index(size), operator.index(step))
    return xp.moveaxis(seen, -2, axis if axis >= 0 else axis - 1)


# --- borders --------------------------------------------------------------------------------------
def bordered(x: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    """x made longer along an axis by its own elements.

    Args:
        mode: "edge": the outermost; "reflect": those next to it, mirrored; "symmetric": mirrored
            with it; "wrap": those of the other end.
    """
    n = length(x, axis)
    most = {"edge": None, "reflect": n - 1, "symmetric": n, "wrap": n}[mode]
    if (most is not None and max(before, after) > most) or n == 0:
        raise TypeError(f"a border of {max(before, after)} in mode {mode!r} of {n} elements")
    parts = [x]
    if before:
        parts.insert(0, _left_border(x, axis, before, mode))
    if after:
        mirrored = _left_border(xp.flip(x, axis), axis, after, mode)
        parts.append(xp.flip(mirrored, axis))
    return xp.concatenate(parts, axis) if len(parts) > 1 else x


def _left_border(x: Tensor, axis: int, count: int, mode: str) -> Tensor:
    if mode == "wrap":
        return at(x, axis, slice(-count, None))
    if mode == "edge":
        return xp.repeat(at(x, axis, slice(0, 1)), count, axis)
    first = 1 if mode == "reflect" else 0
    return xp.flip(at(x, axis, slice(first, first + count)), axis)


BORDERS = ("edge", "reflect", "symmetric", "wrap")


def padded(
    x: Tensor, pairs: Sequence[Sequence[int]], mode: str = "constant", fill: Any = 0.0
) -> Tensor:
    """x with a border along its last axes, in (before, after) pairs; a negative width cuts.

    Args:
        mode: "constant", or one of `BORDERS`.
    """
    if isinstance(fill, Value):
        raise TypeError("pad by a number that is not known; use xp.concatenate")
    given = [(operator.index(before), operator.index(after)) for before, after in pairs]
    for i, (before, after) in enumerate(given):
        axis = i - len(given)
        if before < 0 or after < 0:
            x = at(x, axis, slice(max(-before, 0), -max(-after, 0) or None))
            given[i] = max(before, 0), max(after, 0)
        if mode != "constant" and given[i] != (0, 0):
            x = bordered(x, axis, *given[i], mode)
    if mode == "constant":
        return xp.pad(x, tuple(given), fill)
    return x
