"""What a symbol cannot say is not hidden by the user's own `except`: the capture fails, or learns
the fact.
"""

# ruff: noqa: BLE001  (catching everything is what is tested)

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp
from multigrad_conformance.under_test import pull

X = np.array([[-1.0, 0.5, 2.0], [3.0, -0.25, 0.0]], np.float32)
G = np.array([[1.0, -2.0, 3.0], [-1.0, 0.5, 4.0]], np.float32)


def value_or_one(x: Any) -> float:
    """The largest element, 1.0 where there is none."""
    try:
        return float(x.max())
    except Exception:
        return 1.0


def in_a_helper(ctx: Any, g: Any, x: Any) -> Any:
    return g * value_or_one(x)


def by_except(ctx: Any, g: Any, x: Any) -> Any:
    try:
        s = float(x.max())
    except Exception:
        s = 1.0
    return g * s


def by_bare_except(ctx: Any, g: Any, x: Any) -> Any:
    try:
        s = float(x.max())
    except:  # noqa: E722
        s = 1.0
    return g * s


def by_base_exception(ctx: Any, g: Any, x: Any) -> Any:
    try:
        s = 2.0 if float(x.max()) > 1.0 else 3.0
    except BaseException:
        s = 1.0
    return g * s


def by_suppress(ctx: Any, g: Any, x: Any) -> Any:
    s = 1.0
    with suppress(Exception):
        s = float(x.max())
    return g * s


def by_finally(ctx: Any, g: Any, x: Any) -> Any:
    try:
        return g * float(x.max())
    finally:
        if x is None:
            return g  # noqa: B012


def by_another_error(ctx: Any, g: Any, x: Any) -> Any:
    try:
        s = float(x.max())
    except Exception as error:
        raise ValueError("no number") from error
    return g * s


CATCHING = [
    in_a_helper, by_except, by_bare_except, by_base_exception, by_suppress, by_finally,
    by_another_error,
    lambda ctx, g, x: g * 2 if hasattr(x, "strides") or hasattr(x, "stride") else g,
    lambda ctx, g, x: g if getattr(x, "nbytes", None) is None else g * 2,
]  # fmt: skip


@pytest.mark.parametrize("function", CATCHING, ids=lambda f: f.__name__)
@pytest.mark.backends("numpy", "torch")
def test_a_refusal_that_the_rule_catches_makes_it_run_as_it_is(
    backend: Any, registered: Any, function: Any
) -> None:
    rule = registered(function)
    expected = function(None, backend.array(G), backend.array(X))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        given = rule(None, backend.array(G), backend.array(X))
    np.testing.assert_array_equal(backend.numpy(given), backend.numpy(expected))
    (warning,) = [w for w in caught if w.category is xg.NativeRuleWarning]
    assert warning.filename == __file__


@pytest.mark.parametrize("function", CATCHING, ids=lambda f: f.__name__)
def test_a_refusal_that_the_rule_catches_is_raised_where_it_must_be_captured(
    registered: Any, function: Any
) -> None:
    with pytest.raises(xg.TraceError):
        registered(function, native=False)(None, G, X)


def by_a_number(ctx: Any, g: Any, x: Any, *, width: float = 1.5) -> Any:
    try:
        s = 2.0 if width > 1.0 else 3.0
    except Exception:
        s = 1.0
    return g * s


def by_the_rank(ctx: Any, g: Any, x: Any) -> Any:
    try:
        s = float(x.ndim)
    except Exception:
        s = 1.0
    return g * s


def by_the_dtype(ctx: Any, g: Any, x: Any) -> Any:
    s = 1.0
    with suppress(Exception):
        s = float(g.dtype.itemsize)
    return g * s


