"""Windows and convolutions of `xg.xp`; see `all.py`."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from ...graph import ops
from ..trace import Value, apply

Tensor = Any
Steps = int | Sequence[int]

__all__ = ["conv", "windows"]


def conv(x: Tensor, w: Tensor, strides: Steps = 1, dilations: Steps = 1, groups: int = 1) -> Tensor:
    """Sums of products of kernels with windows of x; `pad` adds borders.

    Examples:
        >>> x, kernel = np.array([[[1.0, 2.0, 4.0]]]), np.array([[[1.0, -1.0]]])
        >>> xp.conv(x, kernel)
        array([[[-1., -2.]]])

    Args:
        x: (batch, channels, *lengths).
        w: (out channels, channels / groups, *sizes); it is not flipped.
        strides: from one window to the next, one for all axes or one each.
        dilations: from one element of a window to the next.
        groups: of channels, which do not see each other.
    """
    # A VJP passes one stride per axis, since the ranks may be unknown there.
    axes = len(strides) if isinstance(strides, Sequence) else w.ndim - 2
    ranks = [rank for rank in (_rank(x), _rank(w)) if rank is not None]
    if axes < 1 or any(rank != axes + 2 for rank in ranks):
        raise TypeError(
            f"conv of tensors of {ranks} axes with {axes} strides; each has two axes more than that"
        )
    steps = {"strides": _each(strides, axes), "dilations": _each(dilations, axes)}
    return apply(ops.CONV, x, w, **steps, groups=_positive(groups))


def windows(x: Tensor, sizes: Steps, strides: Steps = 1, dilations: Steps = 1) -> Tensor:
    """Windows that slide over the last axes, as many as there are sizes: (..., *counts, *sizes).

    Examples:
        >>> xp.windows(np.array([1.0, 2.0, 3.0]), 2)
        array([[1., 2.],
               [2., 3.]])
    """
    sizes = tuple(map(_positive, sizes if isinstance(sizes, Sequence) else (sizes,)))
    axes = len(sizes)
    rank = _rank(x)
    if rank is not None and axes > rank:
        raise TypeError(f"windows of {axes} axes over a tensor of {rank}")
    steps = {"strides": _each(strides, axes), "dilations": _each(dilations, axes)}
    return apply(ops.WINDOWS, x, sizes=sizes, **steps)


def _rank(x: Tensor) -> int | None:
    # The rank of a symbol is checked when the op is called.
    return None if isinstance(x, Value) else x.ndim


def _each(given: Steps, axes: int) -> tuple[int, ...]:
    found = tuple(map(_positive, given if isinstance(given, Sequence) else (given,) * axes))
    if len(found) != axes:
        raise TypeError(f"{len(found)} strides or dilations for {axes} axes: {given}")
    return found


def _positive(n: Any) -> int:
    if index(n) < 1:
        raise TypeError(f"sizes, strides, dilations and groups are 1 or more, not {n}")
    return index(n)
