"""Torch's dialect, elementwise functions and activations; see `capture.py`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from multigrad.capture import elementwise
from multigrad.ir import neutral
from multigrad.ir.record import Value

Tensor = Any
_T = torch.Tensor


def floor_divide_by(a: Tensor, b: Any) -> Tensor:
    return neutral.floor_divide(b, a)


def remainder_by(a: Tensor, b: Any) -> Tensor:
    return neutral.remainder(b, a)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    return neutral.celu(input, alpha)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    return neutral.selu(input)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    return neutral.mish(input)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    return neutral.hard_sigmoid(input)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    return neutral.hard_silu(input)


def hardtanh(
    input: Tensor, min_val: Any = -1.0, max_val: Any = 1.0, inplace: bool = False
) -> Tensor:  # fmt: skip
    if isinstance(min_val, Value) or isinstance(max_val, Value):
        return neutral.clip(input, min_val, max_val)
    return neutral.hard_tanh(input, min_val, max_val)


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    return neutral.hard_shrink(input, lambd)


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    return neutral.soft_shrink(input, lambd)


def threshold(input: Tensor, threshold: Any, value: Any, inplace: bool = False) -> Tensor:
    if isinstance(threshold, Value) or isinstance(value, Value):
        return neutral.where(input <= threshold, value, input)
    return neutral.threshold(input, threshold, value)


def polygamma(n: int, input: Tensor) -> Tensor:
    return neutral.polygamma(n, input)


def nan_to_num(
    input: Tensor, nan: Any = None, posinf: Any = None, neginf: Any = None
) -> Tensor:  # fmt: skip
    return elementwise.nan_to_num(input, nan, posinf, neginf)


ALIASES: dict[Any, Any] = {
    # Functions called as the methods are.
    **{
        getattr(torch, name): handler
        for name, handler in elementwise.METHODS.items()
        if hasattr(torch, name) and name != "int"
    },
    _T.__floordiv__: neutral.floor_divide, _T.__rfloordiv__: floor_divide_by,
    _T.__mod__: neutral.remainder, _T.__rmod__: remainder_by, _T.__and__: neutral.bitwise_and,
    _T.__or__: neutral.bitwise_or, _T.__xor__: neutral.bitwise_xor,
    _T.__lshift__: neutral.bitwise_left_shift, _T.__rshift__: neutral.bitwise_right_shift,
    torch.polygamma: polygamma, torch.nan_to_num: nan_to_num,
    torch.special.erfc: neutral.erfc, torch.special.erfinv: neutral.erfinv,
    torch.special.ndtr: neutral.ndtr, torch.special.ndtri: neutral.ndtri,
    torch.special.log_ndtr: neutral.log_ndtr, torch.special.gammaln: neutral.lgamma,
    torch.special.digamma: neutral.digamma, torch.special.psi: neutral.digamma,
    torch.special.polygamma: polygamma, torch.special.xlogy: neutral.xlogy,
    torch.special.xlog1py: neutral.xlog1py, torch.special.logit: elementwise.logit,
    torch.special.exp2: neutral.exp2, torch.special.expm1: neutral.expm1,
    torch.special.log1p: neutral.log1p, torch.special.sinc: neutral.sinc,
    torch.special.round: neutral.round,
    F.celu: celu, torch.celu: celu, F.selu: selu, torch.selu: selu, F.mish: mish,
    F.hardsigmoid: hardsigmoid, F.hardswish: hardswish, F.hardtanh: hardtanh,
    F.hardshrink: hardshrink, torch.hardshrink: hardshrink, F.softshrink: softshrink,
    F.tanhshrink: neutral.tanh_shrink, F.softsign: neutral.soft_sign,
    F.logsigmoid: neutral.log_sigmoid, F.threshold: threshold, torch.threshold: threshold,
    F.threshold_: threshold,
}  # fmt: skip
