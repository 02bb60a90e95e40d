"""Torch's dialect, losses of `torch.nn.functional`; see `table.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

from multigrad.capture.meanings import places
from multigrad.capture.meanings.networks import layers, losses
from multigrad.capture.meanings.networks.losses import reduced, weighted
from multigrad.capture.meanings.parts import length, rank
from multigrad.graph.ir.types import INTEGERS, dtype_name, is_float
from multigrad.trace.trace import Value
from multigrad.trace.xp import all as xp

Tensor = Any


def reduction_of(size_average: Any, reduce: Any, reduction: str) -> str:
    """Return the reduction: the two older words for it, where they are given, decide."""
    if size_average is None and reduce is None:
        return reduction
    if reduce is False:
        return "none"
    return "sum" if size_average is False else "mean"


def of_error(name: str, formula: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a loss of an input and a target."""

    def record(input: Tensor, target: Any, size_average: Any = None, reduce: Any = None,
               reduction: str = "mean", weight: Any = None) -> Tensor:  # fmt: skip
        loss = weighted(formula(input, target), weight)
        if weight is not None and reduction == "mean":  # the mean by weight
            return xp.divide(xp.sum(loss), xp.sum(weights_like(loss, weight)))
        return reduced(loss, reduction_of(size_average, reduce, reduction))

    record.__name__ = record.__qualname__ = name
    return record


def weights_like(loss: Tensor, weight: Any) -> Tensor:
    return xp.broadcast_to(weight, loss) if rank(weight) else xp.full_like(loss, weight)


def smooth_l1_loss(input: Tensor, target: Any, size_average: Any = None, reduce: Any = None,
                   reduction: str = "mean", beta: float = 1.0) -> Tensor:  # fmt: skip
    loss = losses.smooth_l1(input, target, beta)
    return reduced(loss, reduction_of(size_average, reduce, reduction))


def huber_loss(input: Tensor, target: Any, reduction: str = "mean", delta: float = 1.0,
               weight: Any = None) -> Tensor:  # fmt: skip
    if weight is not None:
        raise TypeError("huber_loss with a weight; multiply the loss with it")
    return reduced(losses.huber(input, target, delta), reduction)


def binary_cross_entropy(input: Tensor, target: Any, weight: Any = None, size_average: Any = None,
                         reduce: Any = None, reduction: str = "mean") -> Tensor:  # fmt: skip
    loss = weighted(losses.binary_cross_entropy(input, target), weight)
    return reduced(loss, reduction_of(size_average, reduce, reduction))


def binary_cross_entropy_with_logits(
    input: Tensor, target: Any, weight: Any = None, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean", pos_weight: Any = None,
) -> Tensor:  # fmt: skip
    loss = losses.binary_cross_entropy_with_logits(input, target, pos_weight)
    return reduced(weighted(loss, weight), reduction_of(size_average, reduce, reduction))


def kl_div(input: Tensor, target: Any, size_average: Any = None, reduce: Any = None,
           reduction: str = "mean", log_target: bool = False) -> Tensor:  # fmt: skip
    loss = losses.kl_divergence(input, target, log_target)
    how = reduction_of(size_average, reduce, reduction)
    return xp.sum(loss) / length(input, 0) if how == "batchmean" else reduced(loss, how)


def of_classes(logs: Tensor, target: Any, weight: Any, ignore_index: int, how: str, *,
               smoothing: float = 0.0) -> Tensor:  # fmt: skip
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
    if how == "mean":
        return xp.sum(loss) / xp.sum(places.counted(share))
    return reduced(loss, how)


def nll_loss(input: Tensor, target: Any, weight: Any = None, size_average: Any = None,
             ignore_index: int = -100, reduce: Any = None, reduction: str = "mean",
             ) -> Tensor:  # fmt: skip
    how = reduction_of(size_average, reduce, reduction)
    return of_classes(input, target, weight, ignore_index, how)


def cross_entropy(input: Tensor, target: Any, weight: Any = None, size_average: Any = None,
                  ignore_index: int = -100, reduce: Any = None, reduction: str = "mean",
                  label_smoothing: float = 0.0) -> Tensor:  # fmt: skip
    """Of class indices, or of class probabilities."""
    dtype = target.node.type.dtype if isinstance(target, Value) else dtype_name(target.dtype)
    axis = 1 if rank(input) > 1 else 0
    if dtype in INTEGERS:
        how = reduction_of(size_average, reduce, reduction)
        logs = xp.log_softmax(input, axis)
        return of_classes(logs, target, weight, ignore_index, how, smoothing=label_smoothing)
    if label_smoothing:
        share = label_smoothing / length(input, axis)
        target = xp.add(xp.multiply(target, 1.0 - label_smoothing), share)
    loss = losses.softmax_cross_entropy(
        input, weighted(target, layers.channels(weight, input, axis)), axis
    )
    return reduced(loss, reduction_of(size_average, reduce, reduction))


