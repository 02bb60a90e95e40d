"""The rows of torch's kernel table that elementwise rules and reductions need not: special
functions, indices, products, matrices, orders, and what processes exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from multigrad.core import ops
from multigrad.core.ir.op import Op
from multigrad.engine.backend.array_rows import compositions
from multigrad.engine.ops.families import IN_FLOAT32
from multigrad.engine.ops.special_functions import digamma_by_reflection, polygamma_by_zeta

from .. import distributed
from ..core.kernels import elementwise
from ..core.kernels.ops import OWN
from ..core.versions import RELEASE
from . import arrays, random

Tensor: TypeAlias = torch.Tensor


def digamma(x: Tensor) -> Tensor:
    return digamma_by_reflection(torch, torch.digamma, x)


def polygamma(x: Tensor, *, n: int) -> Tensor:
    return polygamma_by_zeta(torch, torch.special.zeta, x, n)


def squareplus(x: Tensor, *, b: float) -> Tensor:
    # By torch's own functions: by our kernels, which also take numbers, it is a tenth slower.
    root = torch.hypot(x, torch.full((), b**0.5, dtype=x.dtype, device=x.device))
    return torch.where(x >= 0, 0.5 * x + 0.5 * root, 0.5 * b / (x.abs() + root))


def threshold(x: Tensor, *, threshold: float, default: float) -> Tensor:
    return torch.nn.functional.threshold(x, threshold, default)


def glu(x: Tensor, *, axis: int) -> Tensor:
    return torch.nn.functional.glu(x, axis)


# Kernels of torch before 2.9 that lose digits; see docs/versions.md.
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805


@elementwise.widened
def former_celu(x: Tensor, *, alpha: float) -> Tensor:
    return torch.where(x <= 0, alpha * torch.expm1(x.clamp(max=0) / alpha), x)


@elementwise.widened
def former_selu(x: Tensor) -> Tensor:
    return SELU_SCALE * torch.where(x <= 0, SELU_ALPHA * torch.expm1(x.clamp(max=0)), x)


FORMER: dict[Op, Callable[..., Any]] = {ops.CELU: former_celu, ops.SELU: former_selu}
SPECIAL: dict[Op, Callable[..., Any]] = {
    ops.DIGAMMA: digamma,
    ops.POLYGAMMA: polygamma,
    ops.SQUAREPLUS: squareplus,
    ops.THRESHOLD: threshold,
    ops.GLU: glu,
    ops.LERP: elementwise.aligned(torch.lerp),
    ops.XLOGY: elementwise.aligned(torch.xlogy),
    ops.XLOG1PY: elementwise.aligned(torch.special.xlog1py),
    **elementwise.named(torch.nn.functional, "celu mish selu"),
    **elementwise.named(torch, "deg2rad erfinv lgamma logit rad2deg sinc"),
    **elementwise.named(torch.special, "i0e i1e log_ndtr ndtri"),
    **(FORMER if RELEASE < (2, 9) else {}),
}
WIDE = (*IN_FLOAT32, ops.LOG_NDTR, ops.SQUAREPLUS, ops.GLU)
OTHERS: dict[Op, Callable[..., Any]] = {**random.OPS, **SPECIAL, **arrays.OPS, **distributed.OPS}
OTHERS |= {op: elementwise.widened(OTHERS[op]) for op in WIDE}
OPS = {**OTHERS, **OWN}
OPS = {**compositions(OPS, elementwise.widened, arrays.positions), **OPS}
