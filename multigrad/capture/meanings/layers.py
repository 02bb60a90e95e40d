"""Layers as functions of their inputs (linear maps, normalizations, distances), and losses.

A loss has the gradient that the libraries give, also at the edges: where a formula is longer than
the textbook's, the short one would give an infinity or a NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...trace.xp import all as xp
from .parts import length, rank

Tensor = Any


def linear(x: Tensor, weight: Tensor, bias: Any = None) -> Tensor:
    """Return x times the transposed weight, plus the bias."""
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
    """Return one value per channel, in a shape that broadcasts with x."""
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
    """Standardize each group of channels, the second axis."""
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
    """Normalize by the given statistics of each channel, or by those of x if there are none."""
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
    """Return the distance of each row of a from each row of b."""
    return xp.norm(xp.subtract(xp.expand_dims(a, -2), xp.expand_dims(b, -3)), -1, False, p)


def own_distances(x: Tensor, p: float = 2.0) -> Tensor:
    """Return the distance of each row from each later row."""
    n = length(x, 0)
    flat = xp.reshape(distances(x, x, p), (n * n,))
    return xp.take(flat, [i * n + j for i in range(n) for j in range(i + 1, n)], 0)


# The least p (1 - p) that torch divides by: 1e-12 rounded to float32.
LEAST_VARIANCE = 9.999999960041972e-13


def reduced(loss: Tensor, reduction: str) -> Tensor:
    """Return the loss unchanged ("none"), its mean or its sum."""
    reductions = {"none": None, "mean": xp.mean, "sum": xp.sum}
    if reduction not in reductions:
        raise TypeError(f"the reduction {reduction!r}; none, mean and sum are known")
    reduce = reductions[reduction]
    return loss if reduce is None else reduce(loss)


def raised(x: Tensor, least: float) -> Tensor:
    """Return max(x, least) with a gradient of 1 everywhere."""
    return xp.where(xp.less(x, least), least + (x - xp.stop_gradient(x)), x)


# --- of differences -------------------------------------------------------------------------------
def squared_error(x: Tensor, target: Any) -> Tensor:
    return xp.square(xp.subtract(x, target))


def absolute_error(x: Tensor, target: Any) -> Tensor:
    return xp.abs(xp.subtract(x, target))


def huber(x: Tensor, target: Any, delta: Any = 1.0) -> Tensor:
    """Return half the square up to delta, then a line of slope delta."""
    distance = absolute_error(x, target)
    near = xp.minimum(distance, delta)  # the square of a large distance would overflow
    return near * near * 0.5 + (distance - near) * delta


def smooth_l1(x: Tensor, target: Any, beta: Any = 1.0) -> Tensor:
    """Return Huber's loss over beta; the distance itself if beta is 0."""
    if beta == 0:
        return absolute_error(x, target)
    return huber(x, target, beta) / beta


# --- of probabilities -----------------------------------------------------------------------------
def binary_cross_entropy(p: Tensor, target: Any) -> Tensor:
    """Return -t log p - (1 - t) log(1 - p), the logarithms limited to at least -100.

    The gradient is (p - t) / max(p (1 - p), 1e-12), as in torch: finite where p is 0 or 1.
    """
    # Where p (1 - p) is tiny, the value is a constant and the gradient comes from a term that is 0.
    inside = xp.greater(p * (1.0 - p), LEAST_VARIANCE)
    safe = xp.where(inside, p, 0.5)
    rest = xp.subtract(1.0, target)
    smooth = -(xp.multiply(target, xp.log(safe)) + xp.multiply(rest, xp.log1p(-safe)))
    fixed = xp.stop_gradient(p)
    value = -(
        xp.multiply(target, xp.clip(xp.log(fixed), -100.0))
        + xp.multiply(rest, xp.clip(xp.log1p(-fixed), -100.0))
    )
    slope = (0.5 * p - target) * p - (0.5 * fixed - target) * fixed  # 0, with slope p - t
    return xp.where(inside, smooth, value + slope / LEAST_VARIANCE)


def of_class(logs: Tensor, index: Tensor, axis: int) -> Tensor:
    """Return minus the log-probability of one class each."""
    return -xp.squeeze(xp.take_along(logs, xp.expand_dims(index, axis), axis=axis), axis)


def softmax_cross_entropy(logits: Tensor, target: Any, axis: int = -1) -> Tensor:
    return -xp.sum(xp.multiply(target, xp.log_softmax(logits, axis)), axis)


def gaussian(x: Tensor, target: Any, variance: Any, eps: float) -> Tensor:
    # The variance is raised to eps, but its gradient is not cut there, as in torch.
    spread = raised(variance, eps)
    return 0.5 * (xp.log(spread) + squared_error(x, target) / spread)
