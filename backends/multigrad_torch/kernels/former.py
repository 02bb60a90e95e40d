"""Kernels of torch before 2.9 that lose digits or NaN, computed otherwise; see docs/versions.md."""

from __future__ import annotations

from typing import TypeAlias

import torch
import torch.nn.functional as F

from multigrad.graph import ops

from ..versions import RELEASE

Tensor: TypeAlias = torch.Tensor
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805
BIG = 1e30  # from where on 1 + x is x


def elu(x: Tensor, *, alpha: float) -> Tensor:
    """Without exp(x) - 1, which is 0 from -6e-8 on; the slope at NaN is 1, as torch's is."""
    wide = x if x.dtype == torch.float64 else x.float()
    return torch.where(wide <= 0, alpha * torch.expm1(wide.clamp(max=0)), wide).to(x.dtype)


def celu(x: Tensor, *, alpha: float) -> Tensor:
    wide = x if x.dtype == torch.float64 else x.float()
    return torch.where(wide <= 0, alpha * torch.expm1(wide.clamp(max=0) / alpha), wide).to(x.dtype)


def selu(x: Tensor) -> Tensor:
    wide = x if x.dtype == torch.float64 else x.float()
    return (SELU_SCALE * elu(wide, alpha=SELU_ALPHA)).to(x.dtype)


def soft_shrink(x: Tensor, *, lambd: float) -> Tensor:
    """NaN stays NaN, where torch's gives 0."""
    return torch.where(x.isnan(), x, F.softshrink(x, lambd))


def log1p(x: Tensor) -> Tensor:
    """Finite up to the largest number of float32."""
    return torch.where(x > BIG, torch.log(x), torch.log1p(x))


OPS = {
    ops.ELU: elu,
    ops.CELU: celu,
    ops.SELU: selu,
    ops.SOFT_SHRINK: soft_shrink,
    ops.LOG1P: log1p,
}
MENDED = OPS if RELEASE < (2, 9) else {}


def floor_of(a: Tensor, b: Tensor) -> Tensor:
    """Infinite where a / b overflows, where torch's is NaN."""
    floored = torch.div(a, b, rounding_mode="floor")
    overflows = floored.isnan() & a.isfinite() & ~b.isnan()
    return torch.where(overflows, torch.floor((a / b).detach()), floored)
