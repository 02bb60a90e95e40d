"""Functions inside of Functions and rules: gradients pass by the inner one's own backward, and
nothing is lost in silence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

xp = xg.xp
X = np.array([-1.5, 0.25, 2.0], np.float32)
ONES = np.ones(3, np.float32)


@xg.custom_gradient
def reversed_tanh(x: Any) -> Any:
    y = xp.tanh(x)
    return y, lambda upstream: -upstream * (1 - y * y)


def outer(x: Any) -> Any:
    y = reversed_tanh(x * 2.0)
    return xp.exp(y) * y


def test_the_inner_gradient_counts_in_the_outer_derivative(backend: Any) -> None:
    function = xg.function(outer, native=False)
    _, pullback = xg.vjp(function, backend.array(X))
    (gradient,) = pullback(backend.array(ONES))
    y = np.tanh(2 * X.astype(np.float64))
    expected = -np.exp(y) * (1 + y) * (1 - y * y) * 2
    assert np.allclose(backend.numpy(gradient), expected, rtol=1e-5, atol=2e-6)


def test_a_rule_may_call_a_function(backend: Any) -> None:
    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * reversed_tanh(tin)

    result = xg.register("calls_a_function", override=True, native=False)(rule)
    found = result(None, backend.array(ONES), backend.array(X))
    assert np.allclose(backend.numpy(found), np.tanh(X), rtol=1e-6)
    _, pullback = xg.vjp(xg.activation("ReLU", rule=result), backend.array(X))
    assert np.allclose(backend.numpy(pullback(backend.array(ONES))[0]), np.tanh(X), rtol=1e-6)
    xg.unregister("calls_a_function")


def test_a_second_derivative_that_would_lose_the_inner_gradient_is_refused(backend: Any) -> None:
    if backend.name == "numpy":
        pytest.skip("NumPy's pullback computes numbers: it has no second derivative to take")
    function = xg.function(outer, native=False)
    ones = backend.array(ONES)

    def slope(x: Any) -> Any:
        _, pullback = xg.vjp(function, x)
        return pullback(ones)[0]

    with pytest.raises(
        xg.GradientError, match="'outer' uses a function with a gradient of its own"
    ):
        _, pullback = xg.vjp(slope, backend.array(X))
        pullback(ones)


def test_a_function_that_uses_no_other_keeps_its_second_derivative(backend: Any) -> None:
    if backend.name == "numpy":
        pytest.skip("NumPy's pullback computes numbers: it has no second derivative to take")
    function = xg.function(lambda x: xp.tanh(x) * x, native=False)
    ones = backend.array(ONES)

    def slope(x: Any) -> Any:
        _, pullback = xg.vjp(function, x)
        return pullback(ones)[0]

    _, pullback = xg.vjp(slope, backend.array(X))
    y = np.tanh(X.astype(np.float64))
    expected = (1 - y * y) * 2 - 2 * X * y * (1 - y * y)
    assert np.allclose(backend.numpy(pullback(ones)[0]), expected, rtol=1e-5, atol=1e-6)


def test_the_refusal_survives_saving(tmp_path: Any) -> None:
    function = xg.function(outer, native=False)
    function(X)
    xg.save(function, tmp_path / "outer.json")
    again = xg.load(tmp_path / "outer.json")
    again(X)
    assert not next(iter(again.variants.values())).graphs.second_order
