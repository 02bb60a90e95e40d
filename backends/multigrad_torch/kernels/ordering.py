"""Torch's rows of the ordering family, each function named as its op."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch

from multigrad.backend import orderings, rows_of

Tensor: TypeAlias = torch.Tensor
Axis = int | tuple[int, ...] | None


def wide(x: Tensor) -> Tensor:
    """16-bit floats in float32, so that a result rounds once."""
    return x.float() if x.dtype.itemsize == 2 else x


def factor(x: Tensor) -> Tensor:
    """An operand of a product that is summed further; accelerators are faster in 16 bits."""
    return wide(x) if x.device.type == "cpu" else x


def accumulating(x: Tensor) -> Tensor:
    """x as a running sum or product takes it: 16-bit ones round once on a CPU (2.13: 0.5 eps)."""
    return x if x.device.type == "cpu" else wide(x)


def cumsum(x: Tensor, *, axis: int, reverse: bool) -> Tensor:
    if not reverse or x.ndim == 0:
        return torch.cumsum(accumulating(x), axis).to(x.dtype)
    return torch.cumsum(accumulating(x).flip(axis), axis).flip(axis).to(x.dtype)


def cumprod(x: Tensor, *, axis: int) -> Tensor:
    return torch.cumprod(accumulating(x), axis).to(x.dtype)


def logcumsumexp(x: Tensor, *, axis: int, reverse: bool) -> Tensor:
    if not reverse or x.ndim == 0:
        return torch.logcumsumexp(wide(x), axis).to(x.dtype)
    return torch.logcumsumexp(wide(x).flip(axis), axis).flip(axis).to(x.dtype)


def discounted_sum(values: Tensor, y: Tensor, *, axis: int, reverse: bool) -> Tensor:
    """Combined with neighbors at twice the distance in each step."""
    if values.ndim == 0:
        return values.clone()
    sums, y = wide(values), wide(y)
    sums, y = (sums.flip(axis), y.flip(axis)) if reverse else (sums, y)
    shift, length = 1, values.shape[axis]
    while shift < length:
        later, earlier = (y.narrow(axis, at, length - shift) for at in (shift, 0))
        share = torch.where(later == earlier, 1.0, torch.exp((later - earlier).clamp(max=0.0)))
        added = sums.narrow(axis, shift, length - shift) + share * sums.narrow(
            axis, 0, length - shift
        )
        sums, shift = torch.cat([sums.narrow(axis, 0, shift), added], axis), shift * 2
    return (sums.flip(axis) if reverse else sums).to(values.dtype)


def cummax(x: Tensor, *, axis: int) -> Tensor:
    return torch.cummax(x, axis).values


def cummin(x: Tensor, *, axis: int) -> Tensor:
    return torch.cummin(x, axis).values


def positions(x: Tensor, axis: int) -> Tensor:
    """The index of each element along an axis, in a shape that broadcasts."""
    axis = axis % max(x.ndim, 1)
    places = torch.arange(x.shape[axis] if x.ndim else 1, device=x.device)
    return places.reshape((-1,) + (1,) * (x.ndim - 1 - axis)) if x.ndim else places[0]


def last_true(mask: Tensor, axis: int) -> Tensor:
    """The index of the latest True along an axis, -1 before the first."""
    return torch.cummax(torch.where(mask, positions(mask, axis), -1), axis).values


def hold(x: Tensor, mask: Tensor, *, axis: int) -> Tensor:
    latest = last_true(mask, axis)
    values = torch.gather(x, axis, latest.clamp(min=0))
    return values.masked_fill(latest < 0, 0)


def unhold(x: Tensor, mask: Tensor, *, axis: int) -> Tensor:
    latest = last_true(mask, axis)
    values = wide(x).masked_fill(latest < 0, 0)
    zeros = torch.zeros_like(values)
    return torch.scatter_add(zeros, axis, latest.clamp(min=0), values).to(x.dtype)


def order(x: Tensor, axis: int, descending: bool) -> Tensor:
    """The stable permutation that sorts x."""
    return torch.sort(x.detach(), stable=True, dim=axis, descending=descending).indices


def ranks(x: Tensor, axis: int, descending: bool) -> Tensor:
    """The place of each element in sorted x."""
    return torch.argsort(order(x, axis, descending), dim=axis)


def sort(x: Tensor, *, axis: int, descending: bool) -> Tensor:
    return torch.sort(x, stable=True, dim=axis, descending=descending).values


def take(x: Tensor, places: Tensor, axis: int) -> Tensor:
    """x at places along an axis, each row at its own."""
    return torch.gather(x, axis, places)


def argmax_mask(x: Tensor, *, axis: int | None) -> Tensor:
    return first_only(x, axis, torch.argmax)


def argmin_mask(x: Tensor, *, axis: int | None) -> Tensor:
    return first_only(x, axis, torch.argmin)


def first_only(x: Tensor, axis: int | None, find: Callable[..., Tensor]) -> Tensor:
    """Mark the one element that `find` gives the index of."""
    if x.numel() == 0:
        return torch.zeros_like(x, dtype=torch.bool)
    if axis is None:
        return (torch.arange(x.numel(), device=x.device) == find(x)).reshape(x.shape)
    return positions(x, axis) == find(x, axis, keepdim=True)


def axes_of(x: Tensor, axis: Axis) -> tuple[int, ...]:
    if axis is None or x.ndim == 0:
        return tuple(range(x.ndim))
    return axis if isinstance(axis, tuple) else (axis,)


def as_rows(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """x with the axes given merged into one, at the end."""
    last = torch.movedim(x, axes, tuple(range(-len(axes), 0)))
    kept = x.ndim - len(axes)
    return last.reshape((*last.shape[:kept], math.prod(last.shape[kept:])))


def quantile(x: Tensor, *, axis: Axis, keepdims: bool, q: float) -> Tensor:
    # torch.quantile takes float32 and float64 only, one axis, and at most 2**24 elements.
    axes = axes_of(x, axis)
    rows = as_rows(wide(x), axes)
    n = rows.shape[-1]
    if n == 0:
        result = rows.new_full(rows.shape[:-1], math.nan)
    else:
        rows = torch.sort(rows, -1).values
        low, weight = math.floor(q * (n - 1)), q * (n - 1) % 1
        result = rows[..., low]
        if weight:
            result = result * (1 - weight) + rows[..., low + 1] * weight
        largest = rows[..., -1]
        result = torch.where(torch.isnan(largest), largest, result)
    if keepdims:
        ones = {axis % x.ndim for axis in axes}
        result = result.reshape([1 if i in ones else n for i, n in enumerate(x.shape)])
    return result.to(x.dtype)


def quantile_weights(x: Tensor, *, axis: Axis, q: float) -> Tensor:
    if x.numel() == 0:
        return torch.zeros_like(x)
    axes = axes_of(x, axis)
    rows = as_rows(x, axes)
    place = q * (rows.shape[-1] - 1)
    low, weight = math.floor(place), place % 1
    found = ranks(rows, -1, False)
    below, above = ((found == at).to(wide(x).dtype) for at in (low, low + 1))
    weights = below * (1 - weight) + above * weight
    back = tuple(range(-len(axes), 0))
    weights = weights.reshape(torch.movedim(x, axes, back).shape)
    return torch.movedim(weights, back, axes).to(x.dtype)


OPS = {**orderings(order, take), **rows_of(vars())}
