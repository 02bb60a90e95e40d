"""Rules that run as they are: when, with which warning, and what happens on another framework's
tensors.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp

X = np.array([-1.0, 0.0, 0.5, 2.0], np.float32)
G = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
frameworks = pytest.mark.backends("torch", "jax", "tensorflow", "mlx")


def make_uncapturable() -> Callable[..., Any]:
    """Make a new function that needs a number, so that no earlier test has warned about
    it.
    """

    def halves_large(
        ctx: Any, grad_out: Any, tin: Any, limit: float = 1.0, side: str = "up"
    ) -> Any:
        if float(xp.sum(grad_out)) > limit:  # here
            return 0.5 * grad_out if side == "up" else -0.5 * grad_out
        return grad_out

    return halves_large


def marked_line(function: Callable[..., Any]) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if line.rstrip().endswith("# here"))


def in_own_functions(name: str, grad_out: Any, tin: Any) -> Any:
    """grad_out where tin > 0, in functions that only the framework itself can run."""
    if name == "numpy":
        return np.gradient(grad_out, axis=0) * 0 + np.where(tin > 0, grad_out, 0)
    if name == "torch":
        import torch

        return torch.histc(grad_out, 4) * 0 + torch.where(tin > 0, grad_out, 0.0)
    if name == "jax":
        import jax.numpy as jnp

        return jnp.fft.hfft(grad_out, grad_out.shape[-1]) * 0 + jnp.where(tin > 0, grad_out, 0.0)
    if name == "mlx":
        import mlx.core as mx

        return mx.fft.fft(grad_out).real * 0 + mx.where(tin > 0, grad_out, 0.0)
    import tensorflow as tf

    return tf.math.bessel_i0(grad_out) * 0 + tf.where(tin > 0, grad_out, tf.zeros_like(grad_out))


def make_rule_of(name: str) -> Callable[..., Any]:
    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return in_own_functions(name, grad_out, tin)

    return rule


# --- native=None ----------------------------------------------------------------------------------


def test_uncapturable_rule_runs_as_it_is_with_a_warning_at_its_line(backend: Any) -> None:
    function = make_uncapturable()
    rule = xg.register("halves_large")(function)
    with pytest.warns(xg.NativeRuleWarning) as caught:
        given = rule(None, backend.array(G), backend.array(X))
    np.testing.assert_array_equal(backend.numpy(given), G / 2)
    (warning,) = caught
    assert (warning.filename, warning.lineno) == (__file__, marked_line(function))
    for word in (
        "'halves_large'",
        f"test_native.py:{warning.lineno}",
        "Python number",
        "native=True",
    ):
        assert word in str(warning.message)


@frameworks
def test_uncapturable_rule_acts_in_backward_and_warns_at_forward(backend: Any) -> None:
    function = make_uncapturable()
    with xg.use(function, {"limit": 1.0}), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y, grad_in = backend.vjp(xg.activation("ReLU"), X, G)
    np.testing.assert_array_equal(y, np.maximum(X, 0))
    np.testing.assert_array_equal(grad_in, G / 2)
    (warning,) = [w for w in caught if w.category is xg.NativeRuleWarning]
    assert (warning.filename, warning.lineno) == (__file__, marked_line(function))


@pytest.mark.needs("torch")
def test_warning_points_at_the_rule_from_within_a_torch_module(torch: Any) -> None:
    function = make_uncapturable()
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), xg.Activation("ReLU", function))
    with pytest.warns(xg.NativeRuleWarning) as caught:
        model(torch.ones(2, 3)).sum().backward()
    (warning,) = caught
    assert (warning.filename, warning.lineno) == (__file__, marked_line(function))


def test_it_warns_once_whatever_it_is_used_with(backend: Any) -> None:
    rule = xg.register("halves_large")(make_uncapturable())
    arrays = backend.array(G), backend.array(X)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rule(None, *arrays)
        rule(None, *arrays, limit=3.0)
        rule(None, *arrays, side="down")
        rule.with_params(limit=2.0)(None, *arrays)
        rule(None, arrays[0], None)
        xg.activation("ReLU", rule)(arrays[1])
    assert [w.category for w in caught].count(xg.NativeRuleWarning) == 1


def test_params_reach_it_as_python_numbers_and_change(backend: Any) -> None:
    seen = []

    def rule(ctx: Any, grad_out: Any, tin: Any, width: float = 1, n: int = 2) -> Any:
        seen.append((width, n))
        return grad_out * width

    made = xg.register("noted", native=True)(rule)
    for width in (2, 0.5):
        given = made(None, backend.array(G), backend.array(X), width=width, n=3)
        np.testing.assert_array_equal(backend.numpy(given), G * width)
    assert seen == [(2.0, 3), (0.5, 3)] and type(seen[0][0]) is float


@pytest.mark.backends("numpy", "torch", "jax", "tensorflow")  # each by a branch of its own
def test_rule_in_a_frameworks_own_functions_runs_there(backend: Any) -> None:
    rule = xg.register("own")(make_rule_of(backend.name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", xg.NativeRuleWarning)
        given = rule(None, backend.array(G), backend.array(X))
        np.testing.assert_array_equal(backend.numpy(given), G * (X > 0))
        if backend.name != "numpy":
            with xg.use(rule):
                _, grad_in = backend.vjp(xg.activation("Heaviside"), X, G)
            np.testing.assert_array_equal(grad_in, G * (X > 0))


@pytest.mark.needs("torch", "jax", "tensorflow")
def test_elsewhere_it_is_an_error_that_says_so(backend: Any) -> None:
    for written_in in {"torch", "jax", "tensorflow"} - {backend.name}:
        rule = xg.register("own", override=True)(make_rule_of(written_in))
        arrays = backend.array(G), backend.array(X)
        # Some frameworks take the other's tensors, and return their own.
        errors = (xg.TraceError, xg.GradientError)
        with (
            pytest.warns(xg.NativeRuleWarning),
            pytest.raises(errors, match=f"'own'.*{backend.name}"),
        ):
            rule(None, *arrays)


# --- native=True and native=False -----------------------------------------------------------------


def test_native_true_runs_as_it_is_without_a_warning(backend: Any) -> None:
    rule = xg.register("halves_large", native=True)(make_uncapturable())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given = rule(None, backend.array(G), backend.array(X))
    np.testing.assert_array_equal(backend.numpy(given), G / 2)


def test_native_true_is_not_captured_even_if_it_could_be(backend: Any) -> None:
    seen = []

    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        seen.append(type(grad_out))
        return grad_out * 2

    made = xg.register("doubled", native=True)(rule)
    g = backend.array(G)
    made(None, g, backend.array(X))
    assert seen == [type(g)]


def test_native_true_lets_its_own_error_through(backend: Any) -> None:
    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        raise ZeroDivisionError("mine")

    made = xg.register("failing", native=True)(rule)
    with pytest.raises(ZeroDivisionError, match="mine"):
        made(None, backend.array(G), backend.array(X))


def test_native_false_is_an_error_at_forward(backend: Any) -> None:
    function = make_uncapturable()
    rule = xg.register("halves_large", native=False)(function)
    with (
        xg.use(rule),
        pytest.raises(xg.TraceError, match=f"test_native.py:{marked_line(function)}"),
    ):
        xg.activation("ReLU")(backend.array(X))
    with pytest.raises(xg.TraceError, match="turns a tensor into a Python number"):
        rule(None, backend.array(G), backend.array(X))


def test_native_takes_no_other_value() -> None:
    with pytest.raises(xg.RuleError, match="native is None, True or False, got 'yes'"):
        xg.register("mine", native="yes")  # type: ignore[arg-type]


# --- in a composed rule ---------------------------------------------------------------------------


def test_composed_rule_with_a_native_part_runs_as_it_is(backend: Any) -> None:
    xg.register("halves_large", native=True)(make_uncapturable())
    rule = xg.compose("scale", "halves_large")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given = rule(None, backend.array(G), backend.array(X), s=3.0)
    np.testing.assert_allclose(backend.numpy(given), G * 1.5)


def test_composed_rule_with_a_part_that_must_be_captured_is_an_error(backend: Any) -> None:
    xg.register("halves_large", native=False)(make_uncapturable())
    rule = xg.compose("scale", "halves_large")
    with pytest.raises(xg.TraceError, match="turns a tensor into a Python number"):
        rule(None, backend.array(G), backend.array(X))


def test_composed_rule_with_an_uncapturable_part_warns_at_its_line(backend: Any) -> None:
    function = make_uncapturable()
    rule = xg.compose("scale", function)
    with pytest.warns(xg.NativeRuleWarning) as caught:
        given = rule(None, backend.array(G), backend.array(X), s=3.0)
    np.testing.assert_allclose(backend.numpy(given), G * 1.5)
    assert (caught[0].filename, caught[0].lineno) == (__file__, marked_line(function))


# --- what it returns ------------------------------------------------------------------------------

WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "None": (lambda g: None, "returned None"),
    "number": (lambda g: 1.0, "returned a float as the gradient.*expected a tensor of"),
    "tuple": (lambda g: (g, g), "returned a tuple"),
    "shape": (xp.sum, r"returned a gradient of shape \(\) for argument 'tin' of shape \(4,\)"),
    "bools": (lambda g: g > 0, "returned a bool gradient for argument 'tin' of float32; cast"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_result_is_a_gradient_error(what: str, backend: Any) -> None:
    call, message = WRONG[what]
    rule = xg.register("wrong", native=True)(lambda ctx, grad_out, tin: call(grad_out))
    with pytest.raises(xg.GradientError, match=f"rule 'wrong' {message}"):
        rule(None, backend.array(G), backend.array(X))


@pytest.mark.needs("torch")
def test_tensor_of_another_framework_is_a_gradient_error(torch: Any) -> None:
    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return np.zeros(4, np.float32)

    made = xg.register("strange", native=True)(rule)
    with pytest.raises(xg.GradientError, match=r"'strange' returned .*numpy.*torch"):
        made(None, torch.from_numpy(G), torch.from_numpy(X))
