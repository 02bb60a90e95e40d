"""The pages about attribution and estimators, written from their declarations and docstrings."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from multigrad.models import attribution
from multigrad.models.attribution import composites
from multigrad.models.attribution.kinds import KINDS
from multigrad.models.attribution.relevance import RULES, Relevance
from multigrad.rules import estimators
from multigrad.rules.estimators.arguments import Argument
from multigrad.rules.estimators.declared import Estimator

EXAMPLE = """```python
import torch
import multigrad as xg

model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 10)
)
x = torch.ones(1, 3, 8, 8, requires_grad=True)
composite = xg.composites.epsilon_gamma_box(low=-1.0, high=1.0, canonize=True)
with xg.attach(model, composite) as attached:  # printed, a table of what each layer got
    heat = torch.autograd.grad(model(x)[0, 3], x)[0]
print(heat.shape)  # torch.Size([1, 3, 8, 8])
```"""
HEADS = ("rule", "what x gets", "layers", "source")


def rule_rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield each rule of relevance: its call, its formula, the kinds it is for, its source."""
    rules: tuple[Any, ...] = RULES
    for make in rules:
        rule = make(*[0.0] * len(required(make)))
        if isinstance(rule, Relevance):
            formula, source = said(make)
            kinds = [name for name, kind in KINDS.items() if rule.formula.applies_to(kind)]
            yield call(make), formula, ", ".join(kinds), source


def composite_rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield each composite: its call, what it is, its map, its source."""
    for make in composites.COMPOSITES.values():
        made = make(*required(make))
        described, source = said(make)
        rows = [*((f"first {kind}", r) for kind, r in made.first.items()), *made.layers.items()]
        chosen = ", ".join(f"{kind}: {getattr(rule, 'name', rule)}" for kind, rule in rows)
        yield call(make), described, chosen, source


def mean_rows() -> Iterator[tuple[str, str, str]]:
    """Yield each mean of a gradient: its call, what it is, its source."""
    for make in (attribution.smooth, attribution.integrated):
        described, source = said(make)
        yield call(make), described, source


def required(make: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(make).parameters.values()
    return [p.name for p in parameters if p.default is p.empty]


def call(make: Callable[..., Any]) -> str:
    words = []
    for p in inspect.signature(make).parameters.values():
        if p.kind is p.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        words.append(p.name if p.default is p.empty else f"{p.name}={p.default!r}")
    return f"`{make.__name__}({', '.join(words)})`"


def said(make: Callable[..., Any]) -> tuple[str, str]:
    text = inspect.cleandoc(make.__doc__ or "")
    source = text.partition("Source:")[2].partition("\n\n")[0]
    return " ".join(text.partition("\n\n")[0].split()), " ".join(source.split())


# --- estimators -----------------------------------------------------------------------------------


ESTIMATOR_HEADS = ("function", "forward", "gradients", "numbers", "source")
ESTIMATOR_EXAMPLE = """```python
import torch
import multigrad as xg

weight = torch.randn(64, 32, 3, 3, requires_grad=True)
step = torch.full((64, 1, 1, 1), 0.1, requires_grad=True)  # one for each output channel
xg.estimators.lsq(weight, step, bits=4).sum().backward()
print(step.grad.shape)  # torch.Size([64, 1, 1, 1])
```"""


def families() -> Iterator[tuple[str, list[Estimator]]]:
    """Yield each family, by what its file says that it is, with its functions."""
    every = list(estimators.catalogue().values())
    for family in dict.fromkeys(function.family for function in every):
        module = importlib.import_module(f"multigrad.rules.estimators.{family}")
        title, _, _ = (inspect.getdoc(module) or "").partition(".")
        yield title, [function for function in every if function.family == family]


def row_of(function: Estimator) -> tuple[str, ...]:
    said = (part.replace("*", "\\*") for part in estimators.describe(function))
    forward, gradients, source = said
    tensors = [each.name for each in function.arguments if each.annotation == "Tensor"]
    numbers = [number_of(each) for each in function.arguments if each.annotation != "Tensor"]
    bounds = [
        f"`{each.name}` {each.range.text}"
        for each in function.arguments
        if each.annotation == "Tensor" and each.range is not None
    ]
    name = f"`{function.name}({', '.join(tensors)})`"
    return name, forward, gradients, "; ".join([*bounds, *numbers]), source


def number_of(argument: Argument) -> str:
    """Return an argument that is no tensor, with its default and its range."""
    range_ = "" if argument.range is None else f" {argument.range.text}"
    return f"`{argument.name}={argument.default!r}`{range_}"
