"""FreeGrad's own run: the PyTorch loop with FreeGrad's activation and FreeGrad's `use`."""

from __future__ import annotations

from contextlib import nullcontext
from importlib.metadata import version

import freegrad
from freegrad.wrappers import Activation

from ..task import EpochReport, Task, Weights
from . import in_torch


def describe() -> str:
    return f"FreeGrad {version('freegrad')} on {in_torch.describe()}"


def explain_absence(forward: str, rule: str | None) -> str | None:
    """Return why FreeGrad cannot run this configuration, or None if it can."""
    if rule is None:
        # freegrad 1.0.1 differentiates torch.heaviside, which torch does not implement.
        return (
            "FreeGrad has no derivative of Heaviside without a rule"
            if forward == "Heaviside"
            else None
        )
    try:
        freegrad.get(rule)
    except KeyError:
        return f"it has no rule named {rule!r}"
    return None


def train(task: Task, forward: str, rule: str | None, report: EpochReport) -> Weights:
    with nullcontext() if rule is None else freegrad.use(rule):
        return in_torch.fit(in_torch.build(task.weights, Activation(forward=forward)), task, report)
