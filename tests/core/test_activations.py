"""Activations: every one by its name, under the rule in force, and under a rule of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

X = np.array([-2.5, -0.5, -0.0, 0.0, 0.25, 3.0], np.float32)


@pytest.mark.parametrize("name", xg.activations())
def test_every_activation_has_its_own_gradient_and_that_of_a_rule(backend: Any, name: str) -> None:
    act = xg.activation(name)
    y, own = backend.vjp(act, X, np.ones_like(X))
    assert y.dtype == own.dtype == np.float32 and np.isfinite(y).all() and np.isfinite(own).all()
    with xg.use("triangular"):
        again, surrogate = backend.vjp(act, X, np.ones_like(X))
    np.testing.assert_array_equal(again, y)
    np.testing.assert_allclose(surrogate, np.maximum(1 - np.abs(X), 0), rtol=1e-6)


def test_a_rule_of_its_own_wins_over_the_rule_in_force(backend: Any) -> None:
    act = xg.activation("ReLU", "triangular", {"width": 4.0})
    expected = np.maximum(1 - np.abs(X) / 4, 0)
    np.testing.assert_allclose(backend.gradient(act, X), expected, rtol=1e-6)
    with xg.use("d(Linear)"):
        np.testing.assert_allclose(backend.gradient(act, X), expected, rtol=1e-6)
