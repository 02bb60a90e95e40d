"""equinox's `filter_custom_vjp` is a custom gradient, on every framework: its first argument is any
tree, whose floats have the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

pytestmark = pytest.mark.peers
eqx = pytest.importorskip("equinox")

import jax
import jax.numpy as jnp

X = np.array([1.0, -2.0, 3.0], np.float32)


class Scale(eqx.Module):
    weight: Any
    shown: Callable[..., Any]
    times: int = 3


def made(backward: Callable[..., Any]) -> Any:
    """Return a custom function of a model or a dict with such a backward."""

    @eqx.filter_custom_vjp
    def scaled(model: Any, x: Any, *, by: float = 2.0) -> Any:
        return weight_of(model) * x * by

    @scaled.def_fwd
    def forward(perturbed: Any, model: Any, x: Any, *, by: float = 2.0) -> Any:
        return weight_of(model) * x * by, perturbed

    scaled.def_bwd(backward)
    return scaled


def weight_of(model: Any) -> Any:
    return model["weight"] if isinstance(model, dict) else model.weight


def by_filter(kept: Any, g: Any, perturbed: Any, model: Any, x: Any, *, by: float = 2.0) -> Any:
    return jax.tree.map(lambda w: 5.0 * g * x * by, eqx.filter(model, eqx.is_inexact_array))


def by_partition(kept: Any, g: Any, perturbed: Any, model: Any, x: Any, *, by: float = 2.0) -> Any:
    floats, _ = eqx.partition(model, perturbed)
    return jax.tree.map(lambda w: 5.0 * g * x * by, floats)


@pytest.mark.parametrize("backward", [by_filter, by_partition])
@pytest.mark.parametrize("is_module", [True, False], ids=["module", "dict"])
def test_trees_have_the_gradients_that_equinox_gives(
    backward: Callable[..., Any], is_module: bool
) -> None:
    function = made(backward)
    converted = xg.convert(function)

    def model_of(weight: Any) -> Any:
        return Scale(weight, jax.nn.relu) if is_module else {"weight": weight, "times": 3}

    def gradient(f: Any) -> Any:
        return weight_of(eqx.filter_grad(lambda m: f(m, jnp.asarray(X), by=3.0).sum())(model))

    model = model_of(jnp.asarray(2 * X))
    np.testing.assert_array_equal(gradient(converted), gradient(function))
    np.testing.assert_array_equal(gradient(converted), 15 * X)
    y, pull = xg.vjp(lambda m, x: converted(m, x, by=3.0), model_of(2 * X), X)
    np.testing.assert_allclose(y, 6 * X * X)
    first, second = pull(np.ones_like(X))
    np.testing.assert_allclose(weight_of(first), 15 * X)
    np.testing.assert_array_equal(second, np.zeros_like(X))  # as equinox promises


def test_torch_runs_it() -> None:
    torch = pytest.importorskip("torch")
    converted = xg.convert(made(by_filter))
    weight = torch.tensor(X, requires_grad=True)
    converted({"weight": weight}, torch.tensor(X)).sum().backward()
    np.testing.assert_allclose(weight.grad, 10 * X)


def test_rules_are_to_be_defined_first() -> None:
    with pytest.raises(TypeError, match=r"'unfinished' has no rule yet: call f\.def_fwd"):

        @eqx.filter_custom_vjp
        def unfinished(x: Any) -> Any:
            return x

        xg.from_custom_vjp(unfinished)
