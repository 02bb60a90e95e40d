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
from multigrad.graph.ir.types import INTEGERS, dtype_name, is_float
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
def huber_loss(x: Tensor, target: Any, delta: float = 1.0, weight: Any = None) -> Tensor:
    if weight is not None:
        raise TypeError("huber_loss with a weight; multiply the loss with it")
    return losses.huber(x, target, delta)


@reducing
def binary_cross_entropy(x: Tensor, target: Any, weight: Any = None) -> Tensor:
    return weighted(losses.binary_cross_entropy(x, target), weight)


@reducing
def binary_cross_entropy_with_logits(
    x: Tensor, target: Any, weight: Any = None, pos_weight: Any = None
) -> Tensor:
    return weighted(losses.binary_cross_entropy_with_logits(x, target, pos_weight), weight)


@settled
def kl_div(x: Tensor, target: Any, log_target: bool = False, *, reduction: str) -> Tensor:
    loss = losses.kl_divergence(x, target, log_target)
    return xp.sum(loss) / length(x, 0) if reduction == "batchmean" else reduced(loss, reduction)


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


# --- margins --------------------------------------------------------------------------------------
cosine_embedding_loss = reducing(losses.cosine_embedding)
hinge_embedding_loss = reducing(losses.hinge_embedding)
margin_ranking_loss = reducing(losses.margin_ranking)


@reducing
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float,
    p: float,
    eps: float,
    swap: bool,
) -> Tensor:
    between = functools.partial(layers.pairwise_distance, p=p, eps=eps)
    return triplet(between, anchor, positive, negative, margin=margin, swap=swap)


@reducing
def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    distance_function: Any,
    margin: float,
    swap: bool,
) -> Tensor:
    between = layers.pairwise_distance if distance_function is None else distance_function
    return triplet(between, anchor, positive, negative, margin=margin, swap=swap)


def triplet(
    between: Callable[..., Tensor],
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    margin: float,
    swap: bool,
) -> Tensor:
    """The distance to the positive against that to the negative, from the nearer of the two."""
    near, far = between(anchor, positive), between(anchor, negative)
    if swap:
        far = xp.minimum(far, between(positive, negative))
    return losses.triplet(near, far, margin)


def as_floats(target: Any, input: Tensor) -> Any:
    """Return labels that are integers in the input's dtype, in which they are counted with."""
    is_whole = isinstance(target, Value) and not is_float(target.node.type)
    return xp.cast_like(target, input) if is_whole else target


@reducing
def soft_margin_loss(x: Tensor, target: Any) -> Tensor:
    return losses.soft_margin(x, as_floats(target, x))


@reducing
def multilabel_soft_margin_loss(x: Tensor, target: Any, weight: Any = None) -> Tensor:
    labels, others = as_floats(target, x), as_floats(1 - target, x)  # bytes wrap, as there
    loss = -(labels * xp.log_sigmoid(x) + others * xp.log_sigmoid(-x))
    loss = weighted(loss, weight)
    return xp.sum(loss, -1) / xp.dim(x, -1)  # the target may be repeated over more


# --- of distributions -----------------------------------------------------------------------------
@reducing
def poisson_nll_loss(
    x: Tensor, target: Any, log_input: bool = True, full: bool = False, eps: float = 1e-8
) -> Tensor:
    loss = losses.poisson(x, target, None if log_input else eps)
    if not full:
        return loss
    return loss + xp.where(xp.greater(target, 1.0), losses.stirling(target), 0.0)


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
    F.binary_cross_entropy; F.binary_cross_entropy_with_logits; F.cosine_embedding_loss;
    F.cross_entropy; F.gaussian_nll_loss; F.hinge_embedding_loss; F.huber_loss; F.kl_div; F.l1_loss;
    F.margin_ranking_loss; F.mse_loss; F.multilabel_soft_margin_loss; F.nll_loss;
    F.poisson_nll_loss; F.smooth_l1_loss; F.soft_margin_loss; F.triplet_margin_loss;
    F.triplet_margin_with_distance_loss
"""
ALIASES = TORCH.called({__name__: NAMES})
