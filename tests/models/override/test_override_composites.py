"""Composites on functions of jax: what they refuse, and what they warn of. Their heat maps are in
test_heat_maps.py.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import multigrad as xg

pytestmark = pytest.mark.needs("jax")
pytest.importorskip("jax")

import jax
import jax.numpy as jnp


def test_a_bound_whose_shape_does_not_fit_the_input_is_refused() -> None:
    layers = {"linear": xg.attribution.zbox(jnp.zeros(2), 1.0)}
    overridden = xg.override(lambda x: x @ jnp.eye(3), xg.composites.Composite("box", layers))
    with pytest.raises(xg.RuleError, match=r"'low' has shape \(2,\), and the layer's input \(3,\)"):
        jax.grad(lambda x: overridden(x).sum())(jnp.ones((4, 3)))


def test_an_operation_that_multiplies_relevance_without_a_rule_is_named_in_a_warning() -> None:
    weight, scale = jnp.eye(3) + 0.5, jnp.array([1.0, 2.0, 3.0])
    x = jnp.array([[0.5, 1.0, 1.5]])

    def share(function: Any, composite: Any) -> tuple[float, list[str]]:
        overridden = xg.override(function, composite)
        with warnings.catch_warnings(record=True) as w:
            warnings.simplefilter("always")
            score, pull = jax.vjp(lambda x: overridden(x)[:, 1].sum(), x)
        assert all(each.category is xg.errors.ActsNowhereWarning for each in w)
        return float(pull(score)[0].sum() / score), [str(each.message) for each in w]

    default, canonized = xg.composites.epsilon_plus(), xg.composites.epsilon_plus(canonize=True)

    def residual(x: Any) -> Any:
        return (jax.nn.relu(x @ weight) + x) @ weight

    found, said = share(residual, default)
    assert abs(found - 1) > 1e-2
    assert "no rule for add (activations)" in said[0]
    assert "canonize=True" in said[0]
    for function, words in (
        (lambda x: (jax.nn.relu(x @ weight) * scale) @ weight, "mul (a weight)"),
        (lambda x: (x @ weight) @ (x.T @ x), "dot_general (activations)"),
        (lambda x: jax.nn.softmax(x @ weight), "sub (activations), exp (an activation)"),
        (lambda x: jnp.cumsum(x @ weight, 1), "cumsum (an activation)"),
        (lambda x: 1.0 - x @ weight, "sub (an activation)"),
    ):
        found, said = share(function, canonized)
        assert abs(found - 1) > 1e-2
        assert f"no rule for {words}" in said[0]

    def pooled(x: Any) -> Any:
        most = jax.lax.reduce_window(
            jax.nn.gelu(x @ weight), -jnp.inf, jax.lax.max, (1, 2), (1, 1), "VALID"
        )
        return most @ weight[:2]

    for function, composite in ((residual, canonized), (pooled, default)):
        found, said = share(function, composite)
        assert abs(found - 1) < 1e-3
        assert not said
    with pytest.raises(xg.RuleError, match=r"'guided_backprop' has no rule.*it is for relu, and"):
        share(lambda x: jax.nn.gelu(x @ weight), xg.composites.guided_backprop())
