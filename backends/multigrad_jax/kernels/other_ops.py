"""The rows of JAX's kernel table that rules of the library and activations need not: other
elementary functions and reductions, special functions, indices, products, matrices, orders, and
what shards exchange.
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
from multigrad.core.ops.reductions import over, over_axes
from multigrad.engine.backend.array_rows import compositions
from multigrad.engine.ops.families import IN_FLOAT32
from multigrad.engine.ops.special_functions import digamma_by_reflection, polygamma_by_zeta

from .. import distributed
from ..core.kernels import elementwise
from ..core.kernels import ops as core
from . import arrays, random, shapes

Tensor: TypeAlias = Any
Axis = int | tuple[int, ...] | None


# --- elementary functions, reductions and shapes --------------------------------------------------
def flushed(x: Tensor) -> Tensor:
    # XLA takes some subnormal numbers for other numbers: zero, with the sign
    return jnp.where(jnp.abs(x) < jnp.finfo(x.dtype).tiny, 0.0 * x, x)


def cbrt(x: Tensor) -> Tensor:
    # XLA's (jax 0.10, CPU) gives -5.6e-16 for subnormal numbers, which it flushes elsewhere.
    if x.dtype == jnp.float16:
        return jnp.cbrt(x)
    return jnp.cbrt(flushed(x))


def atan2(a: Tensor, b: Tensor) -> Tensor:
    # XLA's (jax 0.10, CPU) is NaN for two subnormal numbers, and -pi for 5e-324 over -1.
    dtype = jnp.result_type(a, b)
    return jnp.arctan2(flushed(jnp.asarray(a, dtype)), flushed(jnp.asarray(b, dtype)))


def exp2(x: Tensor) -> Tensor:
    # XLA's (jax 0.10, CPU) is exp(x log 2), off by 9 eps in float32 and 36 in bfloat16.
    exponents = jnp.clip(jnp.round(x), -1100.0, 1100.0)
    return jnp.ldexp(jnp.exp((x - exponents) * math.log(2)), exponents.astype(jnp.int32))


def atanh(x: Tensor) -> Tensor:
    if x.dtype != jnp.float64:
        return jnp.arctanh(x)
    magnitude = jnp.abs(x)  # by our log1p: XLA's (jax 0.10, CPU) is off by 56 eps
    return jnp.copysign(0.5 * elementwise.log1p(2.0 * magnitude / (1.0 - magnitude)), x)


def count_nonzero(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return jnp.sum(x != 0, axis=over(x, axis), keepdims=keepdims).astype(x.dtype)


def logsumexp(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    axis = over(x, axis)
    largest = jnp.max(x, axis=axis, keepdims=True, initial=-jnp.inf)
    # without this, -inf - -inf gives NaN for a row of infinities
    shift = jnp.where(jnp.isfinite(largest), largest, 0)
    total = jnp.log(jnp.sum(jnp.exp(x - shift), axis=axis, keepdims=True)) + shift
    return total if keepdims else jnp.squeeze(total, axis)


def reshape_like(x: Tensor, like: Tensor) -> Tensor:
    return jnp.reshape(x, like.shape)


# The functions of `jax.numpy` that have the names of their ops.
SAME = """
    copysign fmax fmin fmod hypot log10 log2 logaddexp nan_to_num nextafter reshape signbit squeeze
    tan
"""
ELEMENTARY: dict[Op, Callable[..., Any]] = {
    **rows_of(vars()),
    **rows_of({name: getattr(jnp, name) for name in SAME.split()}),
    ops.ASIN: jnp.arcsin,
    ops.ACOS: jnp.arccos,
    ops.ASINH: jnp.arcsinh,
    ops.ACOSH: jnp.arccosh,
    ops.BITWISE_LEFT_SHIFT: jnp.left_shift,
    ops.BITWISE_RIGHT_SHIFT: jnp.right_shift,
    ops.PROD: over_axes(jnp.prod),
    ops.VAR: over_axes(jnp.var),
    ops.STD: over_axes(jnp.std),
    ops.LOG_SIGMOID: jax.nn.log_sigmoid,
    ops.SOFTMAX: over_axes(jax.nn.softmax),
    ops.LOG_SOFTMAX: over_axes(jax.nn.log_softmax),
}


# --- special functions ----------------------------------------------------------------------------


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
    **rows_of(vars()),
    **{op: getattr(special, op.name) for op in (ops.NDTRI, ops.I0E, ops.I1E)},
    ops.LGAMMA: jax.lax.lgamma,
    ops.DEG2RAD: jnp.deg2rad,
    ops.RAD2DEG: jnp.rad2deg,
}
OWN: dict[Op, Callable[..., Any]] = {
    **ELEMENTARY,
    **SPECIAL,
    **arrays.OPS,
    **distributed.OPS,
    **core.OWN,
}
OWN |= random.OPS
WIDE = (
    *IN_FLOAT32,
    *(ops.ATAN2, ops.HYPOT, ops.FMOD, ops.EXP2, ops.LOG2, ops.LOG10, ops.LOGADDEXP),
    *(ops.LOG_SIGMOID, ops.PROD, ops.VAR, ops.STD, ops.LOGSUMEXP, ops.SOFTMAX, ops.LOG_SOFTMAX),
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
