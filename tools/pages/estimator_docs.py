"""The page about `xg.estimators`, written from the declarations and their docstrings."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator

from multigrad.rules import estimators
from multigrad.rules.estimators.declared import Argument, Estimator

HEADS = ("function", "forward", "gradients", "numbers", "source")
EXAMPLE = """```python
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
    """Return a function's row."""
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
