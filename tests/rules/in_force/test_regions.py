"""What runs forward again within backward acts under the rule of its first run, whatever the layer
or Function in it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad.backend.discovery import EVERY_READER, loaded

from ...harness.models.surrogates import triangle

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

X = np.array([-1.3, -0.45, -0.2, 0.1, 0.3, 0.48, 0.9], np.float32)
ONES = np.ones_like(X)


def recompute(backend: Any, f: Callable[[Tensor], Tensor], way: str) -> Callable[[Tensor], Tensor]:
    """Return f as a region that runs again."""
    if backend.name == "jax":
        import jax

        return jax.checkpoint(f)
    if backend.name == "tensorflow":
        import tensorflow as tf

        return tf.recompute_grad(f)
    if backend.name == "torch":
        from torch.utils.checkpoint import checkpoint

        return lambda x: checkpoint(f, x, use_reentrant=way == "reentrant")
    pytest.skip("NumPy has no such regions")


def pull_later(backend: Any, f: Callable[[Tensor], Tensor], rule: str) -> Array:
    """Return the gradient of f, run under a rule and pulled back under another."""
    x = backend.array(X)
    if backend.name == "torch":  # a reentrant checkpoint takes nothing but backward()
        x.requires_grad_()
        with xg.use(rule):
            y = f(x)
        with xg.use("scale", {"s": 7.0}):
            y.backward(backend.array(ONES))
        return backend.numpy(x.grad)
    with xg.use(rule):
        _, pullback = xg.vjp(f, x)
    with xg.use("scale", {"s": 7.0}):
        (gradient,) = pullback(backend.array(ONES))
    return backend.numpy(gradient)


@pytest.fixture(params=["reentrant", "other"])
def way(request: pytest.FixtureRequest, backend: Any) -> str:
    if backend.name != "torch" and request.param != "other":
        pytest.skip("torch alone has two ways")
    return request.param


def test_values_that_the_caller_holds_are_taken_in_a_region(backend: Any, way: str) -> None:
    act = xg.activation("Heaviside", rule="triangular")
    width = backend.array(np.float32(2.0))
    for values in ((0.5,), (width,), ()):
        f = recompute(backend, lambda x, v=values: act.call_with(x, v) if v else act(x), way)
        expected = triangle(X, float(values[0]) if values else 1.0)
        np.testing.assert_allclose(pull_later(backend, f, "rectangular"), expected, rtol=1e-6)


def test_a_function_that_holds_an_activation_runs_again_under_the_first_rule(
    backend: Any, way: str
) -> None:
    act = xg.activation("Tanh")
    inner = xg.function(lambda x: act(x) * 1.0)
    for f in (inner, lambda x: inner(x) * 2.0 - inner(x)):
        found = pull_later(backend, recompute(backend, f, way), "triangular")
        np.testing.assert_allclose(found, triangle(X), rtol=1e-5)


def test_every_row_of_a_backend_takes_an_activation_with_values_and_without(backend: Any) -> None:
    assert EVERY_READER or not any(each.compiler.read_activation for each in loaded())
    for types, _, call in EVERY_READER:
        assert all(isinstance(type_, type) for type_ in types)
        parameters = list(inspect.signature(call).parameters.values())
        assert [each.name for each in parameters] == ["activation", "x", "values"]
        assert parameters[-1].default == ()
