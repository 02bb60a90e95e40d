"""A Rule as people hold it: calls, params, binding, pickling, and what it must return."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp
from multigrad.errors import NativeRuleWarning, RuleTypeError

from ...written.unseen import Unseen

X = np.array([-1.0, 0.5, 2.0], np.float32)
G = np.array([1.0, 2.0, 3.0], np.float32)


def window(ctx: Any, grad_out: Any, tin: Any, low: float = -1.0, high: float = 1.0) -> Any:
    return grad_out * ((tin >= low) & (tin <= high))


@pytest.fixture
def rule() -> xg.Rule:
    return xg.register("window")(window)


# --- calls ----------------------------------------------------------------------------------------


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


# --- params and binding ---------------------------------------------------------------------------


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


@pytest.mark.usefixtures("unproven")
@pytest.mark.parametrize(
    "make", [xg.register("counted"), lambda f: xg.compose(f, "straight_through")]
)
def test_bindings_share_one_capture(make: Callable[[Any], xg.Rule]) -> None:
    captures = Unseen()

    def counted(ctx: Any, grad_out: Any, tin: Any, s: float = 1.0) -> Any:
        captures.append(s)
        return grad_out * s

    made = make(counted)
    for s in (1.0, 2.0, 3):
        np.testing.assert_array_equal(made.with_params(s=s)(None, G, X), G * s)
    np.testing.assert_array_equal(made(None, G, X, s=4.0), G * 4)
    assert len(captures) == 1


# --- pickling and copying -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: xg.get("triangular"),
        lambda: xg.get("triangular").with_params(width=2.0),
        lambda: xg.compose("clip_norm", "scale"),
        lambda: xg.compose("clip_norm", xg.get("scale").with_params(s=3.0)),
        lambda: xg.compose("scale", xg.compose("clip_norm", "triangular")),
        lambda: xg.compose("scale", "clip_norm").with_params(s=3.0),
    ],
    ids=["registered", "bound", "composed", "composed of bound", "nested", "composed, bound"],
)
@pytest.mark.parametrize("again", [lambda rule: pickle.loads(pickle.dumps(rule)), copy.deepcopy])
def test_rule_survives_pickling_and_copying(
    make: Callable[[], xg.Rule], again: Callable[[Any], Any]
) -> None:
    rule = make()
    other = again(rule)
    assert (other.name, other.params, repr(other)) == (rule.name, rule.params, repr(rule))
    np.testing.assert_array_equal(other(None, G, X), rule(None, G, X))


def test_registered_rules_pickle_by_name() -> None:
    composed = xg.register("mine")(xg.compose("clip_norm", "scale"))
    for rule in (xg.get("noise"), composed):
        assert pickle.loads(pickle.dumps(rule)) is rule


def test_a_locals_function_does_not_pickle_and_says_which() -> None:
    rule = xg.compose(lambda ctx, g, x: g, "scale")
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(rule)


# --- what a rule must return ----------------------------------------------------------------------

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


def test_shape_that_capture_cannot_tell_is_checked_when_it_runs(backend: Any) -> None:
    square, wide = (np.ones(shape, np.float32) for shape in ((3, 3), (2, 3)))
    rule = xg.register("rows")(lambda ctx, g, x: g * xp.sum(x, axis=1))
    given = rule(None, backend.array(square), backend.array(square))
    np.testing.assert_array_equal(backend.numpy(given), square * 3)
    rule = xg.register("outer")(lambda ctx, g, x: xp.expand_dims(g, 0) * x)
    with pytest.raises(
        xg.GradientError, match=r"'outer' returned shape \(1, 2, 3\).*shape \(2, 3\)"
    ):
        rule(None, backend.array(wide), backend.array(wide))


def test_a_dataclass_rule_that_cannot_be_captured_runs_as_it_is(backend: Any) -> None:
    @dataclass
    class Window:  # it has no hash
        width: float

        def __call__(self, ctx: Any, grad_out: Any, tin: Any) -> Any:
            return grad_out * (self.width if float(tin[0]) < 1e9 else 0.0)

    x = backend.array(np.ones(3, np.float32))
    with pytest.warns(NativeRuleWarning, match="turns a tensor into a Python number"):
        found = backend.numpy(xg.register("test window", override=True)(Window(3.0))(None, x, x))
    np.testing.assert_array_equal(found, [3.0] * 3)


# --- callables and defaults of other kinds --------------------------------------------------------


def test_a_default_that_no_param_can_have_is_the_functions_own(backend: Any) -> None:
    def weighted(
        ctx: Any,
        grad_out: Any,
        tin: Any,
        weights: Any = [1.0, 4.0],  # noqa: B006
        names: Any = {"k": 2.0},  # noqa: B006
        slope: float = 3.0,
    ) -> Any:
        return grad_out * weights[1] * names["k"] * slope

    rule = xg.register("weighted")(weighted)
    assert rule.params == {"slope": 3.0}
    x = backend.array(X)
    np.testing.assert_array_equal(backend.numpy(rule(None, x, x, slope=0.5)), X * 4.0)
    with pytest.raises(RuleTypeError, match="weights"):
        rule(None, x, x, weights=[2.0, 2.0])


@pytest.mark.needs("torch")
def test_a_module_is_a_rule_by_its_forward() -> None:
    import torch

    class Gate(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.tensor(2.0))

        def forward(self, ctx: Any, grad_out: Any, tin: Any, slope: float = 3.0) -> Any:
            return grad_out * self.scale * slope

    gate, x = Gate(), torch.from_numpy(X)
    rule = xg.register("gate")(gate)
    assert rule.params == {"slope": 3.0}
    with pytest.warns(NativeRuleWarning, match="scale"):
        np.testing.assert_array_equal(rule(None, x, x), X * 6.0)
    gate.scale.fill_(5.0)
    np.testing.assert_array_equal(rule(None, x, x, slope=1.0), X * 5.0)
