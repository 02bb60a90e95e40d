"""Torch's dialect, elementwise functions and activations; see `table.py`."""

from __future__ import annotations

from typing import Any

import torch

from multigrad.capture.code.binding import reflected
from multigrad.capture.meanings import composites
from multigrad.capture.meanings.places import first_of
from multigrad.capture.values import methods
from multigrad.trace.trace import Value
from multigrad.trace.xp import all as xp

from ..schemas import TENSOR, TORCH

Tensor = Any
_T = torch.Tensor


def fmax(input: Tensor, other: Any) -> Tensor:
    """The larger; of equal ones the first gets the whole gradient, as torch gives it."""
    return first_of(xp.fmax, xp.less, input, other, missing=input)


def fmin(input: Tensor, other: Any) -> Tensor:
    """The smaller, likewise."""
    return first_of(xp.fmin, xp.greater, input, other, missing=input)


def hardtanh(
    input: Tensor, min_val: Any = -1.0, max_val: Any = 1.0, inplace: bool = False
) -> Tensor:
    if isinstance(min_val, Value) or isinstance(max_val, Value):
        return xp.clip(input, min_val, max_val)
    return xp.hard_tanh(input, min_val, max_val)


ALIASES: dict[Any, Any] = {
    **{
        getattr(torch, name): handler
        for name, handler in methods.ELEMENTWISE.items()
        if hasattr(torch, name) and name != "int"
    },
    **TORCH.called(
        {
            composites: """
                hard_shrink: hardshrink; nan_to_num; polygamma: polygamma special.polygamma
            """,
            xp: """
                celu: celu F.celu; selu: selu F.selu; mish: F.mish; hard_sigmoid: F.hardsigmoid;
                hard_silu: F.hardswish; soft_shrink: F.softshrink
            """,
        }
    ),
    **TENSOR.taking_the_same({__name__: "fmax; fmin"}),
    **TORCH.taking_the_same(
        {
            composites: "logit: special.logit",
            __name__: """
                fmax; fmin; F.hardtanh
            """,
        }
    ),
    _T.__rfloordiv__: reflected(xp.floor_divide),
    _T.__rmod__: reflected(xp.remainder),
}
