"""Linear maps of `xg.xp` that are more than one op: linear algebra, Fourier transforms, windows and
convolutions; see `all.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import Any

from ...graph import ops
from ..trace import Value, apply
from .arrays import dim, zeros_like
from .ops import eigvalsh, expand_dims, logabsdet, matmul, signdet, squeeze, svdvals
from .shapes import concatenate, getitem, matrix_transpose, pad, stack, triu
from .transposes import (
    lu_pivots,
    packed_eigh,
    packed_fft,
    packed_lu,
    packed_svd,
    part,
    qr_columns,
    solve_matrices,
    triangular_solve,
)

Tensor = Any

__all__ = [
    "conv", "eigh", "fft", "ifft", "irfft", "lu", "qr", "rfft", "slogdet", "solve",
    "solve_triangular", "svd", "windows",
]  # fmt: skip


def slogdet(x: Tensor) -> tuple[Tensor, Tensor]:
    """The signs of determinants, and the logarithms of their absolute values.

    Examples:
        >>> sign, log = xp.slogdet(np.array([[0.0, 2.0], [1.0, 0.0]]))
        >>> float(sign), round(float(log), 4)
        (-1.0, 0.6931)
    """
    return signdet(x), logabsdet(x)


def solve(a: Tensor, b: Tensor) -> Tensor:
    """The x of a x = b: of one vector, or of matrices in the last two axes.

    Examples:
        >>> xp.solve(np.array([[2.0, 0.0], [0.0, 4.0]]), np.array([2.0, 2.0]))
        array([1. , 0.5])
    """
    if b.ndim == 1:
        return squeeze(solve_matrices(a, expand_dims(b, -1)), -1)
    return solve_matrices(a, b)


def solve_triangular(
    a: Tensor,
    b: Tensor,
    *,
    lower: bool = False,
    transposed: bool = False,
    unit_diagonal: bool = False,
) -> Tensor:
    """The x of a x = b (`transposed`: of the transpose of a), of a one triangle being read.

    Examples:
        >>> a, b = np.array([[2.0, 0.0], [1.0, 1.0]]), np.array([[2.0], [3.0]])
        >>> xp.solve_triangular(a, b, lower=True)
        array([[1.],
               [2.]])
    """
    is_vector = b.ndim == 1
    columns = expand_dims(b, -1) if is_vector else b
    result = triangular_solve(
        a, columns, lower=bool(lower), transposed=bool(transposed), unit=bool(unit_diagonal)
    )
    return squeeze(result, -1) if is_vector else result


def lu(x: Tensor) -> tuple[Tensor, Tensor]:
    """The factors of matrices in other rows, l below the diagonal and u from it on, and pivots: the
    row with which each was exchanged in turn, from 0.

    Examples:
        >>> factors, pivots = xp.lu(np.array([[0.0, 2.0], [1.0, 0.0]]))
        >>> pivots
        array([1, 1])
    """
    return packed_lu(x), lu_pivots(x)


def svd(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """u, the singular values in descending order, and v transposed, of as many vectors as there are
    values; the signs of vectors are the backend's.

    Examples:
        >>> u, values, v = xp.svd(np.array([[3.0, 0.0], [0.0, 4.0]]))
        >>> values
        array([4., 3.])
    """
    packed = packed_svd(x)
    first = getitem(x, (..., slice(0, 1)))
    turned = getitem(x, (..., slice(0, 1), slice(None)))
    u = part(packed, first, 1, axis=-2)
    v = part(packed, matrix_transpose(turned), dim(x, -2) + 1, axis=-2)
    return u, svdvals(x), matrix_transpose(v)


def eigh(x: Tensor, *, lower: bool = True) -> tuple[Tensor, Tensor]:
    """Eigenvalues in ascending order, and vectors in columns, of symmetric matrices, of which one
    triangle is read; the signs of vectors are the backend's.

    Examples:
        >>> values, vectors = xp.eigh(np.array([[2.0, 1.0], [1.0, 2.0]]))
        >>> np.round(values, 4)
        array([1., 3.])
    """
    packed = packed_eigh(x, lower=bool(lower))
    return eigvalsh(x, lower=bool(lower)), getitem(packed, (..., slice(1, None), slice(None)))


def qr(x: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal columns q, and the upper triangle r, of which x is the product; the signs of
    columns are the backend's.

    Examples:
        >>> q, r = xp.qr(np.array([[3.0], [4.0]]))
        >>> np.round(np.abs(r), 4)
        array([[5.]])
    """
    q = qr_columns(x)
    return q, triu(matmul(matrix_transpose(q), x))


