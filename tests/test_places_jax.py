"""JAX's functions that give or take integer places mean in a graph what they mean in JAX."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest

from .harness.own_library import assert_as_in
from .harness.places import X

jax: Any = pytest.importorskip("jax")
pytestmark = pytest.mark.needs("jax")
jnp = jax.numpy
Tensor = Any
CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "argmax": lambda t: t * jnp.argmax(t, axis=1, keepdims=True),
    "taken in order": lambda t: (
        jnp.take_along_axis(t, jnp.argsort(t, axis=-1, descending=True), axis=-1) * 2
    ),
    "take": lambda t: jnp.take(t, jnp.argmax(t[:, :, 0], axis=1), axis=1),
    "top_k": lambda t: operator.mul(*jax.lax.top_k(t, 2)),
    "one_hot": lambda t: jax.nn.one_hot(jnp.argmax(t, -1), 5) * t,
    "set at": lambda t: t.at[jnp.arange(3), jnp.argmax(t[:, :, 0], 1)].set(0.0),
    "add at": lambda t: jnp.zeros_like(t).at[:, :, jnp.argmax(t[0], -1)].add(t[..., :4]),
    "two indices": lambda t: t[jnp.arange(3), jnp.argmax(t[:, :, 0], 1)],
    "nearest": lambda t: t[0][jnp.argmin(((t[1][:, None] - t[0][None]) ** 2).sum(-1), axis=-1)],
    "segment_sum": lambda t: jax.ops.segment_sum(
        t[:, 0, 0], jnp.argmax(t[:, 0], 1), num_segments=5
    ),
    "how many": lambda t: t * jnp.sum(t > 0, axis=-1, keepdims=True),
    "cast": lambda t: t * (t * 3).astype(jnp.int32),
    "put_along_axis": lambda t: jnp.put_along_axis(
        t, jnp.argmax(t, 1, keepdims=True), 9.0, 1, inplace=False
    ),
    "take, clipped": lambda t: jnp.take(t, jnp.argmax(t[0], -1) + 2, axis=2, mode="clip"),
    "argmax of all": lambda t: t * jnp.argmax(t),
    "bincount": lambda t: jnp.bincount(jnp.argmax(t, -1).ravel(), length=6) * t.sum(),
}


@pytest.mark.parametrize("name", CASES)
def test_places_mean_what_they_mean_in_jax(name: str) -> None:
    assert_as_in("jax", CASES[name], X, atol=1e-6)
