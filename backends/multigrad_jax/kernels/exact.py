"""JAX's kernels of exact ops: arithmetic that XLA does not rewrite.

XLA (jax 0.10, CPU) multiplies by the reciprocal of a divisor that is broadcast, and of a root;
regroups constants; contracts a product and a sum; leaves out roundings to bfloat16. It does none of
this through a choice. An `optimization_barrier` is not enough: products are contracted after it is
gone, and under vmap a divisor behind it is still broadcast.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from multigrad.backend import rows_of
from multigrad.graph.passes.decisions import NUMBER_OVER, as_exact

from ..versions import core
from . import elementwise

Tensor = Any


def apart(x: Tensor) -> Tensor:
    """Return x, which compiled code computes as it is written, rounded."""
    return jnp.where(jnp.isnan(x), jnp.nan, x) if isinstance(x, core.Tracer) else x


def add(a: Any, b: Any) -> Tensor:
    return apart(a + b)


def sub(a: Any, b: Any) -> Tensor:
    return apart(a - b)


def mul(a: Any, b: Any) -> Tensor:
    return apart(a * b)


@functools.partial(jax.jit, inline=True)  # one kernel in eager code instead of three
def quotient(a: Any, b: Any) -> Tensor:
    return a / jnp.where(jnp.isnan(a), a, b)  # so that no divisor is known to be the same for all


def div(a: Any, b: Any) -> Tensor:
    return apart(quotient(a, b))


def square(x: Tensor) -> Tensor:
    return apart(x * x)


def sqrt(x: Tensor) -> Tensor:
    return apart(jnp.sqrt(x))


def rsqrt(x: Tensor) -> Tensor:
    return div(1.0, sqrt(x))


def reciprocal(x: Tensor) -> Tensor:
    return div(1.0, x)


def pow_(a: Any, b: Any) -> Tensor:
    return square(a) if isinstance(b, int | float) and b == 2 else apart(elementwise.power(a, b))


def cast(x: Tensor, *, dtype: Any) -> Tensor:
    return apart(elementwise.cast(x, dtype=dtype))


OPS = {**as_exact(rows_of(vars())), NUMBER_OVER: div}
