"""Torch's dialect, elementwise functions and activations; see `capture.py`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from multigrad.capture import elementwise
from multigrad.capture.slopes import first_of
from multigrad.tracing import xp_all as xp
from multigrad.tracing.trace import Value

Tensor = Any
_T = torch.Tensor


def floor_divide_by(a: Tensor, b: Any) -> Tensor:
    return xp.floor_divide(b, a)


def remainder_by(a: Tensor, b: Any) -> Tensor:
    return xp.remainder(b, a)


def fmax(input: Tensor, other: Any) -> Tensor:
    """The larger; of equal ones the first gets the whole gradient, as torch gives it."""
    return first_of(xp.fmax, xp.less, input, other, missing=input)


def fmin(input: Tensor, other: Any) -> Tensor:
    """The smaller, likewise."""
    return first_of(xp.fmin, xp.greater, input, other, missing=input)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    return xp.celu(input, alpha)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    return xp.selu(input)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    return xp.mish(input)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    return xp.hard_sigmoid(input)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    return xp.hard_silu(input)


def hardtanh(
    input: Tensor, min_val: Any = -1.0, max_val: Any = 1.0, inplace: bool = False
) -> Tensor:
    if isinstance(min_val, Value) or isinstance(max_val, Value):
        return xp.clip(input, min_val, max_val)
    return xp.hard_tanh(input, min_val, max_val)


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    return elementwise.hard_shrink(input, lambd)


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    return xp.soft_shrink(input, lambd)


def threshold(input: Tensor, threshold: Any, value: Any, inplace: bool = False) -> Tensor:
    if isinstance(threshold, Value) or isinstance(value, Value):
        return xp.where(input <= threshold, value, input)
    return xp.threshold(input, threshold, value)


def polygamma(n: int, input: Tensor) -> Tensor:
    return xp.polygamma(n, input)


def nan_to_num(input: Tensor, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Tensor:
    return elementwise.nan_to_num(input, nan, posinf, neginf)


ALIASES: dict[Any, Any] = {
    # Functions called as the methods are.
    **{
        getattr(torch, name): handler
        for name, handler in elementwise.METHODS.items()
        if hasattr(torch, name) and name != "int"
    },
    _T.__rfloordiv__: floor_divide_by, _T.__rmod__: remainder_by, torch.polygamma: polygamma,
    torch.nan_to_num: nan_to_num, torch.special.polygamma: polygamma,
    torch.special.logit: elementwise.logit, F.celu: celu, torch.celu: celu, F.selu: selu,
    torch.selu: selu, F.mish: mish, F.hardsigmoid: hardsigmoid, F.hardswish: hardswish,
    F.hardtanh: hardtanh, F.hardshrink: hardshrink, torch.hardshrink: hardshrink,
    F.softshrink: softshrink, F.threshold: threshold, torch.threshold: threshold,
    F.threshold_: threshold,
    torch.fmax: fmax, _T.fmax: fmax, torch.fmin: fmin, _T.fmin: fmin,
}  # fmt: skip
