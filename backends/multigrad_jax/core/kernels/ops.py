"""JAX's kernels by op; an op with a symbol that is left out is emitted infix.

Here are those of the core; those in `other_ops.py` load as one of them is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multigrad.core import ops
from multigrad.core.backend.rows import composing
from multigrad.core.ir.op import Op
from multigrad.core.support.lazy_modules import late_value

from . import elementwise, reductions

OWN: dict[Op, Callable[..., Any]] = {
    **elementwise.OPS,
    **reductions.OPS,
}
# Computed in float32 for 16-bit floats and rounded once.
WIDE = (
    *(ops.ATAN2, ops.HYPOT, ops.FMOD, ops.FLOOR_DIVIDE, ops.REMAINDER, ops.EXP2, ops.LOG2),
    *(ops.LOG10, ops.LOGADDEXP, ops.COSH, ops.SINH, ops.LOG_SIGMOID),
    *(ops.GELU, ops.PROD, ops.VAR, ops.STD, ops.LOGSUMEXP, ops.SOFTMAX, ops.LOG_SOFTMAX),
)
OWN |= {op: elementwise.widened(OWN[op]) for op in WIDE}
OPS = composing(
    OWN,
    late_value("multigrad_jax.kernels.other_ops:OPS"),
    elementwise.widened,
    draws=late_value("multigrad_jax.kernels.random:OPS"),
)
UNSUPPORTED: dict[Op, str] = {}
