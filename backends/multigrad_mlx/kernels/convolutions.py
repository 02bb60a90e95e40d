"""MLX's kernels of convolutions, each named after its op.

MLX's own kernels have channels last. The cotangents are products of windows, as in NumPy.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from multigrad.backend import rows_of

from .elementwise import accumulated

Tensor = Any
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
    given = split(accumulated(cotangent), 1, groups)
    parts = mx.einsum(f"ngo{out},goc{inner}->ngc{out}{inner}", given, split(w, 0, groups))
    parts = parts.reshape((cotangent.shape[0], -1, *parts.shape[3:]))
    steps = {"sizes": w.shape[2:], "strides": strides, "dilations": dilations}
    return unwindows(parts, like, **steps).astype(cotangent.dtype)


def conv_right(
    x: Tensor, cotangent: Tensor, like: Tensor, *, strides: Ints, dilations: Ints, groups: int
) -> Tensor:
    out, inner = letters(len(strides))
    seen = windows(accumulated(x), sizes=like.shape[2:], strides=strides, dilations=dilations)
    given = split(accumulated(cotangent), 1, groups)
    sums = mx.einsum(f"ngc{out}{inner},ngo{out}->goc{inner}", split(seen, 1, groups), given)
    return sums.reshape(like.shape).astype(cotangent.dtype)


def split(x: Tensor, axis: int, groups: int) -> Tensor:
    # The groups get an axis of their own, before the channels.
    wide = accumulated(x)
    return wide.reshape((*x.shape[:axis], groups, -1, *x.shape[axis + 1 :]))


def letters(number: int) -> tuple[str, str]:
    return "xyz"[:number], "ijk"[:number]


OPS = rows_of(vars())