# --- Fourier transforms --------------------------------------------------------------------------
# A complex tensor is a pair of its real and imaginary part, with the cotangents of two real
# tensors: as a complex number, (of the real part) + i (of the imaginary part), as in torch and
# TensorFlow; JAX's is its conjugate.

Axes = int | Sequence[int] | None
Parts = tuple[Tensor, Tensor]


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
    found = _transformed(x, zeros_like(x), lengths, places, norm, inverse=False)
    half = slice(0, lengths[-1] // 2 + 1)
    real, imag = (getitem(part, _along(places[-1], half)) for part in found)
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
    last = places[-1]
    if n is None:
        lengths = (*lengths[:-1], 2 * (lengths[-1] - 1))
    if lengths[-1] < 1:
        raise ValueError(f"irfft of length {lengths[-1]}; give n")
    known = lengths[-1] // 2 + 1
    first, second = (_doubled(_of_length(x, last, known), last, lengths[-1]) for x in (real, imag))
    return _transformed(first, second, lengths, places, norm, inverse=True)[0]


def _doubled(x: Tensor, axis: int, length: int) -> Tensor:
    # All but the first frequency, and the last of an even length, also represent their conjugates.
    end = (length + 1) // 2
    pieces = [getitem(x, _along(axis, slice(0, 1))), 2.0 * getitem(x, _along(axis, slice(1, end)))]
    if length % 2 == 0:
        pieces.append(getitem(x, _along(axis, slice(end, None))))
    return concatenate(pieces, axis)


def _transformed(
    real: Tensor, imag: Tensor, n: Axes, axes: Axes, norm: str, *, inverse: bool
) -> Parts:
    places, lengths = _axes_of(real, n, axes)
    if n is not None:
        for axis, length in zip(places, lengths, strict=True):
            real, imag = (_of_length(part, axis, length) for part in (real, imag))
    packed = packed_fft(
        stack([real, imag], -1), axes=tuple(axis - 1 for axis in places), inverse=inverse
    )
    found = getitem(packed, (..., 0)), getitem(packed, (..., 1))
    divisor = _divisor(norm, math.prod(lengths), inverse)
    return found if divisor == 1 else (found[0] / divisor, found[1] / divisor)


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
    given = axes if isinstance(axes, Sequence) else (axes,)
    places = tuple(axis if axis < 0 else axis - x.ndim for axis in map(index, given))
    asked = [None] * len(places) if n is None else [n] if isinstance(n, int) else list(n)
    if len(asked) != len(places):
        raise ValueError(f"{len(asked)} lengths for {len(places)} axes")
    lengths = tuple(
        index(dim(x, axis)) if length in (None, -1) else index(length)
        for axis, length in zip(places, asked, strict=True)
    )
    if min(lengths, default=1) < 1:
        raise ValueError(f"a Fourier transform of the lengths {lengths}")
    return places, lengths


def _of_length(x: Tensor, axis: int, length: int) -> Tensor:
    own = index(dim(x, axis))
    if own >= length:
        return x if own == length else getitem(x, _along(axis, slice(0, length)))
    return pad(x, ((0, length - own), *((0, 0),) * (-axis - 1)))


def _along(axis: int, item: slice) -> tuple[Any, ...]:
    return (..., item, *(slice(None),) * (-axis - 1))


# --- windows -------------------------------------------------------------------------------------

Steps = int | Sequence[int]


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
