"""Hosts and guests of the tests of bridges: each host runs a function eagerly and compiled, forward
and backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.backend.discovery import load_backend
from multigrad.engine.rules.opaque import call_activation

from ..conftest import BACKENDS

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]
HOSTS = ("torch", "jax", "tensorflow")
GUESTS = ("numpy", *HOSTS)


def pairs() -> Iterator[Any]:
    """Give every host with every guest of another framework."""
    for host in HOSTS:
        for guest in GUESTS:
            if guest != host:
                needed = [name for name in (host, guest) if name != "numpy"]
                yield pytest.param(
                    host, guest, marks=pytest.mark.needs(*needed), id=f"{guest}-in-{host}"
                )


every_pair = pytest.mark.parametrize(("host", "guest"), list(pairs()))
every_host = pytest.mark.parametrize(
    "host", [pytest.param(name, marks=pytest.mark.needs(name)) for name in HOSTS]
)
hosts_of_torch = pytest.mark.parametrize(
    "host", [pytest.param(n, marks=pytest.mark.needs(n, "torch")) for n in ("jax", "tensorflow")]
)
both_modes = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])


def every_guest_of(host: str) -> Any:
    """Return a mark that gives a test of one host every guest of another framework."""
    others = [pytest.param(n, marks=pytest.mark.needs(n)) for n in HOSTS if n != host]
    return pytest.mark.parametrize("guest", others if host == "numpy" else ["numpy", *others])


def bridged(
    guest: str, forward: str, rule: Any = None, params: dict[str, Any] | None = None
) -> Callable[[Tensor], Tensor]:
    """Return an activation that runs in a guest."""
    act = xg.activation(forward, rule=rule, params=params)
    return lambda x: call_activation(act.forward, act.in_force(), x, guest)


def pull(
    host: str, f: Callable[[Tensor], Tensor], x: Array, cotangent: Array, compiled: bool
) -> tuple[Array, Array]:
    """Run `f` at `x` on a host and pull `cotangent` back, as one compiled step if asked for."""
    if not compiled:
        return BACKENDS[host].vjp(f, x, cotangent)
    return COMPILED[host](f, x, cotangent)


def _pull_in_torch(f: Any, x: Array, cotangent: Array) -> tuple[Array, Array]:
    import torch

    unread = load_backend("torch").compiler.opaque
    assert unread is not None
    bridged = unread(f)

    def model(tin: Tensor) -> Tensor:
        return bridged(tin * 1) * 1

    torch._dynamo.reset()
    return BACKENDS["torch"].vjp(torch.compile(model, backend="aot_eager"), x, cotangent)


def _pull_in_jax(f: Any, x: Array, cotangent: Array) -> tuple[Array, Array]:
    import jax

    def step(x: Tensor, cotangent: Tensor) -> Any:
        y, pullback = jax.vjp(f, x)
        return y, pullback(cotangent)[0]

    with BACKENDS["jax"].precision(x.dtype):
        y, gradient = jax.jit(step)(x, cotangent)
    return np.asarray(y), np.asarray(gradient)


def _pull_in_tensorflow(f: Any, x: Array, cotangent: Array) -> tuple[Array, Array]:
    import tensorflow as tf

    spec = tf.TensorSpec([None] * x.ndim, tf.as_dtype(x.dtype))

    def step(x: Tensor, cotangent: Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return y, tape.gradient(y, x, cotangent)

    step = tf.function(step, input_signature=[spec, tf.TensorSpec(None, spec.dtype)])
    y, gradient = step(tf.constant(x), tf.constant(cotangent))
    return y.numpy(), gradient.numpy()


COMPILED = {"torch": _pull_in_torch, "jax": _pull_in_jax, "tensorflow": _pull_in_tensorflow}
