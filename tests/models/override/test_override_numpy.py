"""`xg.override` on functions of NumPy: rules on what a function calls while it is captured."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.errors import RuleValueError

from ...harness.models.overridden import tenfold  # noqa: F401

X = np.array([-1.0, 0.5, 2.0])
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
    np.testing.assert_array_equal(overridden(X), function(X))
    outputs, pullback = xg.vjp(overridden, X)
    np.testing.assert_array_equal(outputs, function(X))
    np.testing.assert_array_equal(pullback(np.ones(3))[0], 10 * WEIGHTS * (X > 0))


def test_calls_in_a_row_and_inside_of_other_captures_are_changed() -> None:
    overridden = xg.override(lambda x: np.sign(np.sign(x)), {np.sign: "tenfold"})
    np.testing.assert_array_equal(xg.vjp(overridden, X)[1](np.ones(3))[0], [0.0, 100.0, 100.0])
    around = xg.vjp(lambda x: 2 * overridden(x), X)[1]
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
                _, pullback = xg.vjp(overridden, X)
            finally:
                sys.setprofile(None)
            np.testing.assert_array_equal(pullback(np.ones(3))[0], [factor] * 3)
            counts.append(len(runs))
    assert counts[0] == counts[1] < counts[2] == counts[3]


def test_other_inputs_keep_their_gradients() -> None:
    overridden = xg.override(lambda x, w: np.sign(x * w) * w, {np.sign: "tenfold"})
    in_x, in_w = xg.vjp(overridden, X, WEIGHTS)[1](np.ones(3))
    np.testing.assert_array_equal(in_x, 10 * WEIGHTS**2 * (X > 0))
    np.testing.assert_array_equal(in_w, np.sign(X) + 10 * X * WEIGHTS * (X > 0))


def test_the_graph_is_shown_compared_and_saved(tmp_path: Path) -> None:
    overridden = xg.override(lambda x: np.sign(x) * 2.0, {np.sign: "tenfold"})
    assert "sign" in xg.show(overridden)
    assert xg.parity(overridden, X, backends=["numpy"]).ok
    path = tmp_path / "function.json"
    xg.vjp(overridden, X)
    xg.save(overridden, path)
    loaded = xg.load(path)
    np.testing.assert_array_equal(xg.vjp(loaded, X)[1](np.ones(3))[0], [0.0, 20.0, 20.0])


REFUSED = {
    "sing": (np.sin, "NumPy has no operation 'sing'; did you mean 'sin'"),
    np.sign: (lambda x: np.sin(x), "calls no operation sign"),
    np.maximum: (lambda x: np.maximum(x, 2 * x), "2 inputs"),
}


@pytest.mark.parametrize("selector", REFUSED)
def test_what_cannot_be_changed_is_refused_with_its_reason(selector: Any) -> None:
    function, words = REFUSED[selector]
    with pytest.raises(RuleValueError, match=words):
        xg.vjp(xg.override(function, {selector: "tenfold"}), X)
