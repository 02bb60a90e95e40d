"""Torch's rows of the family of convolutions, each function named as its op."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

from multigrad.backend import rows_of

from .ordering import factor, wide

Tensor: TypeAlias = torch.Tensor
Ints = tuple[int, ...]
BY_AXES = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def windows(x: Tensor, *, sizes: Ints, strides: Ints, dilations: Ints) -> Tensor:
    first = x.ndim - len(sizes)
    for axis, (size, stride, dilation) in enumerate(zip(sizes, strides, dilations, strict=True)):
        x = x.unfold(first + axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
    return x


def unwindows(x: Tensor, like: Tensor, *, sizes: Ints, strides: Ints, dilations: Ints) -> Tensor:
    first, sums = like.ndim - len(sizes), wide(x)
    for axis in range(len(sizes) - 1, -1, -1):  # the last axis of sums is that of its windows
        size, dilation = sizes[axis], dilations[axis]
        reach = dilation * (size - 1) + 1
        if dilation > 1:
            spread = sums.new_zeros((*sums.shape[:-1], reach))
            spread[..., ::dilation] = sums
            sums = spread
        shape = list(sums.shape[:-1])
        shape[first + axis] = like.shape[first + axis]
        sums = torch.ops.aten.unfold_backward(sums, shape, first + axis, reach, strides[axis])
    return sums.to(x.dtype)


def conv(x: Tensor, w: Tensor, *, strides: Ints, dilations: Ints, groups: int) -> Tensor:
    result = BY_AXES[len(strides)](factor(x), factor(w), None, strides, 0, dilations, groups)
    return result.to(x.dtype)


def conv_left(cotangent: Tensor, w: Tensor, like: Tensor, **attrs: Any) -> Tensor:
    given, kernels = factor(cotangent), factor(w)
    result = backward(given, given.new_empty(()).expand(like.shape), kernels, (True, False), attrs)
    return result[0].to(cotangent.dtype)


def conv_right(x: Tensor, cotangent: Tensor, like: Tensor, **attrs: Any) -> Tensor:
    seen, given = factor(x), factor(cotangent)
    result = backward(given, seen, given.new_empty(()).expand(like.shape), (False, True), attrs)
    return result[1].to(cotangent.dtype)


def backward(
    cotangent: Tensor, x: Tensor, w: Tensor, wanted: tuple[bool, bool], attrs: dict[str, Any]
) -> tuple[Tensor, ...]:
    """The cotangents of x and w, each where it is wanted; of the other only the shape is read."""
    zeros, wants = [0] * (x.ndim - 2), [*wanted, False]
    steps, gaps = list(attrs["strides"]), list(attrs["dilations"])
    return torch.ops.aten.convolution_backward(
        cotangent, x, w, None, steps, zeros, gaps, False, zeros, attrs["groups"], wants
    )


OPS = rows_of(vars())
