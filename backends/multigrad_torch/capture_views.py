"""Torch's dialect, views: which of its functions never copy, so that an update goes both ways.

What may be either, such as `reshape`, depends on how a tensor lies in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from multigrad.capture import arrays
from multigrad.tracing.trace import Value

from . import asked, capture_parts

Tensor = Any


def viewing(record: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return what records the same, each step of it a view for certain."""

    @wraps(record)
    def certain(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        result = record(x, *args, **kwargs)
        step = result
        while isinstance(step, Value) and step is not x:
            step.is_certain = True
            step = step.base
        return result

    return certain


view, view_as = viewing(arrays.view), viewing(arrays.view_as)
diagonal, unflatten = viewing(capture_parts.diagonal), viewing(capture_parts.unflatten)
expand, linalg_diagonal = viewing(asked.expand), viewing(capture_parts.linalg_diagonal)


def fill_diagonal_(x: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """Write into the diagonal of a matrix; of more axes torch takes one diagonal through all."""
    if len(asked.lengths_of(x)) != 2 or wrap:
        raise TypeError("fill_diagonal_ of other than a matrix, or with wrap")
    diagonal(x)[...] = fill_value
    return x


METHODS: dict[str, Callable[..., Any]] = {
    "diagonal": diagonal, "expand": expand, "fill_diagonal_": fill_diagonal_,
    "unflatten": unflatten, "view": view, "view_as": view_as,
}  # fmt: skip
ALIASES: dict[Any, Callable[..., Any]] = {
    torch.diagonal: diagonal, torch.linalg.diagonal: linalg_diagonal, torch.unflatten: unflatten,
    torch.Tensor.diagonal: diagonal, torch.Tensor.unflatten: unflatten, torch.Tensor.view: view,
    torch.Tensor.view_as: view_as,
}  # fmt: skip
