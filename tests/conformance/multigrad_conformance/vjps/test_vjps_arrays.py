"""The VJPs of the ops over whole arrays at their edges, and their linearity; see `test_vjps.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

from multigrad.core import ops
from multigrad.core.backend.discovery import load_backend
from multigrad.core.ir.graph import Graph, make_node
from multigrad.core.lowering.derivatives import is_linear, pullback
from multigrad.core.lowering.lower import emit_rule
from multigrad.core.passes.simplify import simplify
from multigrad.core.rules.registry import resolve
from multigrad.core.trace.xp import all as neutral
from multigrad.engine.lowering.tangents import transpose

from .test_vjps import OTHER, X, evaluate, gradient_of_the_sum, record_function

xp: Any = neutral  # `xg.xp`, and the functions that only VJPs call
Tensor = Any


# --- edges ----------------------------------------------------------------------------------------


def gradient(backend: Any, function: Callable[[Tensor], Tensor], x: Any) -> Any:
    """The gradient of the sum of a function, at x."""
    return evaluate(gradient_of_the_sum(record_function(function)), backend, x)


def test_products_have_their_gradient_at_zeros(backend: Any) -> None:
    for x, of_prod, of_cumprod in (
        ([2.0, 3.0, 4.0], [12, 8, 6], [1 + 3 + 12, 2 + 8, 6]),
        ([2.0, 0.0, 4.0], [0, 8, 0], [1, 2 + 8, 0]),
        ([0.0, 3.0, 0.0], [0, 0, 0], [1 + 3, 0, 0]),
        ([0.0, 3.0, 4.0], [12, 0, 0], [1 + 3 + 12, 0, 0]),
    ):
        at = np.array(x)
        whole = gradient(backend, lambda t: xp.prod(t) + 0 * t, at) / len(x)
        np.testing.assert_allclose(whole, of_prod, rtol=1e-14)
        np.testing.assert_allclose(gradient(backend, xp.cumprod, at), of_cumprod, rtol=1e-14)


def test_norms_of_zero_have_gradient_zero(backend: Any) -> None:
    for order in (0.5, 1, 2, 3, np.inf):
        at = np.zeros(3)
        actual = gradient(backend, lambda t, p=order: xp.norm(t, ord=p) + 0 * t, at)
        np.testing.assert_array_equal(actual, 0)


def test_far_from_zero_gradients_are_finite(backend: Any) -> None:
    for dtype, far in ((np.float32, 1e30), (np.float64, 1e300)):
        x = np.array([far, -far, 80.0, -80.0], dtype)
        for function in (
            xp.softmax,
            xp.log_softmax,
            lambda t: xp.logsumexp(t) + 0 * t,
            xp.cumsum,
            xp.sort,
        ):
            assert np.isfinite(gradient(backend, function, x)).all()


def test_logsumexp_of_nothing_but_minus_infinity_has_gradient_zero(backend: Any) -> None:
    x = np.array([[-np.inf, -np.inf], [-np.inf, 0.0]])
    graph = record_function(lambda t: xp.zeros_like(t) + xp.logsumexp(t, axis=1, keepdims=True))
    actual = evaluate(simplify(pullback(graph)), backend, np.ones((2, 2)), x)
    np.testing.assert_array_equal(actual, [[0, 0], [0, 2]])


def test_of_equal_running_extremes_the_latest_takes_the_gradient(backend: Any) -> None:
    x = np.array([1.0, 3.0, 3.0, 2.0])
    np.testing.assert_array_equal(gradient(backend, xp.cummax, x), [1, 1, 2, 0])
    np.testing.assert_array_equal(gradient(backend, lambda t: xp.cummin(-t), x), [-1, -1, -2, 0])


def test_equal_values_keep_their_order_in_the_gradient_of_a_sort(backend: Any) -> None:
    x, weights = np.array([2.0, 1.0, 2.0, 1.0]), np.array([1.0, 2.0, 3.0, 4.0])
    for descending, expected in ((False, [3, 1, 4, 2]), (True, [1, 3, 2, 4])):
        graph = record_function(lambda t, d=descending: xp.sort(t, descending=d))
        actual = evaluate(simplify(pullback(graph)), backend, weights, x)
        np.testing.assert_array_equal(actual, expected)


# --- forward mode ---------------------------------------------------------------------------------

LINEAR: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cumsum": lambda g, x: xp.cumsum(g, axis=0) * x,
    "roll": lambda g, x: xp.roll(g, 1, 1) + x * g,
    "flip and halves": lambda g, x: xp.flip(
        xp.concatenate([xp.half(g, 1, 0), xp.half(g, 0, 0)]), 1
    ),
    "matmul": lambda g, x: xp.reshape_like(g @ xp.swapaxes(x, 0, 1) @ x, x),
    "einsum": lambda g, x: xp.reshape_like(xp.einsum("ij,kj,kl->il", g, x, x), x),
    "unsort": lambda g, x: xp.unsort(g, x, 1, False) * x,
    "pad and cut": lambda g, x: xp.reshape_like(
        xp.getitem(xp.pad(g, 1), (slice(2, 4), slice(1, 4))), x
    ),
}


def captured(function: Callable[[Tensor, Tensor], Tensor], **facts: Any) -> Graph:
    """The graph of a rule."""

    def rule(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return function(grad_out, tin)

    return resolve(rule).bound_rule().specialization.graph(True, facts)


@pytest.mark.parametrize("name", LINEAR)
def test_rules_of_linear_ops_have_forward_mode(name: str) -> None:
    graph = captured(LINEAR[name], **({"ndim": 2} if name.startswith("pad") else {}))
    assert is_linear(graph)
    numpy = load_backend("numpy")
    tangent = make_node(ops.INPUT, (), {"name": "tangent"}, graph.inputs[0].type)
    pushed = transpose(graph, ["grad_out"], [tangent], [tangent], "rule")
    forward, reverse = (emit_rule(g, numpy)[0] for g in (pushed, graph))
    # <u, reverse(v)> == <forward(u), v>
    left, right = np.sum(OTHER * reverse(X**2, X)), np.sum(forward(OTHER, X) * X**2)
    np.testing.assert_allclose(left, right, rtol=1e-12)


# The VJPs of elementwise ops far out, at poles and at ties; see `test_vjps.py` for the rest.


FAR = (
    "hypot", "atan2", "logaddexp", "asinh", "erfc", "ndtr", "log_ndtr", "log_sigmoid", "celu",
    "selu",
    "mish", "squareplus", "sparse_plus", "soft_sign", "tanh_shrink", "hard_silu", "hard_tanh",
)  # fmt: skip


def test_far_from_zero_vjps_give_no_nan(backend: Any) -> None:
    far = np.array([1e30, -1e30, 80.0, -80.0], np.float32)
    for name in FAR:
        function = getattr(xp, name)
        if name in ("hypot", "atan2", "logaddexp"):
            graph = record_function(lambda x, function=function: function(x, 0.5 * x))
        else:
            graph = record_function(function)
        grad = simplify(pullback(graph))
        assert np.isfinite(evaluate(grad, backend, np.ones_like(far), far)).all(), name


def test_at_poles_and_ties_gradients_are_those_of_one_side_or_zero() -> None:
    x = np.array([0.0, 1.0, -1.0])
    for function, expected in (
        (lambda x: xp.hypot(x, 0.0), [0.0, 1.0, -1.0]),
        (lambda x: xp.atan2(x, 0.0), [0.0, 0.0, 0.0]),
        (lambda x: xp.xlogy(0.0 * x, abs(x)), [0.0, 0.0, 0.0]),
        (lambda x: xp.fmax(x, np.nan), [1.0, 1.0, 1.0]),
        (lambda x: xp.fmin(x, x), [1.0, 1.0, 1.0]),
        (xp.sinc, [0.0, -1.0, 1.0]),
        (xp.hard_tanh, [1.0, 0.0, 0.0]),
    ):
        grad = emit_rule(simplify(pullback(record_function(function))), load_backend("numpy"))[0]
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(grad(np.ones(3), x), expected, atol=1e-15)


def test_the_tail_of_log_ndtr_has_the_slope_of_scipy(backend: Any) -> None:
    x = np.array([-1e4, -40.0, -8.1, -7.9, -5.0, -1.0, 0.0, 3.0])
    grad = simplify(pullback(record_function(xp.log_ndtr)))
    # phi / Phi by the scaled erfc, which does not underflow
    expected = np.sqrt(2 / np.pi) / special.erfcx(-x / np.sqrt(2))
    actual = evaluate(grad, backend, np.ones_like(x), x)
    np.testing.assert_allclose(actual, expected, rtol=1e-13)


def test_near_zero_sinc_has_the_slope_of_its_series() -> None:
    x = np.array([1e-9, -1e-4, 0.02, -0.29, 0.31])
    angle = np.pi * x.astype(np.longdouble)
    expected = np.where(
        np.abs(x) < 1e-3, -(np.pi**2) * x / 3, (np.cos(angle) - np.sin(angle) / angle) / x
    )
    grad = emit_rule(simplify(pullback(record_function(xp.sinc))), load_backend("numpy"))[0]
    np.testing.assert_allclose(grad(np.ones_like(x), x), expected.astype(float), rtol=1e-7)
