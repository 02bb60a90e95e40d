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
from . import arrays, random

Tensor: TypeAlias = torch.Tensor


def digamma(x: Tensor) -> Tensor:
    return digamma_by_reflection(torch, torch.digamma, x)


def polygamma(x: Tensor, *, n: int) -> Tensor:
    return polygamma_by_zeta(torch, torch.special.zeta, x, n)


SPECIAL = {
    ops.DIGAMMA: digamma,
    ops.POLYGAMMA: polygamma,
    **elementwise.named(torch, "erfinv lgamma sinc"),
    **elementwise.named(torch.special, "i0e i1e log_ndtr ndtri"),
}
OTHERS: dict[Op, Callable[..., Any]] = {**random.OPS, **SPECIAL, **arrays.OPS, **distributed.OPS}
OTHERS |= {op: elementwise.widened(OTHERS[op]) for op in (*IN_FLOAT32, ops.LOG_NDTR)}
OPS = {**OTHERS, **OWN}
OPS = {**compositions(OPS, elementwise.widened, arrays.positions), **OPS}
