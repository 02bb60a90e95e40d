"""torch's kernels of exact ops: what it does not round once (2.13, CPU).

Its square root is MKL's, another number for one in six float32; a number over a tensor is a
reciprocal and a product. Inductor computes 16-bit floats in float32, and keeps that from op to op,
through casts to 16 bits and back too.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch

from multigrad.core import ops
from multigrad.core.backend.rows import rows_of
from multigrad.core.passes.decisions import APART, NUMBER_OVER, ROUNDED, as_exact

from . import elementwise

Tensor: TypeAlias = torch.Tensor
HALF_OF_FLOAT64 = 2.0**27 + 1.0


def rounded(x: Tensor) -> Tensor:
    """Return 16-bit floats of compiled code, which may be float32 inside, as rounded."""
    if x.dtype not in elementwise.HALVES:
        return x
    wide = x.float()
    bits = wide.view(torch.int32)
    dropped = 16 if x.dtype is torch.bfloat16 else 13
    to_even = (1 << dropped - 1) - 1 + (bits >> dropped & 1)
    result = (bits + to_even & -1 << dropped).view(torch.float32)
    if x.dtype is torch.float16:
        result = torch.where(wide.abs() < 2.0**-14, (wide + 0.75) - 0.75, result)  # subnormal
        result = torch.where(result.abs() > 65504.0, wide * math.inf, result)
    return torch.where(torch.isfinite(wide), result, wide).to(x.dtype)


def sqrt(x: Tensor) -> Tensor:
    if not x.is_cpu or x.dtype in elementwise.HALVES:
        return torch.sqrt(x)
    if x.dtype is torch.float32:
        return torch.sqrt(x.double()).float()
    root = torch.sqrt(x)
    return root + error_of_root(x.detach(), root.detach())


def error_of_root(x: Tensor, root: Tensor) -> Tensor:
    """Return the rounding error of a float64 root, whose square is computed exactly, in halves."""
    product, scaled = root * root, HALF_OF_FLOAT64 * root
    high = scaled - (scaled - root)
    low = root - high
    beyond = ((high * high - product) + 2.0 * high * low) + low * low
    return torch.nan_to_num(((x - product) - beyond) / (2.0 * root), 0.0, 0.0, 0.0)


def pow_(a: Any, b: Any) -> Tensor:
    if isinstance(b, float | int) and abs(b) == 0.5:
        return sqrt(a) if b > 0 else torch.rsqrt(a)
    return torch.pow(a, b)


def div_of_number(a: Any, b: Tensor) -> Tensor:
    return torch.as_tensor(a, dtype=b.dtype, device=b.device) / b


OPS = {**as_exact(rows_of(vars(), ops.CORE_OPS)), NUMBER_OVER: div_of_number}
IN_COMPILED = {**OPS, APART: rounded, ROUNDED: rounded}
