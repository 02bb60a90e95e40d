"""Fourier transforms, windows, convolutions and polygamma of `xg.xp`; see `all.py`.

A complex tensor is a pair of its real and imaginary part, with the cotangents of two real tensors:
as a complex number, (of the real part) + i (of the imaginary part), as in torch and TensorFlow;
JAX's is its conjugate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import Any

from ....core import ops
from ....core.trace.trace import Value, apply
from ....core.trace.xp.arrays import dim, zeros_like
from ....core.trace.xp.ops import digamma
from .shapes import along, concatenate, getitem, pad, stack
from .transposes import packed_fft

Tensor = Any
Axes = int | Sequence[int] | None
Parts = tuple[Tensor, Tensor]
Steps = int | Sequence[int]

__all__ = ["conv", "fft", "ifft", "irfft", "polygamma", "rfft", "windows"]


def fft(
    real: Tensor, imag: Tensor, n: Axes = None, axes: Axes = -1, norm: str = "backward"
) -> Parts:
    """The real and imaginary parts of the discrete Fourier transform, along one axis or several.

    Examples:
        >>> real, imag = xp.fft(np.array([1.0, 0.0, 0.0, 1.0]), np.zeros(4))
        >>> real, np.abs(imag)
        (array([2., 1., 0., 1.]), array([0., 1., 0., 1.]))

    Args:
        n: lengths to which the axes are cut, or filled up with zeros.
        norm: "backward", the inverse is divided by the number of elements; "ortho", both are
            divided by its root; "forward".

    Raises:
        ValueError: another norm, or an axis without elements.
    """
    return _transformed(real, imag, n, axes, norm, inverse=False)


def ifft(
    real: Tensor, imag: Tensor, n: Axes = None, axes: Axes = -1, norm: str = "backward"
) -> Parts:
    """The inverse of `fft`.

    Examples:
        >>> real, imag = xp.ifft(np.array([2.0, 0.0]), np.zeros(2))
        >>> real
        array([1., 1.])
    """
    return _transformed(real, imag, n, axes, norm, inverse=True)


def rfft(x: Tensor, n: Axes = None, axes: Axes = -1, norm: str = "backward") -> Parts:
    """The parts of the transform of real numbers, for frequencies from 0 up along the last of the
    axes: the others are their conjugates.

    Examples:
        >>> real, imag = xp.rfft(np.array([1.0, 2.0, 3.0, 2.0]))
        >>> real
        array([ 8., -2.,  0.])
    """
    places, lengths = _axes_of(x, n, axes)
    parts = _transformed(x, zeros_like(x), lengths, places, norm, inverse=False)
    half = slice(0, lengths[-1] // 2 + 1)
    real, imag = (getitem(part, along(part, half, places[-1])) for part in parts)
    return real, imag


def irfft(
    real: Tensor, imag: Tensor, n: Axes = None, axes: Axes = -1, norm: str = "backward"
) -> Tensor:
    """The inverse of `rfft`: real numbers, 2 (m - 1) along the last of the axes where no length is
    given. The imaginary part at frequency 0, and at the highest of an even length, is not read.

    Examples:
        >>> xp.irfft(np.array([8.0, -2.0, 0.0]), np.zeros(3))
        array([1., 2., 3., 2.])
    """
    places, lengths = _axes_of(real, n, axes)
    axis = places[-1]
    if n is None:
        lengths = (*lengths[:-1], 2 * (lengths[-1] - 1))
    if lengths[-1] < 1:
        raise ValueError(f"irfft of length {lengths[-1]}; give n")
    half = lengths[-1] // 2 + 1
    re, im = (_doubled(_of_length(x, axis, half), axis, lengths[-1]) for x in (real, imag))
    return _transformed(re, im, lengths, places, norm, inverse=True)[0]


def _doubled(x: Tensor, axis: int, length: int) -> Tensor:
    # All but the first frequency, and the last of an even length, also represent their conjugates.
    end = (length + 1) // 2
    constant_part, inner = (getitem(x, along(x, slice(*ends), axis)) for ends in ((0, 1), (1, end)))
    pieces = [constant_part, 2.0 * inner]
    if length % 2 == 0:
        pieces.append(getitem(x, along(x, slice(end, None), axis)))
    return concatenate(pieces, axis)


def _transformed(
    real: Tensor, imag: Tensor, n: Axes, axes: Axes, norm: str, *, inverse: bool
) -> Parts:
    places, lengths = _axes_of(real, n, axes)
    if n is not None:
        for axis, length in zip(places, lengths, strict=True):
            real, imag = (_of_length(part, axis, length) for part in (real, imag))
    pack = packed_fft(
        stack([real, imag], -1), axes=tuple(axis - 1 for axis in places), inverse=inverse
    )
    parts = getitem(pack, (..., 0)), getitem(pack, (..., 1))
    divisor = _divisor(norm, math.prod(lengths), inverse)
    return parts if divisor == 1 else (parts[0] / divisor, parts[1] / divisor)


def _divisor(norm: str | None, count: int, inverse: bool) -> float:
    if norm == "ortho":
        return math.sqrt(count)
    if norm not in (None, "backward", "forward"):
        raise ValueError(f"norm={norm!r}; 'backward', 'ortho' and 'forward' are known")
    return float(count) if (norm == "forward") != inverse else 1.0


def _axes_of(x: Tensor, n: Axes, axes: Axes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    # The axes count from the end, so that they stay valid when parts are stacked in a new last
    # axis.
    if axes is None:
        count = x.ndim if n is None or isinstance(n, int) else len(n)
        axes = tuple(range(-count, 0))
    sequence = axes if isinstance(axes, Sequence) else (axes,)
    places = tuple(axis if axis < 0 else axis - x.ndim for axis in map(index, sequence))
    wanted_lengths = [None] * len(places) if n is None else [n] if isinstance(n, int) else list(n)
    if len(wanted_lengths) != len(places):
        raise ValueError(f"{len(wanted_lengths)} lengths for {len(places)} axes")
    lengths = tuple(
        index(dim(x, axis)) if length in (None, -1) else index(length)
        for axis, length in zip(places, wanted_lengths, strict=True)
    )
    if min(lengths, default=1) < 1:
        raise ValueError(f"a Fourier transform of the lengths {lengths}")
    return places, lengths


def _of_length(x: Tensor, axis: int, length: int) -> Tensor:
    count = index(dim(x, axis))
    if count >= length:
        return x if count == length else getitem(x, along(x, slice(0, length), axis))
    return pad(x, ((0, length - count), *((0, 0),) * (-axis - 1)))


# --- windows and convolutions ---------------------------------------------------------------------
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


def _each(steps: Steps, axes: int) -> tuple[int, ...]:
    numbers = tuple(map(_positive, steps if isinstance(steps, Sequence) else (steps,) * axes))
    if len(numbers) != axes:
        raise TypeError(f"{len(numbers)} strides or dilations for {axes} axes: {steps}")
    return numbers


def _positive(n: Any) -> int:
    if index(n) < 1:
        raise TypeError(f"sizes, strides, dilations and groups are 1 or more, not {n}")
    return index(n)


def polygamma(n: int, x: Tensor) -> Tensor:
    """The n-th derivative of digamma; for n above zero NaN where x is negative.

    Examples:
        >>> np.round(xp.polygamma(1, np.array([1.0, 2.0])), 4)
        array([1.6449, 0.6449])
    """
    return apply(ops.POLYGAMMA, x, n=int(n)) if n else digamma(x)