# --- margins --------------------------------------------------------------------------------------
def cosine_embedding_loss(input1: Tensor, input2: Tensor, target: Any, margin: float = 0,
                          size_average: Any = None, reduce: Any = None,
                          reduction: str = "mean") -> Tensor:  # fmt: skip
    loss = losses.cosine_embedding(input1, input2, target, margin)
    return reduced(loss, reduction_of(size_average, reduce, reduction))


def hinge_embedding_loss(input: Tensor, target: Any, margin: float = 1.0, size_average: Any = None,
                         reduce: Any = None, reduction: str = "mean") -> Tensor:  # fmt: skip
    loss = losses.hinge_embedding(input, target, margin)
    return reduced(loss, reduction_of(size_average, reduce, reduction))


def margin_ranking_loss(input1: Tensor, input2: Tensor, target: Any, margin: float = 0,
                        size_average: Any = None, reduce: Any = None,
                        reduction: str = "mean") -> Tensor:  # fmt: skip
    loss = losses.margin_ranking(input1, input2, target, margin)
    return reduced(loss, reduction_of(size_average, reduce, reduction))


def triplet_margin_loss(anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0,
                        p: float = 2, eps: float = 1e-6, swap: bool = False,
                        size_average: Any = None, reduce: Any = None,
                        reduction: str = "mean") -> Tensor:  # fmt: skip
    near = layers.pairwise_distance(anchor, positive, p, eps)
    far = layers.pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = xp.minimum(far, layers.pairwise_distance(positive, negative, p, eps))
    loss = losses.triplet(near, far, margin)
    return reduced(loss, reduction_of(size_average, reduce, reduction))


def triplet_margin_with_distance_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, *, distance_function: Any = None,
    margin: float = 1.0, swap: bool = False, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    between = layers.pairwise_distance if distance_function is None else distance_function
    near, far = between(anchor, positive), between(anchor, negative)
    if swap:
        far = xp.minimum(far, between(positive, negative))
    return reduced(losses.triplet(near, far, margin), reduction)


def as_floats(target: Any, input: Tensor) -> Any:
    """Return labels that are integers in the input's dtype, in which they are counted with."""
    is_whole = isinstance(target, Value) and not is_float(target.node.type)
    return xp.cast_like(target, input) if is_whole else target


def soft_margin_loss(input: Tensor, target: Any, size_average: Any = None, reduce: Any = None,
                     reduction: str = "mean") -> Tensor:  # fmt: skip
    loss = losses.soft_margin(input, as_floats(target, input))
    return reduced(loss, reduction_of(size_average, reduce, reduction))


def multilabel_soft_margin_loss(
    input: Tensor, target: Any, weight: Any = None, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    labels, others = as_floats(target, input), as_floats(1 - target, input)  # bytes wrap, as there
    loss = -(labels * xp.log_sigmoid(input) + others * xp.log_sigmoid(-input))
    loss = weighted(loss, weight)
    of_class = xp.sum(loss, -1) / xp.dim(input, -1)  # the target may be repeated over more
    return reduced(of_class, reduction_of(size_average, reduce, reduction))


# --- of distributions -----------------------------------------------------------------------------
def poisson_nll_loss(input: Tensor, target: Any, log_input: bool = True, full: bool = False,
                     size_average: Any = None, eps: float = 1e-8, reduce: Any = None,
                     reduction: str = "mean") -> Tensor:  # fmt: skip
    loss = losses.poisson(input, target, None if log_input else eps)
    if full:
        loss = loss + xp.where(xp.greater(target, 1.0), losses.stirling(target), 0.0)
    return reduced(loss, reduction_of(size_average, reduce, reduction))


def gaussian_nll_loss(input: Tensor, target: Any, var: Any, full: bool = False,
                      eps: float = 1e-6, reduction: str = "mean") -> Tensor:  # fmt: skip
    if isinstance(var, float | int):
        var = xp.full_like(input, var)
    elif rank(var) == rank(input) - 1:
        var = xp.expand_dims(var, -1)
    loss = losses.gaussian(input, target, var, eps)
    return reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


ALIASES: dict[Any, Callable[..., Tensor]] = {
    F.mse_loss: of_error("mse_loss", losses.squared_error),
    F.l1_loss: of_error("l1_loss", losses.absolute_error), F.smooth_l1_loss: smooth_l1_loss,
    F.huber_loss: huber_loss, F.binary_cross_entropy: binary_cross_entropy,
    F.binary_cross_entropy_with_logits: binary_cross_entropy_with_logits, F.kl_div: kl_div,
    F.cross_entropy: cross_entropy, F.cosine_embedding_loss: cosine_embedding_loss,
    F.hinge_embedding_loss: hinge_embedding_loss, F.margin_ranking_loss: margin_ranking_loss,
    F.triplet_margin_loss: triplet_margin_loss,
    F.triplet_margin_with_distance_loss: triplet_margin_with_distance_loss,
    F.soft_margin_loss: soft_margin_loss,
    F.multilabel_soft_margin_loss: multilabel_soft_margin_loss,
    F.nll_loss: nll_loss, F.poisson_nll_loss: poisson_nll_loss,
    F.gaussian_nll_loss: gaussian_nll_loss,
}  # fmt: skip
