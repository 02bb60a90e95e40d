"""Torch's dialect, losses of `torch.nn.functional`; see `table.py`."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

from multigrad.capture.meanings import places
from multigrad.capture.meanings.networks import layers, losses
from multigrad.capture.meanings.networks.losses import reduced, weighted
from multigrad.capture.meanings.parts import length, rank
from multigrad.graph.ir.types import INTEGERS, dtype_name
from multigrad.trace.trace import Value
from multigrad.trace.xp import all as xp

from ..schemas import TORCH

Tensor = Any


def reduction_of(size_average: Any, reduce: Any, reduction: str) -> str:
    """Return the reduction: the two older words for it, where they are given, decide."""
    if size_average is None and reduce is None:
        return reduction
    if reduce is False:
        return "none"
    return "sum" if size_average is False else "mean"


def settled(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a loss that takes the two older words beside its `reduction`."""
    parameters = [*inspect.signature(loss).parameters.values()]
    older = [
        inspect.Parameter(word, inspect.Parameter.KEYWORD_ONLY, default=None)
        for word in ("size_average", "reduce")
    ]

    @functools.wraps(loss)
    def record(*args: Any, reduction: str, **options: Any) -> Tensor:
        average, reduce = (options.pop(each.name, None) for each in older)
        return loss(*args, reduction=reduction_of(average, reduce, reduction), **options)

    vars(record)["__signature__"] = inspect.Signature([*parameters, *older])
    return record


def reducing(formula: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the loss whose elements are those of a formula."""
    parameters = [*inspect.signature(formula).parameters.values()]
    how = inspect.Parameter("reduction", inspect.Parameter.KEYWORD_ONLY)

    @functools.wraps(formula)
    def loss(*args: Any, reduction: str, **options: Any) -> Tensor:
        return reduced(formula(*args, **options), reduction)

    vars(loss)["__signature__"] = inspect.Signature([*parameters, how])
    return settled(loss)


def of_error(formula: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a loss of an input and a target; a mean is one by weight."""

    @settled
    def loss(x: Tensor, target: Any, weight: Any = None, *, reduction: str) -> Tensor:
        error = weighted(formula(x, target), weight)
        if weight is not None and reduction == "mean":
            return xp.divide(xp.sum(error), xp.sum(weights_like(error, weight)))
        return reduced(error, reduction)

    return loss


def weights_like(loss: Tensor, weight: Any) -> Tensor:
    return xp.broadcast_to(weight, loss) if rank(weight) else xp.full_like(loss, weight)


mse_loss, l1_loss = of_error(losses.squared_error), of_error(losses.absolute_error)
smooth_l1_loss = reducing(losses.smooth_l1)


@reducing
def binary_cross_entropy(x: Tensor, target: Any, weight: Any = None) -> Tensor:
    return weighted(losses.binary_cross_entropy(x, target), weight)


@reducing
def binary_cross_entropy_with_logits(
    x: Tensor, target: Any, weight: Any = None, pos_weight: Any = None
) -> Tensor:
    return weighted(losses.binary_cross_entropy_with_logits(x, target, pos_weight), weight)


@settled
def nll_loss(
    logs: Tensor,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    smoothing: float = 0.0,
    *,
    reduction: str,
) -> Tensor:
    """The negative of the log-probability of each class index; a mean is one by weight."""
    axis = 1 if rank(logs) > 1 else 0
    index = places.as_places(logs, target)
    counts = index != ignore_index
    index = xp.where(counts, index, 0)
    loss = losses.of_class(logs, index, axis)
    share: Any = counts
    if weight is not None:
        own = xp.take(places.as_tensor(weight, logs), index, 0)
        loss, share = loss * own, xp.where(counts, own, 0.0)
    if smoothing:
        channels = layers.channels(weight, logs, axis)
        spread = -xp.sum(logs if weight is None else logs * channels, axis)
        loss = loss * (1.0 - smoothing) + spread * (smoothing / length(logs, axis))
    loss = xp.where(counts, loss, 0.0)
    if reduction == "mean":
        return xp.sum(loss) / xp.sum(places.counted(share))
    return reduced(loss, reduction)


@settled
def cross_entropy(
    x: Tensor,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    *,
    reduction: str,
) -> Tensor:
    """Of class indices, or of class probabilities."""
    dtype = target.node.type.dtype if isinstance(target, Value) else dtype_name(target.dtype)
    axis = 1 if rank(x) > 1 else 0
    if dtype in INTEGERS:
        logs = xp.log_softmax(x, axis)
        return nll_loss(logs, target, weight, ignore_index, label_smoothing, reduction=reduction)
    if label_smoothing:
        share = label_smoothing / length(x, axis)
        target = xp.add(xp.multiply(target, 1.0 - label_smoothing), share)
    target = weighted(target, layers.channels(weight, x, axis))
    return reduced(losses.softmax_cross_entropy(x, target, axis), reduction)


@reducing
def gaussian_nll_loss(
    x: Tensor, target: Any, var: Any, full: bool = False, eps: float = 1e-6
) -> Tensor:
    if isinstance(var, float | int):
        var = xp.full_like(x, var)
    elif rank(var) == rank(x) - 1:
        var = xp.expand_dims(var, -1)
    loss = losses.gaussian(x, target, var, eps)
    return loss + 0.5 * math.log(2 * math.pi) if full else loss


NAMES = """
    F.binary_cross_entropy; F.binary_cross_entropy_with_logits; F.cross_entropy;
    F.gaussian_nll_loss; F.l1_loss; F.mse_loss; F.nll_loss; F.smooth_l1_loss
"""
ALIASES = TORCH.called({__name__: NAMES})
