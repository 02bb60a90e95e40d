"""torch's kernels of the elementwise ops."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

from multigrad.core import ops
from multigrad.core.backend.rows import rows_of
from multigrad.core.ir.op import Op
from multigrad.core.ops.selection import LARGEST, MOST_IN_FLOAT8

from ..state import count_modes, transforms_active

Tensor: TypeAlias = torch.Tensor
HALVES = (torch.float16, torch.bfloat16)


def open_number(value: Any) -> Any:
    """Return a tensor for a number computed from lengths that an exporter leaves open."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return torch.scalar_tensor(value, dtype=torch.float64)
    return value


def widened(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a kernel to compute 16-bit floats in float32 and round once."""

    @functools.wraps(function)
    def call(*values: Any, **attrs: Any) -> Tensor:
        dtype = next((x.dtype for x in values if getattr(x, "dtype", None) in HALVES), None)
        if dtype is None:
            return function(*values, **attrs)
        wide_values = (x.float() if getattr(x, "dtype", None) in HALVES else x for x in values)
        return function(*wide_values, **attrs).to(dtype)

    return call


def aligned(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a kernel to take numbers and 0-d tensors next to a tensor; widens as `widened`."""

    @functools.wraps(function)
    def call(*values: Any) -> Tensor:
        tensors = [value for value in values if isinstance(value, Tensor)]
        like = next((tensor for tensor in tensors if tensor.ndim), tensors[0])
        dtype = torch.float32 if like.dtype in HALVES else like.dtype
        operands = [
            value.to(like.device, dtype)
            if isinstance(value, Tensor)
            else torch.full((), value, dtype=like.dtype, device=like.device).to(dtype)
            for value in values
        ]
        return function(*operands).to(like.dtype)

    return call


def fitting(value: Any, dtype: Any) -> Any:
    """Return a number as float16 rounds it: torch clamps and fills with none beyond its range."""
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
    if not isinstance(a, Tensor):
        return clamp_min(b, a) if larger else clamp_max(b, a)
    # One side is a number, or a 0-d tensor of another dtype or device.
    tensor, scalar = (a, b) if b.ndim == 0 else (b, a)
    scalar = scalar.to(tensor)
    return torch.maximum(tensor, scalar) if larger else torch.minimum(tensor, scalar)


def sign(x: Tensor) -> Tensor:
    """Return the sign, NaN for NaN, for which torch.sign returns 0."""
    return torch.where(torch.isnan(x), x, torch.sign(x))


def clip(x: Any, min: Any, max: Any) -> Tensor:
    if not isinstance(x, Tensor) and not isinstance(min, Tensor):
        x = torch.full_like(max, fitting(x, max.dtype))
    if isinstance(min, Tensor) or isinstance(max, Tensor) or not isinstance(x, Tensor):
        return minimum(maximum(x, min), max)
    return torch.clamp(x, fitting(min, x.dtype), fitting(max, x.dtype))


def where(condition: Any, a: Any, b: Any) -> Tensor:
    if not isinstance(condition, Tensor):  # params were compared
        device = (a if isinstance(a, Tensor) else b).device
        # Filled there: copying would wait for the GPU.
        condition = torch.full((), condition, dtype=torch.bool, device=device)
    return torch.where(condition, a, b)


def cast(x: Tensor, *, dtype: Any) -> Tensor:
    if dtype is torch.float8_e4m3fn and x.is_floating_point():
        # torch 2.13 returns the largest float8 for numbers out of range; ours is NaN.
        return torch.where(x.abs() > MOST_IN_FLOAT8, torch.nan, x).to(dtype)
    if not x.is_floating_point() or dtype.is_floating_point or dtype is torch.bool:
        return x.to(dtype)
    # Out of range, torch's result depends on the processor.
    if dtype is not torch.int64:
        range_ = torch.iinfo(dtype)
        return torch.nan_to_num(x.double()).clamp(range_.min, range_.max).to(dtype)
    wide = x.float() if x.dtype is torch.float16 else x
    return torch.nan_to_num(wide).clamp(-LARGEST, LARGEST).to(dtype)


def full_like(x: Tensor, value: Any, *, dtype: Any = None) -> Tensor:
    if isinstance(value, Tensor):
        return value.to(device=x.device, dtype=dtype or x.dtype).expand(x.shape)
    if not isinstance(x, Tensor):  # a `Like`, which backward has instead of a tensor
        dtype = dtype or x.dtype
        return torch.full(x.shape, fitting(value, dtype), dtype=dtype, device=x.device)
    return torch.full_like(x, fitting(value, dtype or x.dtype), dtype=dtype)


def erf(x: Tensor) -> Tensor:
    # torch 2.13: the bfloat16 kernel is off by 6 % near zero.
    return torch.erf(x.float()).to(x.dtype) if x.dtype == torch.bfloat16 else torch.erf(x)


@aligned
def fmod(a: Tensor, b: Tensor) -> Tensor:
    # torch 2.13, CPU: NaN where a / b overflows. So first by a multiple of b, not far below 1.
    power = 2.0 ** (1022 if b.dtype == torch.float64 else 126)
    return torch.fmod(torch.fmod(a, torch.where(b.abs() < 1, b * power, b)), b)


def of_integers(function: Callable[..., Tensor], a: Tensor, b: Tensor) -> Tensor:
    """Return a quotient or remainder of integers, 0 for b = 0, where torch raises an error."""
    is_zero = b == 0
    return function(a, torch.where(is_zero, 1, b)).masked_fill(is_zero, 0)


def floor_divide(a: Tensor, b: Any) -> Tensor:
    # torch computes 16-bit floats with a number in float32, and does not round the number.
    if isinstance(b, float) and isinstance(a, Tensor) and a.is_floating_point():
        return torch.div(a, b, rounding_mode="floor")
    return floor_divide_aligned(a, b)


@aligned
def floor_divide_aligned(a: Tensor, b: Tensor) -> Tensor:
    if not b.is_floating_point():
        return of_integers(torch.floor_divide, a, b)
    # torch.floor_divide has no derivative, this has zero.
    return torch.div(a, b, rounding_mode="floor")


@aligned
def remainder(a: Tensor, b: Tensor) -> Tensor:
    if not b.is_floating_point():
        return of_integers(torch.remainder, a, b)
    residue = fmod(a, b)
    return torch.where((residue != 0) & ((residue < 0) != (b < 0)), residue + b, residue)


def stop_gradient(x: Tensor) -> Tensor:
    return x.detach()


FORMATS = {
    "": torch.preserve_format,
    "C": torch.contiguous_format,
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
}


def memory(x: Tensor, *, how: str) -> Tensor:
    if how == "copy":  # that of most copies, in the hot path of a class that returns its input
        return x.clone()
    word, _, order = how.partition(" ")
    if word == "alias":
        return x.view_as(x)
    if word == "own":  # torch calls what is detached no view
        return x if torch.is_grad_enabled() else x.detach()
    copy = torch.clone if word == "copy" else Tensor.contiguous
    return copy(x, memory_format=FORMATS[order])


# --- activations ---------------------------------------------------------------------------------


def softplus(x: Tensor) -> Tensor:
    # With the default threshold of 20 torch returns x where log1p(exp(-x)) still counts in float64.
    return F.softplus(x, threshold=40.0)


def heaviside(x: Tensor) -> Tensor:
    # Compared directly into floats: 136 us for 1e6 elements, 996 us through bools (torch.heaviside
    # 5.2 ms). `out=` has no batching rule, no derivative and no name in ONNX, and tensor subclasses
    # may lack it, so it is used only where none of these matters.
    if torch.is_grad_enabled() or transforms_active() or torch.jit.is_tracing():
        return (x > 0).to(x.dtype)
    if type(x) is not Tensor or not (torch.compiler.is_compiling() or count_modes() == 0):
        return (x > 0).to(x.dtype)
    return torch.gt(x, 0, out=torch.empty_like(x))


def leaky_relu(x: Tensor, *, slope: float) -> Tensor:
    return F.leaky_relu(x, slope)


def gelu(x: Tensor, *, approximate: bool) -> Tensor:
    return F.gelu(x, approximate="tanh" if approximate else "none")


# Of torch before 2.9, `kernels/former.py`: fusing may not use torch's own kernels of these ops.
MENDED: dict[Op, Callable[..., Any]] = {}


def named(library: Any, names: str) -> dict[Op, Callable[..., Any]]:
    return {getattr(ops, name.upper()): getattr(library, name) for name in names.split()}


BY_NAME = """
    abs atan ceil cos cosh exp expm1 floor isfinite isinf isnan log log1p pow reciprocal relu round
    rsqrt sigmoid sin sinh sqrt square tanh trunc
"""
OPS: dict[Op, Callable[..., Any]] = {
    **rows_of(vars(), ops.CORE_OPS),
    **named(torch, BY_NAME),
    **named(torch.special, "erfc"),
    **named(F, "elu relu6 silu"),
    ops.MEMORY: memory,
}

# Kernels for a tensor and a number. In torch `1.0 - x` passes a Python wrapper, rsub does not.
SCALAR_LEFT: dict[Op, Callable[..., Any]] = {
    ops.SUB: torch.rsub,
    ops.MAXIMUM: clamp_min,
    ops.MINIMUM: clamp_max,
}
SCALAR_RIGHT: dict[Op, Callable[..., Any]] = {
    ops.MAXIMUM: clamp_min,
    ops.MINIMUM: clamp_max,
}
