"""JAX's rows of the activations: op to callable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from multigrad.backend import rows_of
from multigrad.graph import ops
from multigrad.graph.ir.op import Op

from .elementwise import accumulated, is_staged_out, widened

Tensor = Any
WIDE_FLOATS = (jnp.dtype("float32"), jnp.dtype("float64"))


def sigmoid(x: Tensor) -> Tensor:
    if is_staged_out(x) and x.aval.dtype in WIDE_FLOATS:
        return jax.lax.logistic(x)  # as jax.nn has it
    # XLA's 1 / (1 + exp(-x)) overflows in float16, and is 0, from -11 down.
    if x.dtype == jnp.float16:
        return jax.nn.sigmoid(x.astype(jnp.float32)).astype(x.dtype)
    return jax.nn.sigmoid(x)


def heaviside(x: Tensor) -> Tensor:
    return (x > 0).astype(x.dtype)


def leaky_relu(x: Tensor, *, slope: float) -> Tensor:
    return jax.nn.leaky_relu(x, slope)


def gelu(x: Tensor, *, approximate: bool) -> Tensor:
    return jax.nn.gelu(accumulated(x), approximate=approximate).astype(x.dtype)


OPS: dict[Op, Callable[..., Any]] = {
    **rows_of(vars()),
    ops.LOG_SIGMOID: widened(jax.nn.log_sigmoid),
    ops.RELU6: jax.nn.relu6,  # its own gradient is 0 at its bounds; that of a clip is 1
    ops.ELU: jax.nn.elu,
    ops.RELU: jax.nn.relu,
    ops.SILU: jax.nn.silu,
    ops.SOFTPLUS: jax.nn.softplus,
}
NAMES = """
    sigmoid: nn.sigmoid special.expit; log_sigmoid: nn.log_sigmoid; logit: special.logit;
    silu: nn.silu nn.swish; softplus: nn.softplus; mish: nn.mish; relu: nn.relu; relu6: nn.relu6;
    selu: nn.selu; sparse_plus: nn.sparse_plus; sparse_sigmoid: nn.sparse_sigmoid;
    soft_sign: nn.soft_sign; hard_sigmoid: nn.hard_sigmoid; hard_silu: nn.hard_silu nn.hard_swish
"""
