"""Rules written in NumPy: captured as they stand, they give NumPy's numbers on every backend."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.capturing import inputs


def test_in_place_rule_leaves_the_given_arrays_alone(captured: Any) -> None:
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


def test_a_draw_of_numpy_is_not_frozen_into_the_graph(captured: Any) -> None:
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
    backend: Any, captured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hook(*_: Any) -> None: ...

    hook.__module__ = "torch.distributed"  # as its init_process_group leaves one
    monkeypatch.setattr(sys, "excepthook", hook)

    def shared(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return np.divide(grad_out, min(tin.size, sys.maxsize))  # a method in torch

    given = captured(shared)(None, backend.array(np.ones(4)), backend.array(np.ones(4)))
    np.testing.assert_array_equal(backend.numpy(given), np.full(4, 0.25))
