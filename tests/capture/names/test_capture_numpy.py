"""Rules written in NumPy: captured as they stand, they give NumPy's numbers on every backend."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.capturing import inputs, rules_in
from ...written import rules_in_numpy
from ...written.unseen import Unseen

RULES = rules_in("rules_in_numpy")


@pytest.mark.parametrize("name", RULES)
def test_rule_gives_numpys_numbers(
    name: str, backend: Any, captured: Callable[..., xg.Rule]
) -> None:
    function = getattr(rules_in_numpy, name)
    tin, grad_out = inputs(np.float32)
    wanted = function(None, grad_out.copy(), tin.copy())
    rule = captured(function)
    given = backend.numpy(rule(None, backend.array(grad_out), backend.array(tin)))
    assert given.dtype == np.float32 and given.shape == tin.shape
    np.testing.assert_allclose(given, wanted, rtol=3e-6, atol=3e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("name", RULES)
def test_rule_gives_numpys_numbers_in_float64(name: str, captured: Callable[..., xg.Rule]) -> None:
    function = getattr(rules_in_numpy, name)
    tin, grad_out = inputs(np.float64)
    wanted = function(None, grad_out.copy(), tin.copy())
    given = captured(function)(None, grad_out, tin)
    assert given.dtype == np.float64 and given.shape == tin.shape
    np.testing.assert_allclose(given, wanted, rtol=1e-13, atol=1e-13 * np.abs(wanted).max())


@pytest.mark.backends("torch", "jax", "tensorflow")
@pytest.mark.parametrize("name", RULES[::5])
def test_rule_acts_under_an_activation(
    name: str, backend: Any, captured: Callable[..., xg.Rule]
) -> None:
    function = getattr(rules_in_numpy, name)
    tin, grad_out = inputs(np.float32)
    wanted = function(None, grad_out.copy(), tin.copy())
    y, grad_in = backend.vjp(xg.activation("ReLU", captured(function)), tin, grad_out)
    np.testing.assert_array_equal(y, np.maximum(tin, 0))
    np.testing.assert_allclose(grad_in, wanted, rtol=3e-6, atol=3e-6 * np.abs(wanted).max())


def test_in_place_rule_leaves_the_given_arrays_alone(captured: Callable[..., xg.Rule]) -> None:
    tin, grad_out = inputs(np.float32)
    before = grad_out.copy()

    def doubled(ctx: Any, grad_out: Any, tin: Any) -> Any:
        grad_out *= 2
        tin[tin < 0] = 0
        return grad_out * tin

    given = captured(doubled)(None, grad_out, tin)
    np.testing.assert_allclose(given, before * 2 * np.maximum(tin, 0), rtol=1e-6)
    np.testing.assert_array_equal(grad_out, before)
    assert tin.min() < 0


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.usefixtures("unproven")
def test_one_capture_serves_every_rank_and_dtype(
    shape: tuple[int, ...], dtype: Any, captured: Callable[..., xg.Rule]
) -> None:
    captures = Unseen()

    def rule(ctx: Any, grad_out: Any, tin: Any, width: float = 2.0) -> Any:
        captures.append(1)
        return grad_out * np.exp(-np.square(tin) / width) / tin.size

    made = captured(rule)
    made(None, np.ones(3, np.float32), np.ones(3, np.float32))
    x = np.full(shape, 0.5, dtype)
    given = made(None, x, x)
    assert given.dtype == dtype and given.shape == shape
    if x.size:
        np.testing.assert_allclose(given, 0.5 * np.exp(-0.125) / x.size, rtol=1e-3)
    assert len(captures) == 1


def test_a_draw_of_numpy_is_not_frozen_into_the_graph(captured: Callable[..., xg.Rule]) -> None:
    def jittered(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * np.random.uniform(0.5, 1.5)

    ones = np.ones(3, np.float32)
    with pytest.raises(
        xg.TraceError, match=r"'under test' gives another graph each time.*rand_like"
    ):
        captured(jittered)(None, ones, ones)
    as_it_is = xg.register("under test", override=True)(jittered)
    with pytest.warns(xg.NativeRuleWarning, match="another graph each time"):
        first = as_it_is(None, ones, ones)
    assert (first != as_it_is(None, ones, ones)).all()


@pytest.mark.backends("numpy", "torch")
def test_what_a_framework_puts_into_pythons_modules_is_no_word_of_the_function(
    backend: Any, captured: Callable[..., xg.Rule], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hook(*_: Any) -> None: ...

    hook.__module__ = "torch.distributed"  # as its init_process_group leaves one
    monkeypatch.setattr(sys, "excepthook", hook)

    def shared(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return np.divide(grad_out, min(tin.size, sys.maxsize))  # a method in torch

    given = captured(shared)(None, backend.array(np.ones(4)), backend.array(np.ones(4)))
    np.testing.assert_array_equal(backend.numpy(given), np.full(4, 0.25))
