"""MLX's kernels of linear algebra, which run on the CPU, and of convolutions, each named after its
op.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from multigrad.backend import rows_of

from .elementwise import accumulated, widened

Tensor = Any

CPU: dict[str, Any] = {"stream": mx.cpu}  # the only device of these kernels


def mT(x: Tensor) -> Tensor:
    return mx.swapaxes(x, -1, -2)


@widened
def cholesky(x: Tensor) -> Tensor:
    if not x.size:
        return x
    # Only the lower triangle is read, as by the other backends.
    factor = mx.linalg.cholesky(mx.tril(x) + mT(mx.tril(x, -1)), **CPU)
    # If there is no factor, MLX returns an unfinished one, with a pivot that is not positive.
    succeeded = mx.all(mx.diagonal(factor, axis1=-2, axis2=-1) > 0, axis=-1)
    return mx.where(succeeded[..., None, None], factor, math.nan)


def is_of_nothing(x: Tensor) -> bool:
    # MLX divides by the number of rows and columns, which ends the process at 0.
    return 0 in x.shape[-2:]


def on_regular(solve: Callable[..., Tensor], a: Tensor, bad: Tensor, *more: Tensor) -> Tensor:
    """Return a solver's result, NaN for matrices for which it fails."""
    # For such a matrix MLX raises when it computes the result, and returns zeros when asked again:
    # it gets the identity instead.
    bad = bad[..., None, None]
    return mx.where(
        bad, math.nan, solve(mx.where(bad, mx.eye(a.shape[-1], dtype=a.dtype), a), *more)
    )


def has_zero(x: Tensor) -> Tensor:
    return mx.any(mx.diagonal(x, axis1=-2, axis2=-1) == 0, axis=-1)


