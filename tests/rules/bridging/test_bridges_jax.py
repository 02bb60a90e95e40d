"""jax as a host: staged and transformed code calls the guest back."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad.engine.rules.opaque import call_activation, call_function
from multigrad.errors import GradientError

from ...written.hosts_and_guests import bridged, every_guest_of

jax = pytest.importorskip("jax")
jnp = jax.numpy
pytestmark = pytest.mark.needs("jax")
Tensor: TypeAlias = Any
every_guest = every_guest_of("jax")
X = jnp.linspace(-1.0, 1.0, 5)
SLOPE = 1 - jnp.tanh(X) ** 2


def same(found: Tensor, expected: Tensor) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@every_guest
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_gradients_of_a_batch_are_those_of_its_examples(guest: str, jit: bool) -> None:
    f = bridged(guest, "Linear", "clip_norm")
    gradients = jax.vmap(jax.grad(lambda x: (f(x) * jnp.array([3.0, 4.0])).sum()))
    found = (jax.jit(gradients) if jit else gradients)(jnp.ones((3, 2)))
    same(found, np.tile([0.6, 0.8], (3, 1)))  # each is clipped by its own norm


@every_guest
def test_scan_and_checkpoint_and_loops_call_the_guest(guest: str) -> None:
    f = bridged(guest, "Tanh")

    def unrolled(x: Tensor) -> Tensor:
        return jnp.tanh(jnp.tanh(jnp.tanh(x))).sum()

    def scanned(x: Tensor) -> Tensor:
        return jax.lax.scan(lambda c, _: (f(c), None), x, None, length=3)[0].sum()

    same(jax.grad(scanned)(X), jax.grad(unrolled)(X))
    same(jax.grad(lambda x: jax.checkpoint(f)(x).sum())(X), SLOPE)
    same(jax.lax.fori_loop(0, 3, lambda i, x: f(x), X).sum(), unrolled(X))


@every_guest
def test_an_eager_pullback_may_be_compiled_and_batched(guest: str) -> None:
    f = bridged(guest, "Tanh")
    same(jax.jit(jax.vjp(f, X)[1])(X)[0], SLOPE * X)
    same(jax.jacrev(f)(X), np.diag(SLOPE))


@every_guest
def test_a_pullback_is_not_differentiated_either(guest: str) -> None:
    f = bridged(guest, "Tanh")
    with pytest.raises(GradientError, match="second derivative"):
        jax.grad(lambda g: jax.vjp(f, X)[1](g)[0].sum())(X)


@every_guest
def test_forward_mode_is_refused_by_jax(guest: str) -> None:
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(bridged(guest, "Tanh"), (X,), (X,))


@every_guest
def test_a_param_changes_without_a_retrace(guest: str) -> None:
    traces = []

    @jax.jit
    def step(x: Tensor, width: Tensor) -> Tensor:
        traces.append(1)
        act = xg.activation("Heaviside", rule="triangular", params={"width": width})
        return jax.grad(lambda x: call_activation(act.forward, act.in_force(), x, guest).sum())(x)

    for width in (0.5, 1.0, 2.0):
        same(step(X, jnp.float32(width)), np.maximum(0, 1 - np.abs(X) / width))
    assert len(traces) == 1


@every_guest
def test_a_weakly_typed_number_is_an_input(guest: str) -> None:
    same(jax.grad(bridged(guest, "Tanh"))(0.5), 1 - np.tanh(0.5) ** 2)


@every_guest
def test_an_integer_output_crosses_in_compiled_code(guest: str) -> None:
    function = xg.function(lambda x, i: (x * 2, i + 1), lambda g, x, i: (g[0] * 3, None))

    def loss(x: Tensor, i: Tensor) -> Any:
        y, j = call_function(function, (x, i), {}, guest)
        return y.sum(), j

    for grad in (jax.grad(loss, has_aux=True), jax.jit(jax.grad(loss, has_aux=True))):
        gradient, j = grad(X, jnp.arange(5))
        same(gradient, np.full(5, 3.0))
        assert j.tolist() == [1, 2, 3, 4, 5]
