"""What a function's own backward gives for each argument: of which shape it may be, and a number
for a tensor without axes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp
from multigrad.errors import GradientError

S, X = np.array(2.0, np.float32), np.array([[1.0, -2.0, 4.0], [0.5, 3.0, -1.0]], np.float32)
G = np.array([[1.0, 10.0, 100.0], [2.0, 20.0, 200.0]], np.float32)


def pulled(function: Any, backend: Any, *inputs: Any, cotangent: Any) -> list[Any]:
    _, pull = xg.vjp(function, *map(backend.array, inputs))
    return [backend.numpy(gradient) for gradient in pull(backend.array(cotangent))]


def scaled(scale: Any, x: Any) -> Any:
    def grad(g: Any) -> Any:
        return xp.sum(g * x), g * scale

    return scale * x, grad


def moved(bias: Any, x: Any) -> Any:
    def grad(g: Any) -> Any:
        return xp.sum(g, axis=0, keepdims=True), g

    return bias + x, grad


def constant_slopes(a: Any, b: Any) -> Any:
    return a * b, lambda g: (2.5, -1)


def test_the_gradient_of_a_first_tensor_without_axes_may_be_a_sum(backend: Any) -> None:
    gradients = pulled(xg.custom_gradient(scaled), backend, S, X, cotangent=G)
    np.testing.assert_allclose(gradients[0], np.sum(G * X))
    np.testing.assert_allclose(gradients[1], 2.0 * G)


def test_the_gradient_of_a_first_tensor_of_one_row_may_be_a_sum_over_rows(backend: Any) -> None:
    gradients = pulled(xg.custom_gradient(moved), backend, X[:1], X, cotangent=G)
    np.testing.assert_allclose(gradients[0], G.sum(0, keepdims=True))


@pytest.mark.parametrize(("function", "first"), [(scaled, X[0]), (moved, X[0])])
def test_such_a_gradient_of_a_tensor_of_another_shape_is_refused(
    function: Any, first: Any, backend: Any
) -> None:
    with pytest.raises(GradientError, match="expected the same shape"):
        pulled(xg.custom_gradient(function), backend, first, X, cotangent=G)


def test_a_number_is_the_gradient_of_a_tensor_without_axes(backend: Any) -> None:
    function = xg.custom_gradient(constant_slopes)
    gradients = pulled(function, backend, S, S, cotangent=S)
    assert [float(gradient) for gradient in gradients] == [2.5, -1.0]
    assert all(gradient.dtype == np.float32 for gradient in gradients)
    with pytest.raises(GradientError, match=r"returned 2.5 as the gradient of argument 'a'"):
        pulled(function, backend, X, S, cotangent=X)
