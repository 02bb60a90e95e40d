"""JAX's kernels by op, with those of reductions and shapes; an op with a symbol that is left out is
emitted infix.

Here are those of the core; those in `other_ops.py` load as one of them is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from multigrad.core import ops
from multigrad.core.backend.rows import composing, rows_of
from multigrad.core.ir.op import Op
from multigrad.core.ops.reductions import over_axes
from multigrad.core.support.lazy_modules import late_value

from . import elementwise

Tensor: TypeAlias = jax.Array
Axis = int | tuple[int, ...] | None


def sum_to(x: Tensor, like: Tensor) -> Tensor:
    lengths, shape = x.shape, like.shape
    if lengths == shape:
        return x
    lead = len(lengths) - len(shape)
    ones = [lead + i for i, n in enumerate(shape) if n == 1 != lengths[lead + i]]
    axes = (*range(lead), *ones)
    return jnp.sum(x, axis=axes, keepdims=True).reshape(shape) if axes else x


def broadcast_to(x: Tensor, like: Tensor) -> Tensor:
    return jnp.broadcast_to(x, like.shape)


def dim(x: Tensor, *, axis: int) -> int:
    return x.shape[axis]


def size(x: Tensor) -> int:
    return x.size


def array(like: Tensor, *, dtype: Any, value: Any) -> Tensor:
    # without a device: a constant goes where the other operands are
    return jnp.asarray(value.as_numpy(jnp.dtype(dtype)))


# --- the table ------------------------------------------------------------------------------------
# The functions of `jax.numpy` that have the names of their ops; `sum` adds up 16 bits in float32.
REDUCTIONS = "sum mean max min any all"
OWN: dict[Op, Callable[..., Any]] = {
    **elementwise.OPS,
    **rows_of(vars(), ops.CORE_OPS),
    **rows_of({name: over_axes(getattr(jnp, name)) for name in REDUCTIONS.split()}, ops.CORE_OPS),
    ops.EXPAND_DIMS: jnp.expand_dims,
    ops.BROADCAST_TO_SHAPE: jnp.broadcast_to,
}
# Computed in float32 for 16-bit floats and rounded once.
WIDE = (ops.FLOOR_DIVIDE, ops.REMAINDER, ops.COSH, ops.SINH, ops.GELU)
OWN |= {op: elementwise.widened(OWN[op]) for op in WIDE}
OPS = composing(
    OWN,
    late_value("multigrad_jax.kernels.other_ops:OPS"),
    elementwise.widened,
    draws=late_value("multigrad_jax.kernels.random:OPS"),
)
UNSUPPORTED: dict[Op, str] = {}
