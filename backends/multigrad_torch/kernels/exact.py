"""torch's kernels of exact ops: what it rounds twice (2.13, CPU).

Its square root is MKL's, another number for one in six float32; a number over a tensor is a
reciprocal and a product.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from multigrad.backend import rows_of
from multigrad.graph.passes.decisions import NUMBER_OVER, as_exact

Tensor: TypeAlias = torch.Tensor
HALF_OF_FLOAT64 = 2.0**27 + 1.0


def sqrt(x: Tensor) -> Tensor:
    if torch.compiler.is_compiling() or not x.is_cpu:
        return torch.sqrt(x)
    if x.dtype is not torch.float64:
        return torch.sqrt(x.double()).to(x.dtype)
    root = torch.sqrt(x)
    return root + error_of_root(x.detach(), root.detach())


def error_of_root(x: Tensor, root: Tensor) -> Tensor:
    """Return what a root in float64 lacks: its square is computed in two halves, without error."""
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


OPS = {**as_exact(rows_of(vars())), NUMBER_OVER: div_of_number}
