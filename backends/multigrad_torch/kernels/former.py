"""Kernels instead of those of torch before 2.9 that lose digits or NaN; see docs/versions.md.

They take the places of the core's as this file is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

from multigrad.core import ops
from multigrad.core.ir.op import Op

from ..core.kernels.elementwise import MENDED, aligned, of_integers, widened
from ..core.kernels.fast import FAST, INTO
from ..core.kernels.ops import OPS

Tensor: TypeAlias = torch.Tensor
BIG = 1e30  # far above where 1 + x equals x


@widened
def former_elu(x: Tensor, *, alpha: float) -> Tensor:
    """Return elu by expm1: exp(x) - 1 is 0 from -6e-8 on. The slope at NaN is 1, as torch's is."""
    return torch.where(x <= 0, alpha * torch.expm1(x.clamp(max=0)), x)


def former_soft_shrink(x: Tensor, *, lambd: float) -> Tensor:
    """Return soft_shrink with NaN for NaN, for which torch returns 0."""
    return torch.where(x.isnan(), x, F.softshrink(x, lambd))


def former_log1p(x: Tensor) -> Tensor:
    return torch.where(x > BIG, torch.log(x), torch.log1p(x))


@aligned
def former_floor_divide(a: Tensor, b: Tensor) -> Tensor:
    """Return the floored quotient, infinite where a / b overflows, where torch returns NaN."""
    if not b.is_floating_point():
        return of_integers(torch.floor_divide, a, b)
    quotient = torch.div(a, b, rounding_mode="floor")
    overflows = quotient.isnan() & a.isfinite() & ~b.isnan()
    return torch.where(overflows, torch.floor((a / b).detach()), quotient)


FORMER: dict[Op, Callable[..., Any]] = {
    ops.ELU: former_elu,
    ops.SOFT_SHRINK: former_soft_shrink,
    ops.LOG1P: former_log1p,
    ops.FLOOR_DIVIDE: former_floor_divide,
}
MENDED.update(FORMER)
OPS.update(FORMER)
for op in FORMER:  # fast code may not use torch's own either
    FAST.in_place.pop(op, None)
    INTO.pop(op, None)
