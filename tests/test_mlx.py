"""Rules on MLX: its transformations, its compiler, its dialect, and its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.errors import GradientError, StaleTraceError

pytestmark = pytest.mark.needs("mlx")
X = np.array([-1.0, 0.25, 0.375, 2.0], np.float32)
TRIANGULAR = [0.0, 0.75, 0.625, 0.0]


@pytest.fixture
def mx() -> Any:
    return pytest.importorskip("mlx.core")


def gradient(mx: Any, f: Any) -> Any:
    return mx.grad(lambda x: f(x).sum())


def test_grad_and_vmap_in_any_order_give_the_rule(mx: Any) -> None:
    act = xg.activation("ReLU", "triangular")
    x = mx.array(X)
    mapped = mx.vmap(gradient(mx, act))(x)
    within = gradient(mx, mx.vmap(act))(x)
    twice = gradient(mx, mx.vmap(mx.vmap(act, in_axes=1)))(x.reshape(1, 2, 2))
    for found in (mapped, within, twice):
        np.testing.assert_array_equal(np.array(found).reshape(-1), TRIANGULAR)


def test_a_rule_over_an_example_is_mapped_over_each(mx: Any) -> None:
    act = xg.activation("Linear", "centralize")
    rows = mx.array(np.stack([X, 2 * X]))

    def loss(x: Any) -> Any:
        return (mx.vmap(act)(x) * rows).sum()

    expected = [row - row.mean() for row in np.array(rows)]
    np.testing.assert_allclose(np.array(mx.grad(loss)(rows)), expected, rtol=1e-6)


def test_a_second_derivative_goes_through_the_rule(mx: Any) -> None:
    act = xg.activation("ReLU", "triangular")
    second = gradient(mx, gradient(mx, act))(mx.array(X))
    np.testing.assert_array_equal(np.array(second), [0.0, -1.0, -1.0, 0.0])


def test_forward_mode_is_refused_where_the_rule_has_none(mx: Any) -> None:
    act = xg.activation("ReLU", "triangular")
    with pytest.raises(GradientError, match=r"mx\.jvp"):
        mx.jvp(act, [mx.array(X)], [mx.array(X)])


def test_a_trace_that_would_keep_the_rule_in_force_is_refused(mx: Any) -> None:
    act = xg.activation("ReLU")
    with pytest.raises(StaleTraceError, match=r"xg\.jit"):
        mx.compile(gradient(mx, act))(mx.array(X))


def test_an_activation_with_its_own_rule_and_a_use_within_may_be_compiled(mx: Any) -> None:
    def within(x: Any) -> Any:
        with xg.use("triangular"):
            return gradient(mx, xg.activation("ReLU"))(x)

    own = gradient(mx, xg.activation("ReLU", "triangular"))
    for f in (own, within):
        np.testing.assert_array_equal(np.array(mx.compile(f)(mx.array(X))), TRIANGULAR)


def test_jit_follows_the_rule_and_its_numbers(mx: Any) -> None:
    compiled = xg.jit(gradient(mx, xg.activation("ReLU")), "mlx")
    x = mx.array(X)
    for width in (1.0, 0.5, 1.0):
        with xg.use("triangular", params={"width": width}):
            expected = np.maximum(1 - np.abs(X) / np.float32(width), 0)
            np.testing.assert_allclose(np.array(compiled(x)), expected, rtol=1e-6)
    np.testing.assert_array_equal(np.array(compiled(x)), [0.0, 1.0, 1.0, 1.0])


def test_jit_counts_the_draws_of_a_key(mx: Any) -> None:
    f = gradient(mx, xg.activation("Linear"))
    compiled = xg.jit(f, "mlx")
    found = []
    for call in (f, compiled):
        with xg.use("noise", key=3):
            found.append(np.array([np.array(call(mx.array(X))) for _ in range(2)]))
    np.testing.assert_array_equal(*found)


def test_a_seed_of_mlx_repeats_draws_without_a_key(mx: Any) -> None:
    act = xg.activation("Linear", "noise")
    draws = []
    for _ in range(2):
        mx.random.seed(7)
        draws.append(np.array(gradient(mx, act)(mx.array(X))))
    np.testing.assert_array_equal(*draws)


def test_a_rule_written_in_mlx_runs_on_numpy(mx: Any) -> None:
    def damped(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * mx.exp(-mx.abs(tin)) / mx.sum(mx.square(tin))

    rule = xg.register("damped_mlx")(damped)
    try:
        expected = np.exp(-np.abs(X)) / np.sum(X * X)
        np.testing.assert_allclose(rule(None, np.ones_like(X), X), expected, rtol=1e-6)
    finally:
        xg.unregister("damped_mlx")


@pytest.mark.parametrize("forward", ["Logistic", "Softplus", "SiLU", "GELU", "ELU", "Tanh"])
def test_what_mlx_differentiates_itself_is_the_true_derivative(mx: Any, forward: str) -> None:
    act = xg.activation(forward)
    x = np.array([-100.0, -3.0, 0.0, 0.5, 90.0], np.float32)
    _, pullback = xg.vjp(act, x)
    expected = pullback(np.ones_like(x))[0]
    found = np.array(gradient(mx, act)(mx.array(x)))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.needs("typer", "rich")
def test_the_page_is_what_the_tables_say_now() -> None:
    from multigrad.cli.backend_docs import render_backend

    written = (Path(__file__).parent.parent / "docs" / "mlx.md").read_text(encoding="utf-8")
    assert written == render_backend("mlx", written), "type: multigrad docs --backend mlx"
