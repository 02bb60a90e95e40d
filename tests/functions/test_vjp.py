"""`xg.vjp`: outputs and pullback by one call, the same on every framework and on NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

xp = xg.xp
X = np.array([[-1.5, 0.25, 2.0], [0.0, -0.5, 1.0]], np.float32)
W = np.array([[1.0, -2.0], [0.5, 3.0], [2.0, 1.0]], np.float32)


@pytest.fixture
def arrays(backend: Any) -> Any:
    """Turn NumPy arrays into the backend's tensors."""
    return lambda *given: tuple(backend.array(x) for x in given)


def test_every_input_gets_a_gradient(backend: Any, arrays: Any) -> None:
    x, w, ones = arrays(X, W, np.ones((2, 2), np.float32))
    y, pullback = xg.vjp(lambda x, w: x @ w, x, w)
    grad_x, grad_w = pullback(ones)
    assert np.array_equal(backend.numpy(y), X @ W)
    assert np.array_equal(backend.numpy(grad_x), np.ones((2, 2), np.float32) @ W.T)
    assert np.array_equal(backend.numpy(grad_w), X.T @ np.ones((2, 2), np.float32))


def test_the_pullback_is_called_again_with_another_cotangent(backend: Any, arrays: Any) -> None:
    x, one, two = arrays(X, np.ones_like(X), np.full_like(X, 2))
    _, pullback = xg.vjp(lambda x: x * x, x)
    assert np.array_equal(backend.numpy(pullback(one)[0]), 2 * X)
    assert np.array_equal(backend.numpy(pullback(two)[0]), 4 * X)


def test_a_rule_inside_of_a_larger_function_acts(backend: Any, arrays: Any) -> None:
    x, ones = arrays(X, np.ones_like(X))
    act = xg.activation("Heaviside", rule="triangular", params={"width": 2.0})
    _, pullback = xg.vjp(lambda x: act(x * 2.0) * 3.0 + x * x, x)
    expected = 6 * np.maximum(0, 1 - np.abs(2 * X) / 2) + 2 * X
    assert np.allclose(backend.numpy(pullback(ones)[0]), expected, rtol=1e-6)


def test_a_function_with_several_outputs_inside_of_another(backend: Any, arrays: Any) -> None:
    @xg.custom_gradient
    def both(x: Any) -> Any:
        # The product of the cotangents: right only where they arrive together.
        return (x * 2.0, x * 3.0), lambda upstream: upstream[0] * upstream[1]

    def outer(x: Any) -> Any:
        first, second = both(x)
        return first * 5.0 + xp.exp(second * 0.0) * second * 7.0

    x, ones = arrays(X, np.ones_like(X))
    _, pullback = xg.vjp(outer, x)
    assert np.allclose(backend.numpy(pullback(ones)[0]), np.full_like(X, 35.0), rtol=1e-6)


def test_too_few_cotangents_are_an_error(backend: Any, arrays: Any) -> None:
    x, ones = arrays(X, np.ones_like(X))
    _, pullback = xg.vjp(lambda x: (x * 2.0, x * 3.0), x)
    with pytest.raises(xg.GradientError, match="1 cotangents for 2 outputs"):
        pullback(ones)


@pytest.mark.parametrize("shape", [(1,), (2, 3), ()])
def test_a_cotangent_of_another_shape_is_an_error(backend: Any, arrays: Any, shape: Any) -> None:
    x, ones = arrays(X[0], np.ones(shape, np.float32))
    _, pull = xg.vjp(xg.activation("ReLU", "scale"), x)
    with pytest.raises(xg.GradientError, match=r"cotangent of shape .* of shape \(3,\)"):
        pull(ones)


def test_a_function_without_a_tensor_is_an_error() -> None:
    with pytest.raises(xg.RuleError, match="no tensor"):
        xg.vjp(lambda x: x, "word")