def batched(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    batch = mx.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return tuple(mx.broadcast_to(m, (*batch, *m.shape[-2:])) for m in (a, b))


@widened
def triangular_solve(a: Tensor, b: Tensor, *, lower: bool, transposed: bool, unit: bool) -> Tensor:
    a = mx.tril(a) if lower else mx.triu(a)
    if unit:
        eye = mx.eye(a.shape[-1], dtype=a.dtype)
        a = a * (1 - eye) + eye
    a, b = batched(mT(a) if transposed else a, b)
    if not a.size:
        return b
    run = functools.partial(mx.linalg.solve_triangular, upper=lower == transposed, **CPU)
    return on_regular(run, a, has_zero(a), b)


@widened
def solve(a: Tensor, b: Tensor) -> Tensor:
    # MLX takes b with one axis less as vectors; here it is one matrix for all of a.
    a, b = batched(a, b.reshape((1,) * (a.ndim - b.ndim) + b.shape))
    if not a.size:
        return b
    # A matrix is singular if its LU factors have a zero on the diagonal.
    return on_regular(functools.partial(mx.linalg.solve, **CPU), a, has_zero(lu_parts(a)[0]), b)


@widened
def inv(x: Tensor) -> Tensor:
    if not x.size:
        return x
    return on_regular(functools.partial(mx.linalg.inv, **CPU), x, has_zero(lu_parts(x)[0]))


@widened
def pinv(x: Tensor, *, rtol: float, epsilons: float) -> Tensor:
    cutoff = max(rtol, epsilons * max(x.shape[-2:]) * mx.finfo(x.dtype).eps)
    u, s, vh = thin_svd(x)
    inverse = mx.where(s > cutoff * s[..., :1], 1 / s, 0)
    return mT(vh) @ (inverse[..., None] * mT(u))


@widened
def det(x: Tensor) -> Tensor:
    factors, sign = diagonal(x)
    return sign * mx.prod(factors, axis=-1)


@widened
def logabsdet(x: Tensor) -> Tensor:
    return mx.sum(mx.log(mx.abs(diagonal(x)[0])), axis=-1)


@widened
def signdet(x: Tensor) -> Tensor:
    factors, sign = diagonal(x)
    return sign * mx.prod(mx.sign(factors), axis=-1)


def diagonal(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pivots' values, 1 for a matrix without rows, and the sign of the permutation."""
    if is_of_nothing(x):
        return mx.ones((*x.shape[:-2], 1), x.dtype), mx.ones(x.shape[:-2], x.dtype)
    factors, pivots = lu_parts(x)
    swapped = pivots.astype(mx.int32) != mx.arange(pivots.shape[-1], dtype=mx.int32)
    # Each pivot that is not its own row is one exchange.
    odd = mx.sum(swapped.astype(mx.int32), axis=-1) % 2
    return mx.diagonal(factors, axis1=-2, axis2=-1), (1 - 2 * odd).astype(x.dtype)


def lu_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    if is_of_nothing(x):
        return x, mx.zeros((*x.shape[:-2], 0), mx.uint32)
    return mx.linalg.lu_factor(x, **CPU)


@widened
def lu(x: Tensor) -> Tensor:
    return lu_parts(x)[0]


def lu_pivots(x: Tensor) -> Tensor:
    return lu_parts(accumulated(x))[1].astype(mx.int64)


def lu_permutation(indices: Tensor, like: Tensor) -> Tensor:
    *batch, count = indices.shape
    rows = mx.arange(like.shape[-2], dtype=mx.int64)
    places = mx.broadcast_to(rows, (*batch, like.shape[-2]))
    # The exchanges in order: MLX returns pivots, no permutation.
    for i in range(count):
        other = indices[..., i : i + 1].astype(mx.int64)
        here, there = places[..., i : i + 1], mx.take_along_axis(places, other, -1)
        places = mx.where(rows == i, there, mx.where(rows == other, here, places))
    return places


def thin_svd(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if x.size:
        finite = mx.all(mx.isfinite(x), axis=(-2, -1), keepdims=True)
        # The kernel fails for infinities and NaN, as solvers do.
        parts = mx.linalg.svd(mx.where(finite, x, 0.0), **CPU)
        u, vh = (mx.where(finite, each, math.nan) for each in (parts[0], parts[2]))
        s = mx.where(finite[..., 0], parts[1], math.nan)
    else:
        u, s, vh = mx.linalg.svd(x, **CPU)
    number = s.shape[-1]
    return u[..., :number], s, vh[..., :number, :]


@widened
def svd(x: Tensor) -> Tensor:
    u, s, vh = thin_svd(x)
    return mx.concatenate((s[..., None, :], u, mT(vh)), -2)


@widened
def eigh(x: Tensor, *, lower: bool) -> Tensor:
    w, v = mx.linalg.eigh(x, "L" if lower else "U", **CPU)
    both = mx.concatenate((w[..., None, :], v), -2)
    if not x.size:
        return both
    read = mx.tril(x) if lower else mx.triu(x)  # of NaN the kernel makes numbers
    unknown = mx.any(mx.isnan(read), axis=(-2, -1), keepdims=True)
    return mx.where(unknown, math.nan, both)


@widened
def eigvalsh(x: Tensor, *, lower: bool) -> Tensor:
    return eigh(x, lower=lower)[..., 0, :]


@widened
def svdvals(x: Tensor) -> Tensor:
    return thin_svd(x)[1]


@widened
def qr(x: Tensor) -> Tensor:
    return mx.linalg.qr(x, **CPU)[0]


@widened
def fft(x: Tensor, *, axes: tuple[int, ...], inverse: bool) -> Tensor:
    if x.dtype == mx.float64:  # MLX (0.32) has complex numbers of float32 only
        for axis in axes:
            x = by_matrix(x, axis, 1 if inverse else -1)
        return x
    whole, places = x[..., 0] + 1j * x[..., 1], [axis + 1 for axis in axes]
    if inverse:
        count = math.prod(whole.shape[axis] for axis in places)
        whole = mx.fft.ifftn(whole, axes=places) * count
    else:
        whole = mx.fft.fftn(whole, axes=places)
    return mx.stack((mx.real(whole), mx.imag(whole)), -1)


def by_matrix(x: Tensor, axis: int, sign: int) -> Tensor:
    n = x.shape[axis]
    # By NumPy: MLX's cosine in float64 has the digits of float32.
    angles = (np.outer(np.arange(n), np.arange(n)) % n) * (sign * 2 * math.pi / n)
    cos, sin = (mx.array(table, x.dtype) for table in (np.cos(angles), np.sin(angles)))
    real, imag = (mx.swapaxes(x[..., i], axis + 1, -1) for i in (0, 1))
    parts = real @ cos - imag @ sin, real @ sin + imag @ cos
    return mx.stack([mx.swapaxes(part, axis + 1, -1) for part in parts], -1)


# --- convolutions --------------------------------------------------------------------------------
# MLX's own kernels have channels last. The cotangents are products of windows, as in NumPy.
Ints = tuple[int, ...]


def places(length: int, size: int, stride: int, dilation: int) -> Tensor:
    room = length - dilation * (size - 1) - 1
    if room < 0:
        # MLX would read beyond the array.
        raise ValueError(f"a window of {length - room} elements in an axis of {length}")
    return stride * mx.arange(room // stride + 1)[:, None] + dilation * mx.arange(size)


def windows(x: Tensor, *, sizes: Ints, strides: Ints, dilations: Ints) -> Tensor:
    first = x.ndim - len(sizes)
    for i, (size, stride, dilation) in enumerate(zip(sizes, strides, dilations, strict=True)):
        at = places(x.shape[first + i], size, stride, dilation)
        x = mx.moveaxis(mx.take(x, at, first + i), first + i + 1, -1)
    return x


def unwindows(x: Tensor, like: Tensor, *, sizes: Ints, strides: Ints, dilations: Ints) -> Tensor:
    sums, first = accumulated(x), like.ndim - len(sizes)
    # From the last axis back, so that the window axis to be summed is always the last of `sums`.
    for i in reversed(range(len(sizes))):
        axis, length = first + i, like.shape[first + i]
        at = places(length, sizes[i], strides[i], dilations[i])
        parts = mx.moveaxis(mx.moveaxis(sums, axis, 0), -1, 1)
        # Elements that several windows share are added up, hence `at[].add` on the first axis.
        whole = mx.zeros((length, *parts.shape[2:]), parts.dtype).at[at].add(parts)
        sums = mx.moveaxis(whole, 0, axis)
    return sums.astype(x.dtype)


def has_kernel(x: Tensor, w: Tensor, groups: int) -> bool:
    # MLX (0.32) convolves no float64 and no 3d groups. It divides by the number of channels, which
    # ends the process at 0.
    is_taken = x.dtype != mx.float64 and (groups == 1 or w.ndim < 5)
    return is_taken and 0 not in x.shape and 0 not in w.shape


def conv(x: Tensor, w: Tensor, *, strides: Ints, dilations: Ints, groups: int) -> Tensor:
    if not has_kernel(x, w, groups):
        out, inner = letters(len(strides))
        seen = windows(x, sizes=w.shape[2:], strides=strides, dilations=dilations)
        terms = f"ngc{out}{inner},goc{inner}->ngo{out}"
        sums = mx.einsum(terms, split(seen, 1, groups), split(w, 0, groups))
        return sums.reshape((x.shape[0], w.shape[0], *sums.shape[3:]))
    # Channels go last, and back.
    seen, kernels = (mx.moveaxis(accumulated(each), 1, -1) for each in (x, w))
    sums = mx.conv_general(seen, kernels, stride=strides, kernel_dilation=dilations, groups=groups)
    return mx.moveaxis(sums, -1, 1).astype(x.dtype)


def conv_left(
    cotangent: Tensor, w: Tensor, like: Tensor, *, strides: Ints, dilations: Ints, groups: int
) -> Tensor:
    out, inner = letters(len(strides))
    upstream = split(accumulated(cotangent), 1, groups)
    parts = mx.einsum(f"ngo{out},goc{inner}->ngc{out}{inner}", upstream, split(w, 0, groups))
    parts = parts.reshape((cotangent.shape[0], -1, *parts.shape[3:]))
    steps = {"sizes": w.shape[2:], "strides": strides, "dilations": dilations}
    return unwindows(parts, like, **steps).astype(cotangent.dtype)


def conv_right(
    x: Tensor, cotangent: Tensor, like: Tensor, *, strides: Ints, dilations: Ints, groups: int
) -> Tensor:
    out, inner = letters(len(strides))
    seen = windows(accumulated(x), sizes=like.shape[2:], strides=strides, dilations=dilations)
    upstream = split(accumulated(cotangent), 1, groups)
    sums = mx.einsum(f"ngc{out}{inner},ngo{out}->goc{inner}", split(seen, 1, groups), upstream)
    return sums.reshape(like.shape).astype(cotangent.dtype)


def split(x: Tensor, axis: int, groups: int) -> Tensor:
    # The groups get an axis of their own, before the channels.
    wide = accumulated(x)
    return wide.reshape((*x.shape[:axis], groups, -1, *x.shape[axis + 1 :]))


def letters(number: int) -> tuple[str, str]:
    return "xyz"[:number], "ijk"[:number]


OPS: dict[Any, Callable[..., Any]] = rows_of(vars())
