"""A small network that is trained on one device and on several: the same numbers are expected.

It computes in float64, so that the order of a sum over devices moves no spike over its threshold.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import multigrad as xg

STEPS = 12
ROWS, RATE = 8, 0.05
RNG = np.random.default_rng(16)
X = RNG.standard_normal((ROWS, 6))
Y = RNG.standard_normal((ROWS, 2))
WEIGHTS = {
    "first": 0.5 * RNG.standard_normal((6, 5)),
    "scale": 1.0 + 0.1 * RNG.standard_normal(5),
    "last": 0.5 * RNG.standard_normal((5, 2)),
}
Spec = Any
Reduce = Callable[..., Any] | None


@xg.custom_gradient
def scaled(x: Any, scale: Any) -> Any:
    """tanh(x) * scale, with a gradient of its own for what is split and for what is shared."""

    def gradient(upstream: Any) -> Any:
        return upstream * scale * jnp.maximum(0.0, 1.0 - jnp.abs(x)), (upstream * x).sum(0)

    return jnp.tanh(x) * scale, gradient


def hidden(kind: str, spec: Spec, x: Any, scale: Any, key: Any) -> Any:
    """Return the hidden layer; `spec` says how x is a part of the batch."""
    if kind == "function":
        return scaled(x, scale)
    if kind == "elementwise":
        return xg.activation("Heaviside", "triangular")(x) * scale
    if kind == "norm":
        return xg.activation("Tanh", "clip_norm", {"max_norm": 0.05}, over=spec)(x) * scale
    if kind == "random":
        with xg.use("full_jam", key=key, over=spec):
            return xg.activation("Tanh")(x) * scale
    return jnp.tanh(x) * scale


def loss(weights: Any, x: Any, y: Any, key: Any, kind: str, spec: Spec) -> Any:
    h = hidden(kind, spec, x @ weights["first"], weights["scale"], key)
    return ((h @ weights["last"] - y) ** 2).sum() / ROWS


def train(weights: Any, x: Any, y: Any, kind: str, spec: Spec = None, reduce: Reduce = None) -> Any:
    """Return the trained weights; `reduce` sums gradients of shards where jax does not."""

    def step(weights: Any, i: Any) -> Any:
        key = jax.random.fold_in(jax.random.key(3), i)
        gradients = jax.grad(loss)(weights, x, y, key, kind, spec)
        if reduce is not None:
            gradients = jax.tree.map(reduce, gradients)
        if kind == "gradients":
            gradients = xg.apply_to_gradients(gradients, "clip_norm", {"max_norm": 0.01})
        return jax.tree.map(lambda w, g: w - RATE * g, weights, gradients), None

    return jax.lax.scan(step, weights, jnp.arange(STEPS))[0]


@functools.lru_cache
def alone(kind: str) -> Any:
    return jax.device_get(jax.jit(functools.partial(train, kind=kind))(WEIGHTS, X, Y))


def mapped(mesh: Any, kind: str, check_vma: bool) -> Callable[..., Any]:
    """Return the training in a shard_map over the axis "b" of a mesh."""

    def run(weights: Any, x: Any, y: Any) -> Any:
        reduce = None if check_vma else functools.partial(jax.lax.psum, axis_name="b")
        return train(weights, x, y, kind, P("b"), reduce)

    specs = (P(), P("b"), P("b"))
    return jax.jit(
        jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=check_vma)
    )


def assert_same(found: Any, kind: str) -> None:
    for name, expected in alone(kind).items():
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-11)
        moved = np.abs(expected - WEIGHTS[name]).max()
        assert 1e-3 < moved < 10.0, (name, moved)