def test_a_pullback_inside_of_another_gives_the_second_derivative(
    backend: Any, arrays: Any
) -> None:
    if backend.name == "numpy":
        pytest.skip("NumPy's pullback computes numbers: it has no second derivative to take")
    x, ones = arrays(X, np.ones_like(X))

    def slope(x: Any) -> Any:
        _, pullback = xg.vjp(lambda x: x * x * x, x)
        return pullback(ones)[0]

    _, pullback = xg.vjp(slope, x)
    assert np.allclose(backend.numpy(pullback(ones)[0]), 6 * X, rtol=1e-6)


def test_arrays_of_a_dtype_met_before_are_taken_by_the_rule_and_number_in_force_now() -> None:
    x, ones = np.array([-0.5, 0.25, 2.0]), np.ones(3)
    spike = xg.activation("Heaviside")
    for _ in range(2):
        width = xg.schedule.linear(1.0, 3.0, steps=2)
        np.testing.assert_array_equal(xg.vjp(spike, x)[1](ones)[0], np.zeros(3))
        with xg.use("triangular", {"width": width}):
            for now in (1.0, 2.0):
                hat = np.maximum(1 - np.abs(x) / now, 0)
                np.testing.assert_array_equal(xg.vjp(spike, x)[1](ones)[0], hat)
                halves = x.astype(np.float16)
                assert xg.vjp(spike, halves)[1](ones)[0].dtype == np.float16
                width.step()


def test_a_cotangent_of_a_second_call_may_be_a_list_none_or_of_a_wrong_shape() -> None:
    cube = xg.function(lambda x, y: x * x * y, lambda g, x, y: (2.0 * g * x * y, None))
    x, y = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    for _ in range(2):
        out, pull = xg.vjp(cube, x, y)
        np.testing.assert_array_equal(out, x * x * y)
        for ones in (np.ones(2), np.ones(2, np.float32)):
            first, second = pull(ones)
            np.testing.assert_array_equal(first, 2.0 * x * y)
            np.testing.assert_array_equal(second, np.zeros(2))
        np.testing.assert_array_equal(pull(None)[0], np.zeros(2))
        with pytest.raises(xg.GradientError, match=r"shape \(3,\) for an output of shape \(2,\)"):
            pull(np.ones(3))
        with pytest.raises(xg.GradientError, match="2 cotangents for 1 output"):
            pull([1.0, 1.0])


@pytest.mark.parametrize("dtype", ["int32", "bool", "float64"])
def test_a_cotangent_and_a_tangent_are_taken_in_the_dtype_of_their_tensor(
    dtype: str, backend: Any
) -> None:
    x, given = backend.array(X), (W.T[:, :3] > 0).astype(dtype)
    double = xg.function(lambda x: x * 2.0, lambda g, x: g * 2.0)
    for _ in range(2):
        for each in (given, backend.array(given)):
            (gradient,) = xg.vjp(double, x)[1](each)
            _, tangent = xg.jvp(double, (x,), (each,))
            for found in map(backend.numpy, (gradient, tangent)):
                assert found.dtype == np.float32
                np.testing.assert_array_equal(found, 2.0 * given)


@pytest.mark.parametrize("dtype", ["complex64", "object", "str"])
def test_a_cotangent_and_a_tangent_are_real_numbers(dtype: str, backend: Any) -> None:
    x, given = backend.array(X), np.ones_like(X).astype(dtype)
    double = xg.function(lambda x: x * 2.0, lambda g, x: g * 2.0)
    for _ in range(2):
        with pytest.raises(xg.GradientError, match=r"pullback got a cotangent of \w+ for .*real"):
            xg.vjp(double, x)[1](given)
        with pytest.raises(xg.GradientError, match=r"for input 0 a tangent of \w+ for .*real"):
            xg.jvp(double, (x,), (given,))
    with pytest.raises(TypeError, match="jvp takes tuples of inputs and of tangents"):
        xg.jvp(double, x, x)


def test_inputs_that_stand_still_have_no_tangents(backend: Any) -> None:
    y, tangent = xg.jvp(lambda x: x * 2.0, (backend.array(X),), (None,))
    np.testing.assert_array_equal(backend.numpy(y), 2 * X)
    np.testing.assert_array_equal(backend.numpy(tangent), 0 * X)