@pytest.mark.parametrize("function", [by_a_number, by_the_rank, by_the_dtype])
@pytest.mark.backends("numpy", "torch")
def test_a_fact_that_the_rule_catches_is_learned_all_the_same(
    backend: Any, registered: Any, function: Any
) -> None:
    rule = registered(function, native=False)
    for g in (G, G[0]):
        expected = function(None, backend.array(g), backend.array(g))
        given = rule(None, backend.array(g), backend.array(g))
        np.testing.assert_array_equal(backend.numpy(given), backend.numpy(expected))


@pytest.mark.parametrize("width", [0.5, 1.5])
def test_a_param_that_is_asked_in_a_try_follows_its_value(registered: Any, width: float) -> None:
    rule = registered(by_a_number, native=False)
    np.testing.assert_array_equal(rule(None, G, X, width=width), G * (2.0 if width > 1 else 3.0))


def test_what_an_attribute_check_asks_of_its_own_library_is_python_s_answer(
    registered: Any,
) -> None:
    def asks(ctx: Any, g: Any, x: Any) -> Any:
        return np.multiply(g, 2.0 if hasattr(x, "clamp") or hasattr(x, "no_such_name") else 3.0)

    np.testing.assert_array_equal(registered(asks, native=False)(None, G, X), G * 3)


# --- functions with a gradient of their own -------------------------------------------------------


def make_function(in_backward: bool) -> Any:
    @xg.custom_gradient
    def scaled(x: Any) -> Any:
        s = value_or_one(x) if not in_backward else 1.0

        def grad(upstream: Any) -> Any:
            return upstream * (value_or_one(x) if in_backward else 1.0)

        return x * s, grad

    return scaled


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.backends("numpy", "torch")
def test_a_function_that_catches_a_refusal_runs_as_it_is(backend: Any, in_backward: bool) -> None:
    y, (gradient,) = pull(backend, make_function(in_backward), (X,), G)
    np.testing.assert_array_equal(y, X * (1.0 if in_backward else 3.0))
    np.testing.assert_array_equal(gradient, G * (3.0 if in_backward else 1.0))


def test_a_function_inside_of_a_function_is_not_hidden_by_the_outer_one() -> None:
    inner = make_function(False)

    @xg.custom_gradient
    def outer(x: Any) -> Any:
        try:
            y = inner(x)
        except Exception:
            y = x * 5.0
        return y, lambda upstream: upstream

    y, _ = xg.vjp(outer, X)
    np.testing.assert_array_equal(y, X * 3.0)


def test_a_function_that_asks_a_number_in_a_try_follows_it() -> None:
    @xg.custom_gradient(native=False)
    def branches(x: Any, width: float) -> Any:
        try:
            s = 2.0 if width > 1.0 else 3.0
        except Exception:
            s = 1.0
        return x * s, lambda upstream: (upstream * s, None)

    for width, s in ((0.5, 3.0), (1.5, 2.0)):
        y, pullback = xg.vjp(branches, X, width)
        np.testing.assert_array_equal(y, X * s)
        np.testing.assert_array_equal(pullback(G)[0], G * s)


def test_what_is_found_in_another_way_is_no_refusal(registered: Any) -> None:
    def plain(ctx: Any, g: Any, x: Any) -> Any:
        try:
            limit = {"a": 1.0}["b"]
        except KeyError:
            limit = 2.0
        return xp.clip(g, -limit, limit)

    np.testing.assert_array_equal(registered(plain, native=False)(None, G, X), np.clip(G, -2, 2))


@pytest.mark.needs("jax")
def test_what_jax_s_own_tracing_raises_is_not_caught_by_the_user(jax: Any, jnp: Any) -> None:
    def falls_back(ctx: Any, grad_out: Any, tin: Any) -> Any:
        try:
            scale = float(jnp.max(tin))
        except TypeError:
            scale = 0.0
        return grad_out * scale

    act = xg.activation("Heaviside", xg.register("falls_back_caught", native=False)(falls_back))
    with pytest.raises(xg.TraceError, match=r"py:\d+\) turns a tensor into a Python number"):
        jax.grad(lambda x: act(x).sum())(jnp.ones(2))
