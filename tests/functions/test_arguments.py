"""What a Function takes as an argument, and which gradients it takes back for it."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad_conformance.under_test import pull

from ..harness.torch_class import torch_class

X = np.array([1.0, -2.0, 0.5], np.float32)
SCALARS = [np.float64(2.5), np.float32(2.5), np.array(2.5), np.array(2.5, np.float32)]


# --- numbers of NumPy's ---------------------------------------------------------------------------
@pytest.mark.backends("torch", "jax", "tensorflow")
@pytest.mark.parametrize("native", [None, True])
@pytest.mark.parametrize("scalar", SCALARS)
def test_a_number_of_numpys_beside_tensors_is_a_number(
    backend: Any, scalar: Any, native: bool | None
) -> None:
    @xg.custom_gradient(native=native)
    def own(x: Any, factor: Any) -> Any:
        return x * factor, lambda up: (up * factor, None)

    for function in (own, xg.function(lambda x, factor: x * factor, native=native)):
        y, gradient = backend.vjp(lambda x, f=function: f(x, scalar), X, np.ones_like(X))
        assert y.dtype == gradient.dtype == np.float32
        np.testing.assert_array_equal(y, X * np.float32(2.5))
        np.testing.assert_array_equal(gradient, np.full_like(X, 2.5))


@pytest.mark.backends("torch", "jax", "tensorflow")
def test_an_integer_of_numpys_is_followed(backend: Any) -> None:
    function, x = xg.function(lambda x, n: x**n), backend.array(X)
    for power in (np.int64(2), np.int64(3), np.array(2)):
        np.testing.assert_array_equal(backend.numpy(function(x, power)), X ** int(power))


@pytest.mark.needs("torch")
def test_a_class_takes_a_number_of_numpys() -> None:
    import torch

    @torch_class(lambda ctx, grad: (-ctx.alpha * grad, None))
    def Reversal(ctx: Any, x: Any, alpha: Any) -> Any:
        ctx.alpha = alpha
        return x.view_as(x)

    x = torch.ones(3, requires_grad=True)
    alpha = 2 / (1 + np.exp(-np.float64(0.3))) - 1
    xg.from_autograd_function(Reversal)(x, alpha).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), -float(alpha)))


# --- gradients that would be lost -----------------------------------------------------------------
@dataclasses.dataclass
class Params:
    """A dataclass that no tree library knows."""

    w: Any


BY_NAME = r"by name, which have no order.*'w': \.\.\."


def of_object(params: Any, x: Any) -> Any:
    return x * 2.0, lambda up: (Params(up), up * 2.0)


def of_keyword(x: Any, *, w: Any) -> Any:
    return x * w, lambda up: up * w


def of_dict(p: Any, x: Any) -> Any:
    return p["w"] * x + p["b"], lambda up: (up * x, up, up * p["w"])


def of_keywords(w: Any, b: Any) -> Any:
    return w * 2.0 + b, lambda up: (up * 2.0, up)


@pytest.mark.parametrize("native", [None, True])
@pytest.mark.parametrize(
    ("function", "call", "message"),
    [
        (of_object, lambda f, x: f(Params(x), x), r"argument 'params', a Params.*optree"),
        (of_keyword, lambda f, x: f(x, w=x), r"1 gradient for 2 arguments \(x, w\)"),
        (of_dict, lambda f, x: f({"w": x, "b": x}, x), BY_NAME),
        (of_keywords, lambda f, x: f(w=x, b=x), BY_NAME),
    ],
)
def test_a_gradient_that_would_be_lost_is_an_error(
    backend: Any, native: bool | None, function: Any, call: Any, message: str
) -> None:
    f = xg.custom_gradient(function, native=native)
    with pytest.raises(xg.GradientError, match=message):
        pull(backend, lambda x: call(f, x), (X,))


def test_nested_gradients_for_a_dict_are_matched_by_name(backend: Any) -> None:
    @xg.custom_gradient
    def affine(p: Any, x: Any) -> Any:
        return p["w"] * x + p["b"], lambda up: ({"w": up * 5.0, "b": up * 7.0}, up)

    _, (found, _) = pull(backend, affine, ({"w": X, "b": X}, X))
    np.testing.assert_array_equal(found["w"], np.full_like(X, 5.0))
    np.testing.assert_array_equal(found["b"], np.full_like(X, 7.0))


# --- methods --------------------------------------------------------------------------------------
class Scale:
    """Objects whose method has a gradient of its own."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    @xg.custom_gradient
    def apply(self, x: Any) -> Any:
        return x * self.factor, lambda up: (None, up * self.factor * 10)

    @staticmethod
    @xg.custom_gradient
    def doubled(x: Any) -> Any:
        return x * 2.0, lambda up: up * 20.0


def test_a_method_has_a_gradient_of_its_own_for_each_object(backend: Any) -> None:
    for factor in (2.0, 3.0):
        y, (gradient,) = pull(backend, Scale(factor).apply, (X,))
        np.testing.assert_array_equal(y, X * np.float32(factor))
        np.testing.assert_array_equal(gradient, np.full_like(X, factor * 10))
    _, (gradient,) = pull(backend, Scale(1.0).doubled, (X,))
    np.testing.assert_array_equal(gradient, np.full_like(X, 20.0))


def test_a_method_follows_its_object_and_keeps_none_alive() -> None:
    scale = Scale(2.0)
    np.testing.assert_array_equal(scale.apply(X), X * 2)
    scale.factor = 3.0
    np.testing.assert_array_equal(scale.apply(X), X * 3)
    seen = weakref.ref(scale)
    del scale
    gc.collect()
    assert seen() is None
