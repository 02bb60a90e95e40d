"""Every rule of the library: on NumPy against what it says in plain NumPy, elsewhere against NumPy.

The formulas of all, with bounds on the errors in each dtype, are in the conformance suite.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

Array: TypeAlias = np.ndarray[Any, Any]

X = np.array([[-3.0, -1.0, -0.4, -1e-3], [0.0, 0.3, 0.7, 2.5]], np.float32)
G = np.array([[1.0, -2.0, 0.5, 3.0], [-1.0, 4.0, 0.25, 2.0]], np.float32)
# Those that draw random numbers are in tests/rules and in the conformance suite.
RANDOM = {"full_jam", "noise", "noisy_threshold", "optax.add_noise", "positive_jam"}
RANDOM |= {"rectangular_jam", "sign_jam", "snntorch.SSO", "stochastic_spike"}
NAMES = [name for name in xg.rules() if name not in RANDOM]


def norm(g: Array) -> Array:
    return g / np.maximum(np.sqrt(np.sum(g**2)), 1)


FORMULAS: dict[str, tuple[dict[str, Any], Callable[[Array, Array], Array]]] = {
    "triangular": ({"width": 2.0}, lambda x, g: g * np.maximum(1 - np.abs(x) / 2, 0)),
    "rectangular": ({"a": -0.5, "b": 0.5}, lambda x, g: g * (np.abs(x) <= 0.5)),
    "arctan": ({"alpha": 2.0}, lambda x, g: g / (1 + (np.pi * x) ** 2)),
    "straight_through": ({}, lambda x, g: g),
    "gradient_reversal": ({}, lambda x, g: -g),
    "scale": ({"s": 3.0}, lambda x, g: 3 * g),
    "guided": ({}, lambda x, g: np.maximum(g, 0) * (x > 0)),
    "deconvnet": ({}, lambda x, g: np.maximum(g, 0)),
    "clip_norm": ({"max_norm": 1.0}, lambda x, g: norm(g)),
    "centralize": ({}, lambda x, g: g - g.mean(-1, keepdims=True)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_rule_gives_the_numbers_of_its_formula(backend: Any, name: str) -> None:
    params, formula = FORMULAS[name]
    act = xg.activation("Heaviside", name, params)
    for dtype, rtol in ((np.float32, 2e-6), (np.float64, 1e-13)):
        y, gradient = backend.vjp(act, X.astype(dtype), G.astype(dtype))
        np.testing.assert_array_equal(y, X > 0)
        expected = formula(X.astype(np.float64), G.astype(np.float64))
        np.testing.assert_allclose(gradient, expected, rtol=rtol, atol=rtol)
        assert gradient.dtype == dtype


@pytest.mark.parametrize("name", NAMES)
def test_every_rule_gives_the_numbers_of_numpy(backend: Any, name: str) -> None:
    act = xg.activation("Heaviside")
    wide = backend.name == "numpy"
    x, g = (array.astype(np.float64) if wide else array for array in (X, G))
    with xg.use(name):
        y, gradient = backend.vjp(act, X, G)
        expected = xg.vjp(act, x)[1](g)[0]
    np.testing.assert_array_equal(y, X > 0)
    assert gradient.dtype == np.float32 and gradient.shape == X.shape
    np.testing.assert_allclose(gradient, expected, rtol=2e-5, atol=1e-6)
