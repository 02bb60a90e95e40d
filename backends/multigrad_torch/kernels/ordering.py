"""torch's kernels of the ordering ops: sorting and running reductions, each named after its op."""

from __future__ import annotations

from typing import TypeAlias

import torch

from multigrad.backend import orderings, rows_of

Tensor: TypeAlias = torch.Tensor
Axis = int | tuple[int, ...] | None


def wide(x: Tensor) -> Tensor:
    """Return 16-bit floats in float32, so that a result rounds once."""
    return x.float() if x.dtype.itemsize == 2 else x


def factor(x: Tensor) -> Tensor:
    """Return an operand of a product that is summed further; devices are faster in 16 bits."""
    return wide(x) if x.device.type == "cpu" else x


def accumulating(x: Tensor) -> Tensor:
    """Return x as a running sum takes it: a CPU rounds 16 bits once (torch 2.13: 0.5 eps)."""
    return x if x.device.type == "cpu" else wide(x)


def cumsum(x: Tensor, *, axis: int, reverse: bool) -> Tensor:
    if not reverse or x.ndim == 0:
        return torch.cumsum(accumulating(x), axis).to(x.dtype)
    return torch.cumsum(accumulating(x).flip(axis), axis).flip(axis).to(x.dtype)


def cumprod(x: Tensor, *, axis: int) -> Tensor:
    return torch.cumprod(accumulating(x), axis).to(x.dtype)


def logcumsumexp(x: Tensor, *, axis: int, reverse: bool) -> Tensor:
    if not reverse or x.ndim == 0:
        return torch.logcumsumexp(x, axis)
    return torch.logcumsumexp(x.flip(axis), axis).flip(axis)


def discounted_sum(values: Tensor, y: Tensor, *, axis: int, reverse: bool) -> Tensor:
    """Return running discounted sums, by adding neighbors at twice the distance in each step."""
    if values.ndim == 0:
        return values.clone()
    sums, y = (values.flip(axis), y.flip(axis)) if reverse else (values, y)
    shift, length = 1, values.shape[axis]
    while shift < length:
        later, earlier = (y.narrow(axis, at, length - shift) for at in (shift, 0))
        # Equal infinities differ by NaN, hence the comparison first.
        share = torch.where(later == earlier, 1.0, torch.exp((later - earlier).clamp(max=0.0)))
        added = sums.narrow(axis, shift, length - shift) + share * sums.narrow(
            axis, 0, length - shift
        )
        sums, shift = torch.cat([sums.narrow(axis, 0, shift), added], axis), shift * 2
    return sums.flip(axis) if reverse else sums


def cummax(x: Tensor, *, axis: int) -> Tensor:
    return torch.cummax(x, axis).values


def cummin(x: Tensor, *, axis: int) -> Tensor:
    return torch.cummin(x, axis).values


def positions(x: Tensor, axis: int) -> Tensor:
    """Return the index of each element along an axis, in a shape that broadcasts."""
    axis = axis % max(x.ndim, 1)
    places = torch.arange(x.shape[axis] if x.ndim else 1, device=x.device)
    return places.reshape((-1,) + (1,) * (x.ndim - 1 - axis)) if x.ndim else places[0]


def order(x: Tensor, axis: int, descending: bool) -> Tensor:
    return torch.sort(x.detach(), stable=True, dim=axis, descending=descending).indices


def sort(x: Tensor, *, axis: int, descending: bool) -> Tensor:
    return torch.sort(x, stable=True, dim=axis, descending=descending).values


def take(x: Tensor, places: Tensor, axis: int) -> Tensor:
    """Return the elements of x at positions along an axis, different ones for each row."""
    return torch.gather(x, axis, places)


OPS = {**orderings(order, take), **rows_of(vars())}
