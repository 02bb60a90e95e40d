"""`xg.override`: the same function, written for each framework, has the same gradients."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.errors import MultigradError, RuleError, RuleTypeError

X = np.array([[-1.5, -0.25, 0.0], [0.5, 1.0, 2.0]], np.float32)
LIBRARIES = {"numpy": "numpy", "torch": "torch", "jax": "jax.numpy", "tensorflow": "tensorflow"}

overriding = pytest.mark.backends(*LIBRARIES)


def network(library: Any) -> Any:
    """Return a function of a tensor that calls `sign` and `tanh` of a library."""

    def function(x):
        return library.tanh(library.sign(x) * 0.5 + x) * x

    return function


@overriding
@pytest.mark.parametrize("rule", ["straight_through", "rectangular"])
def test_the_gradient_is_the_same_on_every_framework(backend: Any, rule: str) -> None:
    library = importlib.import_module(LIBRARIES[backend.name])
    for selector in ("sign", library.sign):
        overridden = xg.override(network(library), {selector: rule})
        outputs, pullback = xg.vjp(overridden, backend.array(X))
        (found,) = pullback(backend.array(np.ones_like(X)))
        inner = np.sign(X) * 0.5 + X
        np.testing.assert_allclose(backend.numpy(outputs), np.tanh(inner) * X, rtol=2e-6)
        through = (1 - np.tanh(inner) ** 2) * X
        of_sign = np.asarray(xg.get(rule)(None, 0.5 * through, X))
        expected = np.tanh(inner) + through + of_sign
        np.testing.assert_allclose(backend.numpy(found), expected, rtol=1e-5, atol=1e-6)


@overriding
def test_rules_are_attached_to_a_function_as_to_a_model(backend: Any) -> None:
    library = importlib.import_module(LIBRARIES[backend.name])
    rules = {"sign": "straight_through"}
    found, expected = (
        backend.numpy(xg.vjp(f, backend.array(X))[1](backend.array(np.ones_like(X)))[0])
        for f in (xg.attach(network(library), rules), xg.override(network(library), rules))
    )
    np.testing.assert_array_equal(found, expected)


@overriding
def test_two_operations_take_two_rules(backend: Any) -> None:
    library = importlib.import_module(LIBRARIES[backend.name])
    rules = {"sign": "straight_through", "tanh": xg.get("straight_through")}
    _, pullback = xg.vjp(xg.override(network(library), rules), backend.array(X))
    (found,) = pullback(backend.array(np.ones_like(X)))
    expected = np.tanh(np.sign(X) * 0.5 + X) + 1.5 * X
    np.testing.assert_allclose(backend.numpy(found), expected, rtol=1e-5, atol=1e-6)


def test_rules_that_are_none_are_refused_at_once() -> None:
    for function, rules, words in (
        (np.sign, {}, "at least one"),
        (np.sign, "straight_through", "expected {operation: rule}"),
        (3, {"sign": "straight_through"}, "expected a function"),
    ):
        with pytest.raises(RuleTypeError, match=words):
            xg.override(function, rules)
    with pytest.raises(RuleError, match="straight_thru"):
        xg.override(np.sign, {"sign": "straight_thru"})


@pytest.mark.needs("torch", "jax")
def test_tensors_of_two_frameworks_are_refused() -> None:
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    overridden = xg.override(lambda x, y: x, {"sign": "straight_through"})
    with pytest.raises(MultigradError, match="jax and torch"):
        overridden(torch.ones(2), jnp.ones(2))


@pytest.mark.parametrize("rule", ["triangular", "pass"])
def test_an_operation_that_changes_the_shape_is_refused_at_the_first_call(
    backend: Any, rule: str
) -> None:
    function = {
        "numpy": lambda x: xg.xp.sum(x, -1),
        "torch": lambda x: x.sum(-1),
        "jax": lambda x: x.sum(-1),
        "tensorflow": lambda x: __import__("tensorflow").reduce_sum(x, -1),
    }[backend.name]
    operation = "reduce_sum" if backend.name == "jax" else "sum"
    overridden = xg.override(function, {operation: rule})
    x = backend.array(np.ones((2, 4), np.float32))
    words = rf"operation '(reduce_)?[sS]um'.* makes shape .* and rule '{rule}' needs a gradient of"
    with pytest.raises(xg.GradientError, match=words):
        if backend.name == "numpy":
            xg.vjp(overridden, x)
        overridden(x)
