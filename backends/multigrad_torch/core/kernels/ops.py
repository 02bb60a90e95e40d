"""torch's kernel table, op to callable. Symbols that are left out are written infix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multigrad.core import ops
from multigrad.core.backend.rows import composing
from multigrad.core.ir.op import Op
from multigrad.core.support.lazy_modules import late_value

from . import elementwise, reductions

OWN: dict[Op, Callable[..., Any]] = {**elementwise.OPS, **reductions.OPS}
# Computed in float32 for 16-bit floats and rounded once, as torch's kernels either lack 16 bits or
# round more than once (torch 2.13, CPU: log_softmax up to 0.9 eps, a product of 1001 numbers 47).
WIDE = (*(ops.CBRT, ops.HARD_SHRINK, ops.LOG_SOFTMAX, ops.LOGSUMEXP, ops.PROD),)
OWN |= {op: elementwise.widened(OWN[op]) for op in WIDE}

OPS = composing(
    OWN,
    late_value("multigrad_torch.kernels.other_ops:OPS"),
    elementwise.widened,
    draws=late_value("multigrad_torch.kernels.random:OPS"),
)
UNSUPPORTED: dict[Op, str] = {}
