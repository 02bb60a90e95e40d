"""Paddle's rows of the family of convolutions, each function named as its op.

The cotangents are products of matrices, of windows that are gathered.
"""

from __future__ import annotations

import math

import numpy as np
import paddle
import paddle.nn.functional as F

from multigrad.backend import rows_of

from .shapes import add_at, moveaxis, reshape, take_places
from .widening import Tensor, rounded, wide

Ints = tuple[int, ...]
BY_AXES = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def places(length: int, size: int, stride: int, dilation: int) -> np.ndarray:
    count = (length - dilation * (size - 1) - 1) // stride + 1
    return stride * np.arange(count)[:, None] + dilation * np.arange(size)


def windows(x: Tensor, *, sizes: Ints, strides: Ints, dilations: Ints) -> Tensor:
    first = len(x.shape) - len(sizes)
    for i, (size, stride, dilation) in enumerate(zip(sizes, strides, dilations, strict=True)):
        axis = first + i
        at = places(x.shape[axis], size, stride, dilation)
        taken = take_places(x, paddle.to_tensor(at.reshape(-1)), axis)
        split = reshape(taken, shape=(*x.shape[:axis], *at.shape, *x.shape[axis + 1 :]))
        x = moveaxis(split, source=axis + 1, destination=-1)
    return x


def unwindows(x: Tensor, like: Tensor, *, sizes: Ints, strides: Ints, dilations: Ints) -> Tensor:
    first, sums = len(like.shape) - len(sizes), wide(x)
    for i in range(len(sizes) - 1, -1, -1):  # the last axis of sums is that of its windows
        axis = first + i
        at = places(like.shape[axis], sizes[i], strides[i], dilations[i])
        back = moveaxis(sums, source=-1, destination=axis + 1)
        shape = (*back.shape[:axis], at.size, *back.shape[axis + 2 :])
        flat = paddle.to_tensor(at.reshape(-1))
        sums = add_at(reshape(back, shape=shape), flat, like.shape[axis], axis)
    return rounded(sums, x.dtype)


def seen(x: Tensor, sizes: Ints, groups: int, strides: Ints, dilations: Ints) -> Tensor:
    """What each element of a convolution sees: (groups, examples x places, channels x sizes)."""
    parts = windows(wide(x), sizes=sizes, strides=strides, dilations=dilations)
    n, channels, spots = parts.shape[0], x.shape[1], tuple(parts.shape[2 : 2 + len(sizes)])
    inner = channels // groups
    split = reshape(parts, shape=(n, groups, inner, math.prod(spots), math.prod(sizes)))
    rows = paddle.transpose(split, [1, 0, 3, 2, 4])
    return reshape(rows, shape=(groups, n * math.prod(spots), inner * math.prod(sizes)))


def kernels(w: Tensor, groups: int) -> Tensor:
    """(groups, out channels, channels x sizes)."""
    return reshape(wide(w), shape=(groups, w.shape[0] // groups, math.prod(w.shape[1:])))


def conv(x: Tensor, w: Tensor, *, strides: Ints, dilations: Ints, groups: int) -> Tensor:
    if 0 in x.shape or 0 in w.shape:
        lengths = zip(x.shape[2:], w.shape[2:], strides, dilations, strict=True)
        spots = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in lengths]
        return paddle.zeros([x.shape[0], w.shape[0], *spots], x.dtype)
    product = BY_AXES[len(strides)](
        wide(x), wide(w), None, list(strides), 0, list(dilations), groups
    )
    return rounded(product, x.dtype)


def rows_of_cotangent(cotangent: Tensor, groups: int) -> Tensor:
    """(groups, examples x places, out channels)."""
    n, out = cotangent.shape[:2]
    split = reshape(
        wide(cotangent), shape=(n, groups, out // groups, math.prod(cotangent.shape[2:]))
    )
    rows = paddle.transpose(split, [1, 0, 3, 2])
    return reshape(rows, shape=(groups, n * math.prod(cotangent.shape[2:]), out // groups))


def conv_left(
    cotangent: Tensor, w: Tensor, like: Tensor, *, strides: Ints, dilations: Ints, groups: int
) -> Tensor:
    sizes, spots, n = tuple(w.shape[2:]), tuple(cotangent.shape[2:]), cotangent.shape[0]
    product = paddle.matmul(rows_of_cotangent(cotangent, groups), kernels(w, groups))
    split = reshape(product, shape=(groups, n, math.prod(spots), w.shape[1], math.prod(sizes)))
    parts = paddle.transpose(split, [1, 0, 3, 2, 4])
    whole = reshape(parts, shape=(n, like.shape[1], *spots, *sizes))
    result = unwindows(whole, like, sizes=sizes, strides=strides, dilations=dilations)
    return rounded(result, cotangent.dtype)


def conv_right(
    x: Tensor, cotangent: Tensor, like: Tensor, *, strides: Ints, dilations: Ints, groups: int
) -> Tensor:
    rows = seen(x, tuple(like.shape[2:]), groups, strides, dilations)
    product = paddle.matmul(rows_of_cotangent(cotangent, groups), rows, transpose_x=True)
    return rounded(reshape(product, shape=tuple(like.shape)), cotangent.dtype)


OPS = rows_of(vars())
