"""Second derivatives for the five losses of entmax 1.3, which keep probabilities as constants.

    with second_derivatives():
        loss = entmax.entmax15_loss(scores, target)

Values and first derivatives stay the same bits. Losses made inside keep their derivatives.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import entmax.losses
import torch

import multigrad as xg


def with_second_derivative(loss: Any) -> xg.Function:
    """Return a loss whose gradient, probabilities minus target, is a function of the scores.

    `loss` is an `autograd.Function` of scores (rows, classes), targets (rows) and settings.
    """

    def differentiable(scores: Any, target: Any, *settings: Any) -> Any:
        def grad(grad_out: Any) -> Any:
            # `project` takes alpha and one number; classes without an alpha of their own ignore it.
            chosen = loss.project(scores, *(None, *settings)[-2:])
            expected = torch.nn.functional.one_hot(target, scores.shape[1])
            return grad_out.unsqueeze(1) * (chosen - expected), None, *(None for _ in settings)

        return loss.apply(scores, target, *settings), grad

    return xg.custom_gradient(differentiable)


def second_derivatives() -> AbstractContextManager[Any]:
    """Give the losses of entmax second derivatives until the end of the block."""
    kinds = ("Sparsemax", "SparsemaxBisect", "Entmax15", "EntmaxBisect", "NormmaxBisect")
    adapted = {}
    for name in (f"{kind}LossFunction" for kind in kinds):
        loss = with_second_derivative(getattr(entmax.losses, name))
        adapted[name] = SimpleNamespace(apply=loss)
    return patch.multiple(entmax.losses, **adapted)
