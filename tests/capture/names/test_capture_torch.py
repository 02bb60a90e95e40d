"""Rules written in torch: any callable is one, wherever it was made."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.capturing import inputs
from ...harness.hidden import python

pytestmark = [
    pytest.mark.needs("torch"),
    # jax says that without its 64-bit mode float64 is float32.
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64"),
]


class Window:
    """A rule with a state of its own."""

    def __init__(self, width: float) -> None:
        self.width = width

    def __call__(self, ctx: Any, grad_out: Any, tin: Any, *, least: float = 0.25) -> Any:
        return grad_out * (tin.abs() <= max(self.width, least))

    def method(self, ctx: Any, grad_out: Any, tin: Any, least: float = 0.25) -> Any:
        return self(ctx, grad_out, tin, least=least)

    @staticmethod
    def function(ctx: Any, grad_out: Any, tin: Any, least: float = 0.25) -> Any:
        return grad_out * (tin.abs() <= max(1.0, least))


class Unhashable(Window):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Window) and self.width == other.width


def with_width(ctx: Any, grad_out: Any, tin: Any, width: Any, least: float = 0.25) -> Any:
    return grad_out * (tin.abs() <= max(width, least))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Window(1.0),
        lambda: Unhashable(1.0),
        lambda: Window(1.0).method,
        lambda: Window.function,
        lambda: functools.partial(with_width, width=1.0),
        lambda: lambda ctx, g, x, least=0.25: g * (x.abs() <= max(1.0, least)),
        lambda: functools.partial(Window(1.0).method, least=0.5),
    ],
    ids=["object", "unhashable", "method", "static", "partial", "lambda", "partial of method"],
)
def test_any_callable_is_a_rule(make: Callable[[], Any], backend: Any, captured: Any) -> None:
    tin, grad_out = inputs(np.float32)
    rule = captured(make())
    arrays = backend.array(grad_out), backend.array(tin)
    given = backend.numpy(rule(None, *arrays))
    np.testing.assert_array_equal(given, grad_out * (np.abs(tin) <= 1.0))
    given = backend.numpy(rule(None, *arrays, least=1.5))
    np.testing.assert_array_equal(given, grad_out * (np.abs(tin) <= 1.5))
    assert backend.numpy(xg.activation("ReLU", make())(arrays[1])).shape == tin.shape


def test_torch_rule_runs_elsewhere_when_torch_came_late(captured: Any, tmp_path: Path) -> None:

    code = """
import numpy as np
import multigrad as xg
x = np.array([-1.0, 2.0], np.float32)
assert xg.activation("ReLU")(x).tolist() == [0.0, 2.0]  # NumPy's owner is known by now
import torch
rule = xg.register("late", native=False)(lambda ctx, g, x: torch.where(x > 0, g, 0.0))
assert rule(None, x, x).tolist() == [0.0, 2.0]
"""
    python("-c", code, cwd=tmp_path)
