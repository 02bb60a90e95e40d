"""JAX's kernels of elementwise ops and activations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from multigrad.core import ops
from multigrad.core.backend.rows import rows_of
from multigrad.core.ir.op import Op

from .. import versions

Tensor: TypeAlias = jax.Array
HALVES = (jnp.dtype("float16"), jnp.dtype("bfloat16"))


def is_tensor(value: Any) -> bool:
    return isinstance(value, jax.Array)


def is_staged_out(x: Any) -> bool:
    """Return whether a value is a tracer of a jaxpr, with no vmap or derivative around it."""
    # by name: the class is in an internal module of jax
    return type(x).__name__ == "DynamicJaxprTracer"


def accumulated(x: Tensor) -> Tensor:
    """Return 16-bit floats in float32, so that a reduction rounds once."""
    return x.astype(jnp.float32) if x.dtype.itemsize == 2 else x


def widened(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that computes 16-bit floats in float32 and rounds once."""

    @functools.wraps(function)
    def call(*values: Any, **attrs: Any) -> Tensor:
        if not any(getattr(x, "dtype", None) in HALVES for x in values):
            return function(*values, **attrs)
        dtype = jnp.result_type(*values)
        if dtype not in HALVES:
            return function(*values, **attrs)
        wide_values = (jnp.asarray(v, dtype).astype(jnp.float32) for v in values)
        return function(*wide_values, **attrs).astype(dtype)

    return call


def clip(x: Tensor, min: Any, max: Any) -> Tensor:
    return jnp.minimum(jnp.maximum(x, min), max)


def cast(x: Tensor, *, dtype: Any) -> Tensor:
    if x.dtype == jnp.float64 and str(dtype).startswith("float8"):
        x = x.astype(jnp.float32)  # rounded twice, as in all backends
    # Where int64 is switched off, JAX warns before it takes int32.
    return x.astype(jax.dtypes.canonicalize_dtype(dtype) if dtype == jnp.int64 else dtype)


def floor_divide(a: Tensor, b: Tensor) -> Tensor:
    return zero_at_zero(versions.floor_divide(a, b), b)


def remainder(a: Tensor, b: Tensor) -> Tensor:
    return zero_at_zero(jnp.remainder(a, b), b)


def zero_at_zero(result: Tensor, b: Tensor) -> Tensor:
    if jnp.issubdtype(result.dtype, jnp.floating) or (isinstance(b, int) and b):
        return result
    # JAX leaves integers divided by 0 open; every backend gives 0
    return jnp.where(b == 0, 0, result)


def power(a: Tensor, b: Tensor) -> Tensor:
    # for an int jax multiplies out, and x ** -3 overflows in float16
    result = jnp.power(a, float(b) if isinstance(b, int) else b)
    if isinstance(b, int | float) and b == 2:
        return result
    # XLA rewrites log(a ** b) as b log |a|, a number where it must be NaN, unless an op is between.
    return jnp.where(jnp.isnan(result), result + result, result)


def log1p(x: Tensor) -> Tensor:
    return log1p_wide(x) if x.dtype == jnp.float64 else jnp.log1p(x)


@jax.custom_jvp
def log1p_wide(x: Tensor) -> Tensor:
    """Return log1p by Kahan: XLA's in float64 (jax 0.10, CPU) is off by 150 ulp below 0."""
    # Without the barrier compiled code takes (1 + x) - 1 for x, and the correction is gone.
    one_plus_x = jax.lax.optimization_barrier(1.0 + x)
    corrected = jnp.log(one_plus_x) * (x / (one_plus_x - 1.0))
    return jnp.where(one_plus_x == 1.0, x, jnp.where(jnp.isinf(x), jnp.log(one_plus_x), corrected))


@log1p_wide.defjvp
def differentiate_log1p(primals: tuple[Tensor], tangents: tuple[Tensor]) -> tuple[Tensor, Tensor]:
    (x,), (tangent,) = primals, tangents
    return log1p_wide(x), tangent / (1.0 + x)


def cosh(x: Tensor) -> Tensor:
    # XLA's (jax 0.10, CPU) is off by 12 eps at 88: exp(x + log(0.5)).
    root = jnp.exp(0.5 * jnp.abs(x))
    return (0.5 * root) * root + 0.5 / (root * root)


def sinh(x: Tensor) -> Tensor:
    root = jnp.exp(0.5 * jnp.abs(x))
    # far from 0 XLA's (jax 0.10, CPU) is off as its cosh is
    tails = jnp.copysign((0.5 * root) * root - 0.5 / (root * root), x)
    return jnp.where(jnp.abs(x) < 1.0, jnp.sinh(x), tails)


WIDE_FLOATS = (jnp.dtype("float32"), jnp.dtype("float64"))


def sigmoid(x: Tensor) -> Tensor:
    if is_staged_out(x) and x.aval.dtype in WIDE_FLOATS:
        return jax.lax.logistic(x)  # as in jax.nn, with fewer steps
    # XLA's 1 / (1 + exp(-x)) overflows in float16, and is 0, from -11 down.
    if x.dtype == jnp.float16:
        return jax.nn.sigmoid(x.astype(jnp.float32)).astype(x.dtype)
    return jax.nn.sigmoid(x)


@functools.partial(jax.jit, inline=True)  # one kernel in eager code instead of two
def heaviside(x: Tensor) -> Tensor:
    return (x > 0).astype(x.dtype)


def leaky_relu(x: Tensor, *, slope: float) -> Tensor:
    return jax.nn.leaky_relu(x, slope)


# The functions of `jax.numpy` that have the names of their ops.
SAME = """
    abs ceil cos exp expm1 floor full_like isfinite isinf isnan log maximum minimum round sign sin
    sqrt square tanh trunc where
"""
SAME_IN_LAX = "rsqrt erf erfc stop_gradient"
# The own gradient of its relu6 is 0 at the bounds; that of a clip is 1.
SAME_IN_NN = "relu6 elu gelu relu silu softplus"
OPS: dict[Op, Callable[..., Any]] = {
    **rows_of(vars(), ops.CORE_OPS),
    **rows_of({name: getattr(jnp, name) for name in SAME.split()}, ops.CORE_OPS),
    ops.POW: power,
    ops.ATAN: jnp.arctan,
    **rows_of({name: getattr(jax.lax, name) for name in SAME_IN_LAX.split()}, ops.CORE_OPS),
    **rows_of({name: getattr(jax.nn, name) for name in SAME_IN_NN.split()}, ops.CORE_OPS),
}
