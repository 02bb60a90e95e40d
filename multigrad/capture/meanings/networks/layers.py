"""Layers as functions of their inputs: linear maps, normalizations, distances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ....trace.xp import all as xp
from ..parts import length, rank

Tensor = Any


def linear(x: Tensor, weight: Tensor, bias: Any = None) -> Tensor:
    """x times the weight transposed, plus the bias."""
    columns = xp.matrix_transpose(weight) if rank(weight) > 1 else weight
    product = xp.matmul(x, columns)
    return product if bias is None else xp.add(product, bias)


def bilinear(a: Tensor, b: Tensor, weight: Tensor, bias: Any = None) -> Tensor:
    product = xp.einsum("...i,oij,...j->...o", a, weight, b)
    return product if bias is None else xp.add(product, bias)


# --- normalizations -------------------------------------------------------------------------------
def scaled_and_shifted(x: Tensor, scale: Any, shift: Any) -> Tensor:
    scaled = x if scale is None else xp.multiply(x, scale)
    return scaled if shift is None else xp.add(scaled, shift)


def channels(values: Any, x: Tensor, axis: int = 1) -> Any:
    """Return one value per channel in a shape that meets those of x."""
    if values is None or rank(values) == 0:
        return values
    after = rank(x) - 1 - axis % rank(x)
    return xp.reshape(values, (-1, *(1,) * after)) if after else values


def layer_norm(x: Tensor, axes: Sequence[int], scale: Any, shift: Any, eps: float) -> Tensor:
    return scaled_and_shifted(xp.standardize(x, tuple(axes), eps), scale, shift)


def rms_norm(x: Tensor, axes: Sequence[int], scale: Any, eps: Any) -> Tensor:
    mean = xp.mean(xp.square(x), tuple(axes), keepdims=True)
    return scaled_and_shifted(xp.multiply(x, xp.rsqrt(xp.add(mean, eps))), scale, None)


def group_norm(x: Tensor, groups: int, scale: Any, shift: Any, eps: float) -> Tensor:
    """Each group of channels, the second axis, standardized."""
    batch, count = length(x, 0), length(x, 1)
    if count % groups:
        raise TypeError(f"{count} channels in {groups} groups")
    members = math.prod(length(x, i) for i in range(1, rank(x))) // groups
    grouped = xp.standardize(xp.reshape(x, (batch, groups, members)), -1, eps)
    whole = xp.reshape_like(grouped, x)
    return scaled_and_shifted(whole, channels(scale, x), channels(shift, x))


def batch_norm(
    x: Tensor, mean: Any, variance: Any, scale: Any, shift: Any, *, eps: Any, axis: int = 1
) -> Tensor:
    """By the given statistics of each channel, or without them by those of x."""
    if mean is None:
        kept = axis % rank(x)
        others = tuple(i for i in range(rank(x)) if i != kept)
        plain = xp.standardize(x, others, eps)
    else:
        inverse = xp.rsqrt(xp.add(channels(variance, x, axis), eps))
        plain = xp.subtract(x, channels(mean, x, axis)) * inverse
    return scaled_and_shifted(plain, channels(scale, x, axis), channels(shift, x, axis))


# --- distances ------------------------------------------------------------------------------------
def distances(a: Tensor, b: Tensor, p: float = 2.0) -> Tensor:
    """Between each row of one and each of the other."""
    return xp.norm(xp.subtract(xp.expand_dims(a, -2), xp.expand_dims(b, -3)), -1, False, p)


def own_distances(x: Tensor, p: float = 2.0) -> Tensor:
    """Between each row and the later ones."""
    n = length(x, 0)
    flat = xp.reshape(distances(x, x, p), (n * n,))
    return xp.take(flat, [i * n + j for i in range(n) for j in range(i + 1, n)], 0)
