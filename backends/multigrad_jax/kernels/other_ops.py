"""The rows of JAX's kernel table that elementwise rules and reductions need not: special functions,
indices, products, matrices, orders, and what shards exchange.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.scipy import special

from multigrad.core import ops
from multigrad.core.backend.rows import rows_of
from multigrad.core.ir.op import Op
from multigrad.engine.backend.array_rows import compositions
from multigrad.engine.ops import special as special_ops
from multigrad.engine.ops.families import IN_FLOAT32
from multigrad.engine.ops.special_functions import digamma_by_reflection, polygamma_by_zeta

from .. import distributed
from ..core.kernels import elementwise
from ..core.kernels import ops as core
from . import arrays, random, shapes

Tensor: TypeAlias = Any


def sinc(x: Tensor) -> Tensor:
    # jax 0.11 gives 0 at both infinities, earlier ones NaN as NumPy.
    return jnp.where(jnp.isinf(x), math.nan, jnp.sinc(x))


def erfinv(x: Tensor) -> Tensor:
    # XLA's (jax 0.10, CPU) is off by 15 eps in float64: one Newton step, in the tails by erfc
    root, magnitude = jax.lax.erf_inv(x), jnp.abs(x)
    tail_error = jnp.sign(x) * ((1.0 - magnitude) - jax.lax.erfc(jnp.abs(root)))
    error = jnp.where(magnitude < 0.5, jax.lax.erf(root) - x, tail_error)
    refined = root - error * (math.sqrt(math.pi) / 2) * jnp.exp(root * root)
    # at 1 and beyond the step is NaN
    return jnp.where(magnitude < 1.0, refined, root)


def digamma(x: Tensor) -> Tensor:
    # XLA's is NaN at 0; the where within keeps gradients as they are elsewhere
    pole, elsewhere = -1.0 / jnp.where(x == 0, x, 1.0), jnp.where(x == 0, 1.0, x)
    return jnp.where(x == 0, pole, digamma_by_reflection(jnp, jax.lax.digamma, elsewhere))


def polygamma(x: Tensor, *, n: int) -> Tensor:
    return polygamma_by_zeta(jnp, special.zeta, x, n)


SPECIAL: dict[Op, Callable[..., Any]] = {
    **rows_of(vars(), ops.rows_in((special_ops,)).values()),
    **{op: getattr(special, op.name) for op in (ops.NDTRI, ops.I0E, ops.I1E)},
    ops.LGAMMA: jax.lax.lgamma,
    ops.DEG2RAD: jnp.deg2rad,
    ops.RAD2DEG: jnp.rad2deg,
}
OWN: dict[Op, Callable[..., Any]] = {**SPECIAL, **arrays.OPS, **distributed.OPS, **core.OWN}
OWN |= random.OPS
WIDE = (
    *IN_FLOAT32,
    ops.CUMSUM,
    ops.CUMPROD,
    ops.CONV,
    ops.EINSUM,
    ops.SINC,
    ops.ERFINV,
    ops.DEG2RAD,
    ops.RAD2DEG,
)
OWN |= {op: elementwise.widened(OWN[op]) for op in WIDE}
OPS = {**compositions(OWN, elementwise.widened, shapes.positions), **OWN}
