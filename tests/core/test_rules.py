"""Rules as users write them: in operators, in `xp`, in methods; calls, params, errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp

X = np.array([-1.0, 0.5, 2.0], np.float32)
G = np.array([1.0, 2.0, 3.0], np.float32)


# --- ways to write one ----------------------------------------------------------------------------


def in_operators(ctx: Any, grad_out: Any, tin: Any, width: float = 1.0) -> Any:
    inside = (tin > -width) & ~(tin >= width)
    return -(grad_out * inside) / (2.0 * width) * -((abs(tin) - width) ** 2)


def in_xp(ctx: Any, grad_out: Any, tin: Any, width: float = 1.0) -> Any:
    distance = xp.minimum(xp.abs(tin), width) - width
    return xp.where(xp.abs(tin) < width, grad_out * xp.square(distance), 0.0) / (2.0 * width)


def in_methods(ctx: Any, grad_out: Any, tin: Any, width: float = 1.0) -> Any:
    distance = tin.abs().clip(0.0, width) - width
    return grad_out * distance.square() / (2.0 * width)


@pytest.mark.parametrize("function", [in_operators, in_xp])
def test_a_rule_acts_as_it_is_written(backend: Any, function: Callable[..., Any]) -> None:
    act = xg.activation("Tanh", xg.register("written")(function), {"width": 1.5})
    expected = np.where(np.abs(X) < 1.5, (np.abs(X) - 1.5) ** 2 / 3, 0)
    y, gradient = backend.vjp(act, X, G)
    np.testing.assert_allclose(y, np.tanh(X), rtol=1e-6)
    np.testing.assert_allclose(gradient, G * expected, rtol=1e-5)


@pytest.mark.backends("torch")
def test_a_rule_may_be_written_in_the_methods_of_its_frameworks_tensors(backend: Any) -> None:
    with xg.use(in_methods, {"width": 1.5}):
        _, gradient = backend.vjp(xg.activation("ReLU"), X, G)
    expected = np.where(np.abs(X) < 1.5, (np.abs(X) - 1.5) ** 2 / 3, 0)
    np.testing.assert_allclose(gradient, G * expected, rtol=1e-5)


def test_a_rule_may_reduce_the_gradient(backend: Any) -> None:
    def centered(ctx: Any, grad_out: Any, tin: Any, k: int = 2) -> Any:
        spread = xp.sqrt(xp.mean(xp.square(grad_out)) + 1e-6)
        return (grad_out - xp.sum(grad_out, axis=-1, keepdims=True) / 3) / spread**k

    gradient = backend.vjp(xg.activation("Linear", centered), X, G)[1]
    np.testing.assert_allclose(gradient, (G - G.mean()) / np.mean(G**2), rtol=1e-5)


def test_a_rule_may_branch_on_its_params_and_repeat(backend: Any) -> None:
    def repeated(ctx: Any, g: Any, x: Any, n: int = 1, mode: str = "up", on: bool = True) -> Any:
        for _ in range(n):
            g = g * 2 if mode == "up" else g / 2
        return g if on else 0 * g

    act = xg.activation("Linear")
    for params, factor in (({}, 2), ({"n": 3}, 8), ({"mode": "down"}, 0.5), ({"on": False}, 0)):
        with xg.use(repeated, params):
            np.testing.assert_array_equal(backend.vjp(act, X, G)[1], G * factor)


def test_numbers_move_from_call_to_call(backend: Any) -> None:
    act = xg.activation("Heaviside")
    for width in (1.0, 4.0, 0.75):
        with xg.use(in_xp, {"width": width}):
            _, gradient = backend.vjp(act, X, G)
        expected = np.where(np.abs(X) < width, (np.abs(X) - width) ** 2, 0) / (2 * width)
        np.testing.assert_allclose(gradient, G * expected, rtol=1e-5, atol=1e-6)


@pytest.mark.backends("torch", "jax", "tensorflow")
def test_a_call_may_give_numbers_of_its_own(backend: Any) -> None:
    act = xg.activation("Heaviside", "triangular", {"width": 1.0})
    for width in (0.75, 4.0):
        gradient = backend.vjp(lambda x, width=width: act(x, width=width), X, G)[1]
        np.testing.assert_allclose(gradient, G * np.maximum(1 - np.abs(X) / width, 0), rtol=1e-6)


# --- calls ----------------------------------------------------------------------------------------


def window(ctx: Any, grad_out: Any, tin: Any, low: float = -1.0, high: float = 1.0) -> Any:
    return grad_out * ((tin >= low) & (tin <= high))


@pytest.fixture
def rule() -> xg.Rule:
    return xg.register("window")(window)


def test_call_gives_the_gradient_on_every_framework(rule: xg.Rule, backend: Any) -> None:
    given = rule(None, backend.array(G), backend.array(X), high=0.75)
    assert type(given) is type(backend.array(G))
    np.testing.assert_array_equal(backend.numpy(given), [1.0, 2.0, 0.0])


def test_call_takes_params_by_position_and_by_name_as_the_function_does(rule: xg.Rule) -> None:
    for given in (
        rule(None, G, X, 0.0, 1.0),
        rule(None, G, X, 0.0),
        rule(None, G, X, low=0.0),
        rule(ctx=None, grad_out=G, tin=X, low=0.0),
    ):
        np.testing.assert_array_equal(given, [0.0, 2.0, 0.0])
    with pytest.raises(xg.RuleError, match="takes 2 params, got 3 more arguments"):
        rule(None, G, X, 0.0, 1.0, 2.0)


def test_gradient_in_another_dtype_is_cast_to_tins(rule: xg.Rule, backend: Any) -> None:
    with backend.precision(np.float64):
        given = rule(None, backend.array(G.astype(np.float64)), backend.array(X))
        assert backend.numpy(given).dtype == np.float32


def test_rule_without_tin_takes_grad_outs_dtype(backend: Any) -> None:
    with backend.precision(np.float64):
        given = xg.get("scale")(None, backend.array(G.astype(np.float64)), None, s=3.0)
        assert backend.numpy(given).dtype == np.float64
        np.testing.assert_array_equal(backend.numpy(given), G * 3)


def test_rule_calls_another_rule(backend: Any, rule: xg.Rule) -> None:
    @xg.register("inner_and_scale", native=False)
    def inner_and_scale(ctx: Any, grad_out: Any, tin: Any, s: float = 2.0) -> Any:
        inner = rule(ctx, grad_out, tin, high=0.75)
        return xg.get("scale")(None, inner, tin, s=s) + inner

    given = inner_and_scale(None, backend.array(G), backend.array(X))
    np.testing.assert_array_equal(backend.numpy(given), [3.0, 6.0, 0.0])


def test_rule_called_in_a_rule_checks_its_params(rule: xg.Rule) -> None:
    outer = xg.register("outer")(lambda ctx, g, x: rule(None, g, x, hihg=1.0))
    with pytest.raises(xg.RuleError, match="'window' has no param 'hihg'; did you mean 'high'"):
        outer(None, G, X)


def test_params_show_names_and_defaults(rule: xg.Rule) -> None:
    assert rule.params == {"low": -1.0, "high": 1.0}
    assert xg.get("centralize").params == {"dim": -1, "keepdim": True}
    needing = xg.register("needing")(lambda ctx, g, x, width: g * width)
    assert needing.params == {"width": inspect.Parameter.empty}


def test_bound_param_is_used_and_no_longer_settable(rule: xg.Rule) -> None:
    bound = rule.with_params(high=0.75)
    assert bound.params == {"low": -1.0}
    assert repr(bound) == "<Rule window(low=-1.0) with high=0.75>"
    np.testing.assert_array_equal(bound(None, G, X), [1.0, 2.0, 0.0])
    np.testing.assert_array_equal(bound(None, G, X, low=0.0), [0.0, 2.0, 0.0])
    for attempt in (
        lambda: bound(None, G, X, high=3.0),
        lambda: bound.with_params(high=3.0),
        lambda: xg.activation("ReLU", bound, {"high": 3.0}),
        lambda: xg.use(bound, {"high": 3.0}).__enter__(),
    ):
        with pytest.raises(xg.RuleError, match="'high' is bound by with_params"):
            attempt()
    np.testing.assert_array_equal(rule(None, G, X), [1.0, 2.0, 0.0])


WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "None": (lambda g, x: None, "returned None; expected the gradient.*zeros_like"),
    "number": (lambda g, x: 0.0, "returned 0.0 as the gradient of argument 'tin'; expected a"),
    "tuple": (lambda g, x: (g, x), "returned a tuple; expected the gradient"),
    "param": (lambda g, x: xp.size(x), "returned a number as the gradient.*full_like"),
    "one number": (
        lambda g, x: xp.sum(g),
        "returned a gradient of one number for argument 'tin'.*the same shape",
    ),
    "fewer axes": (
        lambda g, x: xp.mean(g, axis=0),
        "returned a gradient of the first tensor's shape without axis 0",
    ),
    "a 1 for an axis": (
        lambda g, x: xp.mean(g, axis=0, keepdims=True),
        "returned a gradient of the first tensor's shape with 1 for axis 0",
    ),
    "bools": (lambda g, x: x > 0, "returned bools as the gradient.*multiply by the upstream"),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("native", [None, False])
def test_wrong_result_is_a_gradient_error_at_forward(
    what: str, native: bool | None, backend: Any
) -> None:
    call, message = WRONG[what]
    rule = xg.register("wrong", native=native)(lambda ctx, g, x: call(g, x))
    with pytest.raises(xg.GradientError, match=f"rule 'wrong' {message}"):
        rule(None, backend.array(G), backend.array(X))
    with xg.use(rule), pytest.raises(xg.GradientError, match=f"rule 'wrong' {message}"):
        xg.activation("ReLU")(backend.array(X))


def test_result_in_another_float_dtype_is_cast_as_the_engines_do(backend: Any) -> None:
    rule = xg.register("wide")(lambda ctx, g, x: xp.astype(g, "float64") * 2)
    with backend.precision(np.float64):
        given = rule(None, backend.array(G.astype(np.float64)), backend.array(X.astype(np.float64)))
        np.testing.assert_array_equal(backend.numpy(given), G * 2)
        given = backend.numpy(rule(None, backend.array(G), backend.array(X)))
    assert given.dtype == np.float32
    np.testing.assert_array_equal(given, G * 2)
