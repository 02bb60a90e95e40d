"""`xg.override`: the same function, written for each framework, has the same gradients."""

from __future__ import annotations

import gc
import importlib
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.errors import MultigradError, RuleError, RuleTypeError, RuleValueError
from multigrad.models.gradient_replacement import replacement_for
from multigrad_conformance.under_test import pull

from ...harness.models.overridden import scaled_by, tenfold  # noqa: F401

X = np.array([[-1.5, -0.25, 0.0], [0.5, 1.0, 2.0]], np.float32)
LIBRARIES = {"numpy": "numpy", "torch": "torch", "jax": "jax.numpy", "tensorflow": "tensorflow"}

pytestmark = pytest.mark.backends(*LIBRARIES)


def network(library: Any) -> Any:
    """Return a function of a tensor that calls `sign` and `tanh` of a library."""

    def function(x):
        return library.tanh(library.sign(x) * 0.5 + x) * x

    return function


@pytest.mark.parametrize("rule", ["straight_through", "rectangular"])
def test_the_gradient_is_the_same_on_every_framework(backend: Any, rule: str) -> None:
    library = importlib.import_module(LIBRARIES[backend.name])
    for selector in ("sign", library.sign):
        overridden = xg.override(network(library), {selector: rule})
        outputs, (found,) = pull(backend, overridden, (X,))
        inner = np.sign(X) * 0.5 + X
        np.testing.assert_allclose(outputs, np.tanh(inner) * X, rtol=2e-6)
        through = (1 - np.tanh(inner) ** 2) * X
        of_sign = np.asarray(xg.get(rule)(None, 0.5 * through, X))
        expected = np.tanh(inner) + through + of_sign
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_rules_are_attached_to_a_function_as_to_a_model(backend: Any) -> None:
    library = importlib.import_module(LIBRARIES[backend.name])
    rules = {"sign": "straight_through"}
    found, expected = (
        pull(backend, f, (X,))[1][0]
        for f in (xg.attach(network(library), rules), xg.override(network(library), rules))
    )
    np.testing.assert_array_equal(found, expected)


def test_two_operations_take_two_rules(backend: Any) -> None:
    library = importlib.import_module(LIBRARIES[backend.name])
    rules = {"sign": "straight_through", "tanh": xg.get("straight_through")}
    _, (found,) = pull(backend, xg.override(network(library), rules), (X,))
    expected = np.tanh(np.sign(X) * 0.5 + X) + 1.5 * X
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_other_inputs_keep_their_gradients(backend: Any) -> None:
    library = importlib.import_module(LIBRARIES[backend.name])
    overridden = xg.override(lambda x, w: library.sign(x * w) * w, {library.sign: "tenfold"})
    _, (in_x, in_w) = pull(backend, overridden, (X_NUMPY, WEIGHTS))
    np.testing.assert_array_equal(in_x, 10 * WEIGHTS**2 * (X_NUMPY > 0))
    np.testing.assert_array_equal(in_w, np.sign(X_NUMPY) + 10 * X_NUMPY * WEIGHTS * (X_NUMPY > 0))


def test_a_name_means_the_rule_that_is_registered_now(backend: Any) -> None:
    library = importlib.import_module(LIBRARIES[backend.name])
    overridden = xg.override(library.sign, {"sign": "tenfold"})
    for factor in (10.0, 3.0):
        xg.register("tenfold", override=True)(scaled_by(factor))
        _, (found,) = pull(backend, overridden, (X,))
        np.testing.assert_array_equal(found, np.full_like(X, factor) * (X > 0))


def test_what_a_rule_reads_is_followed(backend: Any) -> None:
    library = importlib.import_module(LIBRARIES[backend.name])

    class Held:
        scale = 1.0

    def held(ctx, grad_out, tin):
        return grad_out * Held.scale

    overridden = xg.override(library.tanh, {"tanh": held})
    composed = xg.override(library.tanh, {"tanh": xg.compose(held, held)})
    for Held.scale in (1.0, 2.0, 3.0, 4.0, 2.0):
        for function, factor in ((overridden, Held.scale), (composed, Held.scale**2)):
            _, (found,) = pull(backend, function, (X,))
            np.testing.assert_array_equal(found, np.full_like(X, factor))


