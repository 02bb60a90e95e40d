"""Rules in compiled code and under the frameworks' transforms: the numbers of eager code."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp

from ..support.threads import on_threads

X = np.array([-2.0, -0.5, 0.0, 0.25, 3.0], np.float32)
transformed = pytest.mark.backends("torch", "jax", "tensorflow")


def smooth(ctx: Any, grad_out: Any, tin: Any, width: float = 1.0, power: int = 2) -> Any:
    return grad_out * xp.exp(-((tin / width) ** power))


def curve(x: Any, width: float) -> Any:
    return np.exp(-((x / width) ** 2))


@transformed
def test_a_transformed_gradient_is_that_of_eager_code(backend: Any) -> None:
    own = xg.activation("Heaviside", smooth, {"width": 2.0})
    for way in backend.ways:
        found = backend.gradient(own, X, way)
        np.testing.assert_allclose(found, curve(X, 2.0), rtol=1e-5, err_msg=way)


@transformed
def test_compiled_code_follows_the_rule_in_force_and_its_numbers(backend: Any) -> None:
    act, own = xg.activation("Heaviside"), xg.activation("Heaviside", "triangular")

    def model(x: Any) -> Any:
        return act(2.0 * x) + own(x)

    for width in (0.5, 1.0, 3.0):
        with xg.use(smooth, {"width": width}):
            found = backend.gradient(model, X, "compiled")
        expected = 2 * curve(2 * X, width) + np.maximum(1 - np.abs(X), 0)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@transformed
def test_a_second_derivative_is_that_of_the_rule(backend: Any) -> None:
    found = backend.second(xg.activation("Heaviside", smooth, {"width": 2.0}), X)
    np.testing.assert_allclose(found, -2 * X / 4 * curve(X, 2.0), rtol=1e-5, atol=1e-7)


def test_threads_that_meet_a_rule_for_the_first_time_get_its_gradient(backend: Any) -> None:
    act, found, barrier = xg.activation("Heaviside"), {}, threading.Barrier(4)

    def run(width: float) -> None:
        with xg.use(smooth, {"width": width}):
            barrier.wait()
            found[width] = backend.gradient(act, X)

    on_threads(run, 0.5, 1.0, 2.0, 4.0)
    for width, gradient in found.items():
        np.testing.assert_allclose(gradient, curve(X, width), rtol=1e-5)
    assert len(found) == 4


def test_backward_of_numpy_may_be_called_again_with_other_gradients() -> None:
    y, pull = xg.vjp(xg.activation("Heaviside", smooth), X)
    np.testing.assert_array_equal(y, X > 0)
    for factor in (1.0, -3.0):
        gradient = pull(np.full_like(X, factor))[0]
        np.testing.assert_allclose(gradient, factor * curve(X, 1.0), rtol=1e-6)
    with pytest.raises(xg.GradientError, match="cotangent"):
        pull(np.ones(2, np.float32))
