"""Quantizers of JAX that go through int8, uint8 or float8 are the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..harness.few_bits import COTANGENT, X, assert_equals

jax: Any = pytest.importorskip("jax")
pytestmark = pytest.mark.needs("jax")
jnp = jax.numpy
Tensor = Any


@jax.custom_vjp
def fake_int8(x: Tensor) -> Tensor:
    scale = jnp.max(jnp.abs(x), axis=-1, keepdims=True) / 127.0
    q = jnp.clip(jnp.round(x / scale), -128, 127).astype(jnp.int8)
    return q.astype(x.dtype) * scale


fake_int8.defvjp(lambda x: (fake_int8(x), None), lambda kept, ct: (ct,))


@jax.custom_vjp
def saturated(x: Tensor) -> Tensor:
    """What is beyond a dtype is its end, as JAX casts it."""
    q = jax.lax.convert_element_type(x * 100, jnp.uint8)
    return (q >> 1).astype(x.dtype) + (x * 100).astype("int8").astype(x.dtype)


saturated.defvjp(
    lambda x: (saturated(x), jnp.packbits(x > 0, axis=-1)),
    lambda kept, ct: (ct * jnp.unpackbits(kept, axis=-1, count=ct.shape[-1]).astype(ct.dtype),),
)


@jax.custom_jvp
def float8(x: Tensor) -> Tensor:
    limit = jnp.finfo(jnp.float8_e4m3fn).max.astype(x.dtype)
    return jnp.clip(x * 300, -limit, limit).astype(jnp.float8_e4m3fn).astype(x.dtype) / 300


@float8.defjvp
def float8_jvp(primals: Any, tangents: Any) -> Any:
    return float8(*primals), tangents[0]


def by_stop_gradient(x: Tensor) -> Tensor:
    q = jnp.clip(jnp.round(x * 10), -8, 7).astype(jnp.int8)
    return x + jax.lax.stop_gradient(q * jnp.asarray(0.1, x.dtype) - x)


CASES: dict[str, tuple[Callable[..., Any], Tensor]] = {
    "int8": (xg.from_custom_vjp, fake_int8), "saturated": (xg.from_custom_vjp, saturated),
    "float8": (xg.function, float8), "stop_gradient": (xg.function, by_stop_gradient),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_quantizer_of_jax_is_the_same_everywhere(name: str, backend: Any) -> None:
    convert, function = CASES[name]
    expected, pull = jax.vjp(function, jnp.asarray(X))
    (gradient,) = pull(jnp.asarray(COTANGENT))
    graph = convert(function)
    assert_equals(graph, np.asarray(expected), np.asarray(gradient), backend)
