"""A value that a custom gradient reads from around it gets no gradient in silence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

X = np.array([1.0, -2.0, 0.5], np.float32)
pytestmark = pytest.mark.needs("jax")


@pytest.mark.parametrize("native", [None, True])
@pytest.mark.parametrize("jitted", [False, True])
def test_a_derivative_with_respect_to_what_is_closed_over_is_an_error(
    native: bool | None, jitted: bool
) -> None:
    import jax
    import jax.numpy as jnp

    def loss(w: Any, x: Any) -> Any:
        @xg.custom_gradient(native=native)
        def scaled(x: Any) -> Any:
            return x * w, lambda up: up * w

        return scaled(x).sum()

    derive = jax.grad(loss)
    with pytest.raises(xg.GradientError, match=r"'scaled'.*reads .* from around it.*argument"):
        (jax.jit(derive) if jitted else derive)(jnp.asarray(2.0), jnp.asarray(X))


def test_what_is_closed_over_without_a_derivative_may_be_traced() -> None:
    import jax
    import jax.numpy as jnp

    @jax.jit
    def derive(w: Any, x: Any) -> Any:
        @xg.custom_gradient
        def scaled(x: Any) -> Any:
            return x * w, lambda up: up * w

        return jax.grad(lambda x: scaled(x).sum())(x)

    found = derive(jnp.asarray(2.0), jnp.asarray(X))
    np.testing.assert_array_equal(np.asarray(found), np.full_like(X, 2.0))


@pytest.mark.parametrize("jitted", [False, True])
def test_its_arguments_get_their_gradients_beside_what_is_stopped(jitted: bool) -> None:
    import jax
    import jax.numpy as jnp

    def loss(w: Any, x: Any) -> Any:
        fixed = jax.lax.stop_gradient(w)

        @xg.custom_gradient
        def scaled(x: Any) -> Any:
            return x * fixed, lambda up: up * fixed

        return (scaled(x * w)).sum()

    derive = jax.grad(loss)
    found = (jax.jit(derive) if jitted else derive)(jnp.asarray(2.0), jnp.asarray(X))
    np.testing.assert_allclose(float(found), 2 * X.sum(), rtol=1e-6)