def test_rules_that_are_none_are_refused_at_once() -> None:
    for function, rules, words in (
        (np.sign, {}, "at least one"),
        (np.sign, "straight_through", "expected {selector: rule}"),
        (np.sign, "epsilon_plus", r"xg.composites.epsilon_plus\(\.\.\.\)"),
        (np.sign, xg.composites.deconvnet, r"xg.composites.deconvnet\(\.\.\.\)"),
        (np.sign, xg.attribution.epsilon(), r"xg.attach\(model, {'relu': 'guided'}\)"),
        (np.sign, {"sign": xg.attribution.zplus}, r"call xg.attribution.zplus\(\)"),
        (np.sign, {"sign": xg.composites.epsilon_plus()}, "got composite 'epsilon_plus'"),
        (np.sign, xg.composites.epsilon_plus, "epsilon_plus, which is to be called"),
        (3, {"sign": "straight_through"}, "expected a function"),
    ):
        with pytest.raises(RuleTypeError, match=words):
            xg.override(function, rules)
    for name, words in (
        ("straight_thru", "straight_thru"),
        ("epsilon", r"xg.attribution.epsilon\(\)"),
        ("ZBox", r"xg.attribution.zbox\(low, high\)"),
    ):
        with pytest.raises(RuleError, match=words):
            xg.override(np.sign, {"sign": name})


@pytest.mark.needs("torch", "jax")
def test_tensors_of_two_frameworks_are_refused() -> None:
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    overridden = xg.override(lambda x, y: x, {"sign": "straight_through"})
    with pytest.raises(MultigradError, match="jax and torch"):
        overridden(torch.ones(2), jnp.ones(2))


@pytest.mark.parametrize("rule", ["triangular", "pass"])
def test_an_operation_that_changes_the_shape_is_refused_at_the_first_call(
    backend: Any, rule: str
) -> None:
    function = {
        "numpy": lambda x: xg.xp.sum(x, -1),
        "torch": lambda x: x.sum(-1),
        "jax": lambda x: x.sum(-1),
        "tensorflow": lambda x: __import__("tensorflow").reduce_sum(x, -1),
    }[backend.name]
    operation = "reduce_sum" if backend.name == "jax" else "sum"
    overridden = xg.override(function, {operation: rule})
    x = backend.array(np.ones((2, 4), np.float32))
    words = rf"operation '(reduce_)?[sS]um'.* makes shape .* and rule '{rule}' needs a gradient of"
    with pytest.raises(xg.GradientError, match=words):
        if backend.name == "numpy":
            xg.vjp(overridden, x)
        overridden(x)


# `xg.override` on functions of NumPy: rules on what a function calls while it is captured.


X_NUMPY = np.array([-1.0, 0.5, 2.0])
WEIGHTS = np.array([1.0, 2.0, 3.0])


def helper(x):
    return np.sign(x)


