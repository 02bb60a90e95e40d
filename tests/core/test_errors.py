"""What is said of wrong words, params and tensors, and what to type instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

X = np.array([-1.0, 0.5, 2.0], np.float32)


def window(ctx: Any, grad_out: Any, tin: Any, low: float = -1.0, slope: float = 1.0) -> Any:
    return grad_out * slope * (tin >= low)


@pytest.fixture
def ranged() -> xg.Rule:
    return xg.register("ranged window", ranges={"slope": ">0 and finite"})(window)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: xg.get("triangluar"), KeyError, "no rule named 'triangluar'; did you mean 'tri"),
        (lambda: xg.activation("Relu7"), ValueError, "no activation 'Relu7'; did you mean 'ReLU'"),
        (lambda: xg.use("scale", scope="activation"), ValueError, "did you mean 'activations'"),
        (
            lambda: xg.activation("ReLU", "triangular", {"widht": 1.0}),
            TypeError,
            "rule 'triangular' has no param 'widht'; did you mean 'width'",
        ),
        (
            lambda: xg.activation("ReLU", "triangular", {"width": "1"}),
            TypeError,
            "param 'width' is a float, got str '1'",
        ),
        (
            lambda: xg.activation("ReLU", params={"width": 1.0}),
            KeyError,
            r"params \['width'\] need a rule",
        ),
        (
            lambda: xg.activation("ReLU", "triangular")([1.0]),
            ImportError,
            "no backend takes a .*list; expected a NumPy array or a tensor of",
        ),
        (lambda: xg.no_such_name, AttributeError, "has no attribute 'no_such_name'"),
        (lambda: xg.actvation, AttributeError, "did you mean 'activation'"),
    ],
)
def test_a_wrong_word_is_told_with_the_right_one(
    call: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        call()
    assert error is AttributeError or isinstance(raised.value, xg.MultigradError)


@pytest.mark.parametrize("value", [-1.0, 0, np.nan, np.float32(-1), np.array(-np.inf)])
@pytest.mark.parametrize(
    "give",
    [
        lambda rule, params: xg.use(rule.name, params).__enter__(),
        lambda rule, params: rule(None, X, X, **params),
        lambda rule, params: rule.with_params(**params),
        lambda rule, params: xg.activation("ReLU", rule, params),
        lambda rule, params: xg.use(xg.compose("scale", rule), params).__enter__(),
    ],
    ids=["use", "call", "with_params", "activation", "compose"],
)
def test_a_number_out_of_its_range_is_an_error(
    ranged: xg.Rule, give: Callable[[xg.Rule, Any], Any], value: Any
) -> None:
    message = "'ranged window': param 'slope' is > 0 and finite, got"
    with pytest.raises(xg.RuleError, match=message) as raised:
        give(ranged, {"slope": value})
    assert isinstance(raised.value, ValueError)


def test_a_range_is_for_a_param_that_there_is_and_holds_its_default() -> None:
    with pytest.raises(xg.RuleError, match="slop"):
        xg.register("misnamed", ranges={"slop": "> 0"})(window)
    with pytest.raises(ValueError, match=r"param 'slope' is > 3, got 1.0"):
        xg.register("misnamed", ranges={"slope": "> 3"})(window)


def test_a_required_param_is_asked_for() -> None:
    rule = xg.register("needing")(lambda ctx, g, x, width: g * width)
    with pytest.raises(xg.RuleError, match=r"needs a value for param 'width': params=\{'width'"):
        xg.activation("ReLU", rule)


@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64"])
def test_a_rule_acts_on_floats_only(dtype: str, backend: Any) -> None:
    x = backend.array(np.array([0, 1, 1]).astype(dtype))
    with xg.use("triangular"), pytest.raises(xg.GradientError, match=f"of dtype {dtype}.*cast it"):
        xg.activation("ReLU")(x)


def test_a_gradient_of_another_shape_than_the_input_is_refused(backend: Any) -> None:
    message = r"rule 'triangular' got a gradient of shape \(2,\) for an input of shape \(3,\)"
    with pytest.raises(xg.GradientError, match=message):
        xg.get("triangular")(None, backend.array(X[:2]), backend.array(X))


def test_a_number_that_is_read_off_a_tensor_is_named_with_its_line(backend: Any) -> None:
    @xg.register("adaptive", native=False)
    def adaptive(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out / float(xg.xp.sum(tin))

    act = xg.activation("ReLU", "adaptive")
    with pytest.raises(xg.TraceError, match=r"adaptive.*test_errors.py:.*float\(xg"):
        backend.gradient(act, X)
