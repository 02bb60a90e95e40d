"""What runs forward again within backward acts under the rule of its first run, whatever the layer
or Function in it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.backend.discovery import EVERY_READER, loaded

from ...harness.models.surrogates import triangle
from ...harness.traced import Traced
from ...support.threads import on_threads

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

X = np.array([-1.3, -0.45, -0.2, 0.1, 0.3, 0.48, 0.9], np.float32)
ONES = np.ones_like(X)
HAVE_REGIONS = pytest.mark.backends("torch", "jax", "tensorflow")


def recompute(backend: Any, f: Callable[[Tensor], Tensor], way: str) -> Callable[[Tensor], Tensor]:
    """Return f as a region that runs again; on torch the other way is reentrant, on jax under
    `jit`.
    """
    if backend.name == "jax":
        import jax

        return jax.jit(jax.checkpoint(f)) if way == "other" else jax.checkpoint(f)
    if backend.name == "tensorflow":
        import tensorflow as tf

        return tf.recompute_grad(f)
    from torch.utils.checkpoint import checkpoint

    return lambda x: checkpoint(f, x, use_reentrant=way == "other")


def in_force(rule: str | None) -> AbstractContextManager[Any]:
    if rule is None:
        return nullcontext()
    return xg.use(rule, key=3 if rule == "full_jam" else None)


def pull_later(
    backend: Any, f: Callable[[Tensor], Tensor], rule: str | None, later: str | None = "scale"
) -> Array:
    """Return the gradient of f, run under a rule and pulled back under another."""
    x, ones = backend.array(X), backend.array(ONES)
    if backend.name == "torch":  # a reentrant checkpoint takes nothing but backward()
        x.requires_grad_()
        with in_force(rule):
            y = f(x)
        with in_force(later):
            y.backward(ones, retain_graph=True)
        first, x.grad = backend.numpy(x.grad), None
        on_threads(y.backward, ones)
        np.testing.assert_array_equal(first, backend.numpy(x.grad))
        return first
    with in_force(rule):
        _, pullback = xg.vjp(f, x)
    with in_force(later):
        first, again = (backend.numpy(pullback(ones)[0]) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    return first


@pytest.fixture(params=["plain", "other"])
def way(request: pytest.FixtureRequest, backend: Any) -> str:
    if backend.name not in ("torch", "jax") and request.param == "other":
        pytest.skip("there is one way")
    return request.param


Again: TypeAlias = Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Tensor]]


def under_no_use(act: Any, x: Tensor, again: Again) -> Tensor:
    return act(x) * 2.0 + act(x - 0.5)


def with_use_in_the_middle(act: Any, x: Tensor, again: Again) -> Tensor:
    y = act(x)
    with xg.use("rectangular"):
        z = act(x + 0.1)
    return y + z + act(x - 0.3)


def with_use_at_the_beginning(act: Any, x: Tensor, again: Again) -> Tensor:
    with xg.use("rectangular"):
        z = act(x + 0.1)
    return z + act(x - 0.3)


def nested(act: Any, x: Tensor, again: Again) -> Tensor:
    inner = again(lambda x: act(x))
    with xg.use("rectangular"):
        y = inner(x)
    return y + 2.0 * inner(x) + 4.0 * act(x)


@HAVE_REGIONS
@pytest.mark.parametrize(
    ("rule", "later"),
    [("triangular", None), ("triangular", "scale"), ("full_jam", "scale"), (None, "triangular")],
)
@pytest.mark.parametrize(
    "region", [under_no_use, with_use_in_the_middle, with_use_at_the_beginning, nested]
)
def test_a_region_runs_again_under_the_rules_and_draws_of_its_first_forward(
    backend: Any, way: str, region: Any, rule: str | None, later: str | None
) -> None:
    act = xg.activation("SiLU")

    # jax traces a function once: another call of it has the draws of the first.
    is_made_anew = backend.name == "jax" and rule == "full_jam"

    def gradient(again: Again) -> Array:
        def make() -> Callable[[Tensor], Tensor]:
            return again(lambda x: region(act, x, again))

        one = make()

        def forward(x: Tensor) -> Tensor:
            y = one(x) + (make() if is_made_anew else one)(x * 0.5)
            with xg.use("rectangular"):
                return y + 2.0 * one(x)

        return pull_later(backend, forward, rule, later)

    expected = gradient(lambda f: f)
    found = gradient(lambda f: recompute(backend, f, way))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@HAVE_REGIONS
def test_values_that_the_caller_holds_are_taken_in_a_region(backend: Any, way: str) -> None:
    act = xg.activation("Heaviside", rule="triangular")
    width = backend.array(np.float32(2.0))
    for values in ((0.5,), (width,), ()):
        f = recompute(backend, lambda x, v=values: act.call_with(x, v) if v else act(x), way)
        expected = triangle(X, float(values[0]) if values else 1.0)
        np.testing.assert_allclose(pull_later(backend, f, "rectangular"), expected, rtol=1e-6)


@HAVE_REGIONS
def test_a_function_that_holds_an_activation_runs_again_under_the_first_rule(
    backend: Any, way: str
) -> None:
    act = xg.activation("Tanh")
    inner = xg.function(lambda x: act(x) * 1.0)
    for f in (inner, lambda x: inner(x) * 2.0 - inner(x)):
        found = pull_later(backend, recompute(backend, f, way), "triangular")
        np.testing.assert_allclose(found, triangle(X), rtol=1e-5)


@pytest.mark.backends("torch")
def test_draws_without_a_key_are_repeated_by_checkpoints_own_seed(backend: Any, way: str) -> None:
    import torch

    act, grads = xg.activation("Linear"), []
    for run in (act, recompute(backend, act, way)):
        torch.manual_seed(1)
        x = backend.array(X).requires_grad_()
        with xg.use("full_jam"):
            y = run(x).sum()
        torch.manual_seed(2)
        y.backward()
        grads.append(x.grad)
    np.testing.assert_array_equal(*grads)


@pytest.mark.backends("torch")
def test_a_region_in_compiled_code_keeps_the_rule(backend: Any) -> None:
    act = xg.activation("Heaviside")
    traced = Traced(backend, recompute(backend, lambda x: act(x) * 2.0, "plain"), is_ours=False)
    for rule, expected in (("triangular", 2.0 * triangle(X)), ("straight_through", 2.0 * ONES)):
        with xg.use(rule):
            np.testing.assert_allclose(traced.gradient(X), expected, rtol=1e-6)


def test_every_row_of_a_backend_takes_an_activation_with_values_and_without(backend: Any) -> None:
    assert EVERY_READER or not any(each.compiler.read_activation for each in loaded())
    for types, _, call in EVERY_READER:
        assert all(isinstance(type_, type) for type_ in types)
        parameters = list(inspect.signature(call).parameters.values())
        assert [each.name for each in parameters] == ["activation", "x", "values"]
        assert parameters[-1].default == ()