CASES: dict[str, tuple[Callable[..., Any], Any]] = {
    "a function": (lambda x: np.sign(x) * WEIGHTS, np.sign),
    "a name": (lambda x: np.sign(x) * WEIGHTS, "sign"),
    "a helper": (lambda x: helper(x) * WEIGHTS, np.sign),
    "an operator": (lambda x: abs(x) * WEIGHTS, np.abs),
    "a method": (lambda x: x.clip(0, 1) * WEIGHTS, np.clip),
    "one bound": (lambda x: np.clip(x, 0, None) * WEIGHTS, np.clip),
    "with a number": (lambda x: np.maximum(0.0, x) * WEIGHTS, np.maximum),
    "several ops": (lambda x: np.heaviside(x, 0.0) * WEIGHTS, np.heaviside),
    "another form": (lambda x: x.round() * WEIGHTS, np.round),
    "a choice": (lambda x: np.where(x > 0, x, 0.0) * WEIGHTS, np.where),
    "our own": (lambda x: xg.xp.relu(x) * WEIGHTS, "relu"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_call_is_found_in_every_form(case: str) -> None:
    function, selector = CASES[case]
    overridden = xg.override(function, {selector: "tenfold"})
    np.testing.assert_array_equal(overridden(X_NUMPY), function(X_NUMPY))
    outputs, pullback = xg.vjp(overridden, X_NUMPY)
    np.testing.assert_array_equal(outputs, function(X_NUMPY))
    np.testing.assert_array_equal(pullback(np.ones(3))[0], 10 * WEIGHTS * (X_NUMPY > 0))


def test_calls_in_a_row_and_inside_of_other_captures_are_changed() -> None:
    overridden = xg.override(lambda x: np.sign(np.sign(x)), {np.sign: "tenfold"})
    np.testing.assert_array_equal(
        xg.vjp(overridden, X_NUMPY)[1](np.ones(3))[0], [0.0, 100.0, 100.0]
    )
    around = xg.vjp(lambda x: 2 * overridden(x), X_NUMPY)[1]
    np.testing.assert_array_equal(around(np.ones(3))[0], [0.0, 200.0, 200.0])


@pytest.mark.usefixtures("unproven")
def test_a_function_runs_again_where_a_name_means_another_rule_and_at_no_other_call() -> None:
    runs = []

    def watch(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is helper.__code__:
            runs.append(frame)

    overridden = xg.override(helper, {np.sign: "tenfold"})
    counts = []
    for factor in (10.0, 5.0):
        xg.register("tenfold", override=True)(lambda ctx, g, t, factor=factor: factor * g)
        for _ in range(2):
            sys.setprofile(watch)
            try:
                _, pullback = xg.vjp(overridden, X_NUMPY)
            finally:
                sys.setprofile(None)
            np.testing.assert_array_equal(pullback(np.ones(3))[0], [factor] * 3)
            counts.append(len(runs))
    assert counts[0] == counts[1] < counts[2] == counts[3]


def test_the_graph_is_shown_compared_and_saved(tmp_path: Path) -> None:
    overridden = xg.override(lambda x: np.sign(x) * 2.0, {np.sign: "tenfold"})
    assert "sign" in xg.show(overridden)
    assert xg.parity(overridden, X_NUMPY, backends=["numpy"]).ok
    path = tmp_path / "function.json"
    xg.vjp(overridden, X_NUMPY)
    xg.save(overridden, path)
    loaded = xg.load(path)
    np.testing.assert_array_equal(xg.vjp(loaded, X_NUMPY)[1](np.ones(3))[0], [0.0, 20.0, 20.0])


REFUSED = {
    "sing": (np.sin, "NumPy has no operation 'sing'; did you mean 'sin'"),
    np.sign: (lambda x: np.sin(x), "calls no operation 'sign'"),
    np.maximum: (lambda x: np.maximum(x, 2 * x), "2 inputs"),
}


@pytest.mark.parametrize("selector", REFUSED)
def test_what_cannot_be_changed_is_refused_with_its_reason(selector: Any) -> None:
    function, words = REFUSED[selector]
    with pytest.raises(RuleValueError, match=words):
        xg.vjp(xg.override(function, {selector: "tenfold"}), X_NUMPY)


def test_a_rule_that_nobody_holds_is_freed_with_what_replaced_gradients_by_it() -> None:
    def take() -> weakref.ref[Any]:
        rule = xg.get("triangular").with_params(width=2.0)
        replacement = replacement_for(rule)
        assert replacement_for(rule) is replacement
        _, pullback = xg.vjp(replacement, np.array([0.5]), np.array([1.0]))
        assert pullback(np.ones(1))[0] == [0.75]
        return weakref.ref(rule)

    gone = take()
    gc.collect()
    assert gone() is None
