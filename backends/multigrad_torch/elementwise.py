"""Torch's rows of the elementwise family: op to callable."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

from multigrad.ir import ops
from multigrad.ir.ops import Op

Tensor: TypeAlias = torch.Tensor
transforms_active = torch._C._are_functorch_transforms_active


def fitting(value: Any, dtype: Any) -> Any:
    """A number as the dtype rounds it: torch refuses to clamp or fill float16 with one above its range."""
    if dtype is not torch.float16 or isinstance(value, Tensor) or not abs(value) > 65504.0:
        return value
    return math.copysign(math.inf if abs(value) >= 65520.0 else 65504.0, value)


def clamp_min(x: Tensor, value: Any) -> Tensor:
    return torch.clamp_min(x, fitting(value, x.dtype))


def clamp_max(x: Tensor, value: Any) -> Tensor:
    return torch.clamp_max(x, fitting(value, x.dtype))


def maximum(a: Any, b: Any) -> Tensor:
    if not isinstance(b, Tensor):
        return clamp_min(a, b)
    return torch.maximum(a, b) if isinstance(a, Tensor) and _alike(a, b) else _between(a, b, True)


def minimum(a: Any, b: Any) -> Tensor:
    if not isinstance(b, Tensor):
        return clamp_max(a, b)
    return torch.minimum(a, b) if isinstance(a, Tensor) and _alike(a, b) else _between(a, b, False)


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device


def _between(a: Any, b: Tensor, larger: bool) -> Tensor:
    """The larger or smaller where one side is a number or a 0-d tensor of another dtype or device."""
    if not isinstance(a, Tensor):
        return clamp_min(b, a) if larger else clamp_max(b, a)
    tensor, scalar = (a, b) if b.ndim == 0 else (b, a)
    scalar = scalar.to(tensor)
    return torch.maximum(tensor, scalar) if larger else torch.minimum(tensor, scalar)


def power(a: Any, b: Any) -> Tensor:
    return torch.pow(a, b)


def sign(x: Tensor) -> Tensor:
    """torch.sign gives 0 for NaN; ours stays NaN."""
    return torch.where(torch.isnan(x), x, torch.sign(x))


def clip(x: Tensor, min: Any, max: Any) -> Tensor:
    if isinstance(min, Tensor) or isinstance(max, Tensor) or not isinstance(x, Tensor):
        return minimum(maximum(x, min), max)
    return torch.clamp(x, fitting(min, x.dtype), fitting(max, x.dtype))


def where(condition: Any, a: Any, b: Any) -> Tensor:
    if not isinstance(condition, Tensor):  # a comparison of params
        condition = torch.tensor(condition, device=(a if isinstance(a, Tensor) else b).device)
    return torch.where(condition, a, b)


def cast(x: Tensor, *, dtype: Any) -> Tensor:
    return x.to(dtype)


def full_like(x: Tensor, value: Any, *, dtype: Any = None) -> Tensor:
    if isinstance(value, Tensor):
        return value.to(device=x.device, dtype=dtype or x.dtype).expand(x.shape)
    return torch.full_like(x, fitting(value, dtype or x.dtype), dtype=dtype)


def softplus(x: Tensor) -> Tensor:
    # The default threshold of 20 returns x where log1p(exp(-x)) still counts in float64.
    return F.softplus(x, threshold=40.0)


def heaviside(x: Tensor) -> Tensor:
    # Compared straight into floats: 136 us for 1e6 elements, 996 us through bools (torch.heaviside 5.2 ms).
    # `out=` has no batching rule and no derivative, so only where neither is wanted.
    if torch.is_grad_enabled() or transforms_active():
        return (x > 0).to(x.dtype)
    return torch.gt(x, 0, out=torch.empty_like(x))


def erf(x: Tensor) -> Tensor:
    # torch 2.13: the bfloat16 kernel is off by 6 % near zero.
    return torch.erf(x.float()).to(x.dtype) if x.dtype == torch.bfloat16 else torch.erf(x)


def leaky_relu(x: Tensor, *, slope: float) -> Tensor:
    return F.leaky_relu(x, slope)


def elu(x: Tensor, *, alpha: float) -> Tensor:
    return F.elu(x, alpha)


def gelu(x: Tensor, *, approximate: bool) -> Tensor:
    return F.gelu(x, approximate="tanh" if approximate else "none")


def stop_gradient(x: Tensor) -> Tensor:
    return x.detach()


OPS: dict[Op, Callable[..., Any]] = {
    ops.POW: power,
    ops.MAXIMUM: maximum,
    ops.MINIMUM: minimum,
    ops.ABS: torch.abs,
    ops.SIGN: sign,
    ops.SQUARE: torch.square,
    ops.SQRT: torch.sqrt,
    ops.RSQRT: torch.rsqrt,
    ops.RECIPROCAL: torch.reciprocal,
    ops.FLOOR: torch.floor,
    ops.CEIL: torch.ceil,
    ops.ROUND: torch.round,
    ops.TRUNC: torch.trunc,
    ops.EXP: torch.exp,
    ops.EXPM1: torch.expm1,
    ops.LOG: torch.log,
    ops.LOG1P: torch.log1p,
    ops.SIN: torch.sin,
    ops.COS: torch.cos,
    ops.ATAN: torch.atan,
    ops.TANH: torch.tanh,
    ops.ERF: erf,
    ops.ISNAN: torch.isnan,
    ops.ISINF: torch.isinf,
    ops.ISFINITE: torch.isfinite,
    ops.CLIP: clip,
    ops.WHERE: where,
    ops.CAST: cast,
    ops.FULL_LIKE: full_like,
    ops.STOP_GRADIENT: stop_gradient,
    ops.SIGMOID: torch.sigmoid,
    ops.RELU: torch.relu,
    ops.RELU6: F.relu6,
    ops.SILU: F.silu,
    ops.SOFTPLUS: softplus,
    ops.HEAVISIDE: heaviside,
    ops.LEAKY_RELU: leaky_relu,
    ops.ELU: elu,
    ops.GELU: gelu,
}

# Kernels for a tensor and a number: `1.0 - x` goes through a Python wrapper in torch, rsub does not.
SCALAR_LEFT: dict[Op, Callable[..., Any]] = {
    ops.SUB: torch.rsub,
    ops.MAXIMUM: clamp_min,
    ops.MINIMUM: clamp_max,
}
SCALAR_RIGHT: dict[Op, Callable[..., Any]] = {
    ops.MAXIMUM: clamp_min,
    ops.MINIMUM: clamp_max,
}
