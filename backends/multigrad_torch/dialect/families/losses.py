"""Torch's dialect, losses of `torch.nn.functional`; see `table.py`.

What is asked of one besides its reduction, such as weights or `size_average`, is left to torch's
own trace, but where the gradient at an end is another one than that of the formula.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

from multigrad.capture.meanings import layers, places
from multigrad.capture.meanings.layers import reduced
from multigrad.capture.meanings.parts import rank
from multigrad.trace.xp import all as xp

from ..schemas import TORCH

Tensor = Any


def reducing(formula: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the loss whose elements are those of a formula."""
    parameters = [*inspect.signature(formula).parameters.values()]
    how = inspect.Parameter("reduction", inspect.Parameter.KEYWORD_ONLY)

    @functools.wraps(formula)
    def loss(*args: Any, reduction: str, **options: Any) -> Tensor:
        return reduced(formula(*args, **options), reduction)

    vars(loss)["__signature__"] = inspect.Signature([*parameters, how])
    return loss


mse_loss, l1_loss = reducing(layers.squared_error), reducing(layers.absolute_error)
smooth_l1_loss = reducing(layers.smooth_l1)
binary_cross_entropy_with_logits = reducing(layers.binary_cross_entropy_with_logits)


@reducing
def binary_cross_entropy(x: Tensor, target: Any, weight: Any = None) -> Tensor:
    loss = layers.binary_cross_entropy(x, target)
    return loss if weight is None else xp.multiply(loss, weight)


def nll_loss(logs: Tensor, target: Any, ignore_index: int = -100, *, reduction: str) -> Tensor:
    """The negative of the log-probability of each class index."""
    index = places.as_places(logs, target)
    counts = index != ignore_index
    axis = 1 if rank(logs) > 1 else 0
    loss = xp.where(counts, layers.of_class(logs, xp.where(counts, index, 0), axis), 0.0)
    if reduction == "mean":
        return xp.sum(loss) / xp.sum(places.counted(counts))
    return reduced(loss, reduction)


def cross_entropy(x: Tensor, target: Any, ignore_index: int = -100, *, reduction: str) -> Tensor:
    logs = xp.log_softmax(x, 1 if rank(x) > 1 else 0)
    return nll_loss(logs, target, ignore_index, reduction=reduction)


@reducing
def gaussian_nll_loss(
    x: Tensor, target: Any, var: Any, full: bool = False, eps: float = 1e-6
) -> Tensor:
    if isinstance(var, float | int):
        var = xp.full_like(x, var)
    elif rank(var) == rank(x) - 1:
        var = xp.expand_dims(var, -1)
    loss = layers.gaussian(x, target, var, eps)
    return loss + 0.5 * math.log(2 * math.pi) if full else loss


NAMES = """
    F.binary_cross_entropy; F.binary_cross_entropy_with_logits; F.cross_entropy;
    F.gaussian_nll_loss; F.l1_loss; F.mse_loss; F.nll_loss; F.smooth_l1_loss
"""
ALIASES = TORCH.called({__name__: NAMES})
