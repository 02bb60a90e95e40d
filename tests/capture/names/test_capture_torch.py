"""Rules written in torch: captured as they stand, they give torch's numbers on every backend."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.capturing import inputs, rules_in

pytestmark = [
    pytest.mark.needs("torch"),
    # jax says that without its 64-bit mode float64 is float32.
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64"),
]

RULES = rules_in("rules_in_torch")


def find_rule(name: str) -> Callable[..., Any]:
    from ...written import rules_in_torch

    return getattr(rules_in_torch, name)


def as_written(function: Callable[..., Any], grad_out: Any, tin: Any) -> Any:
    """Run the user's function in torch, without us."""
    import torch

    return function(None, torch.tensor(grad_out), torch.tensor(tin)).numpy()


@pytest.mark.parametrize("name", RULES)
def test_rule_gives_torchs_numbers(
    name: str, backend: Any, captured: Callable[..., xg.Rule]
) -> None:
    function = find_rule(name)
    tin, grad_out = inputs(np.float32)
    wanted = as_written(function, grad_out, tin)
    rule = captured(function)
    given = backend.numpy(rule(None, backend.array(grad_out), backend.array(tin)))
    assert given.dtype == np.float32 and given.shape == tin.shape
    np.testing.assert_allclose(given, wanted, rtol=3e-6, atol=3e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("name", RULES)
def test_rule_gives_torchs_numbers_in_float64(name: str, captured: Callable[..., xg.Rule]) -> None:
    function = find_rule(name)
    tin, grad_out = inputs(np.float64)
    wanted = as_written(function, grad_out, tin)
    given = captured(function)(None, grad_out, tin)
    assert given.dtype == np.float64 and given.shape == tin.shape
    np.testing.assert_allclose(given, wanted, rtol=1e-13, atol=1e-13 * np.abs(wanted).max())


@pytest.mark.backends("torch", "jax", "tensorflow")
@pytest.mark.parametrize("name", RULES[::5])
def test_rule_acts_under_an_activation(
    name: str, backend: Any, captured: Callable[..., xg.Rule]
) -> None:
    function = find_rule(name)
    tin, grad_out = inputs(np.float32)
    wanted = as_written(function, grad_out, tin)
    y, grad_in = backend.vjp(xg.activation("Heaviside", captured(function)), tin, grad_out)
    np.testing.assert_array_equal(y, tin > 0)
    np.testing.assert_allclose(grad_in, wanted, rtol=3e-6, atol=3e-6 * np.abs(wanted).max())


def test_draws_of_torch_become_draws_by_key(backend: Any, captured: Callable[..., xg.Rule]) -> None:
    import torch

    def draws(ctx: Any, grad_out: Any, tin: Any) -> Any:
        kept = torch.bernoulli(torch.sigmoid(tin))
        dropped = torch.nn.functional.dropout(grad_out, p=0.25)
        noise = torch.empty_like(grad_out).normal_(0.0, 0.1) + torch.rand_like(tin).mul_(0.5)
        return grad_out * kept + dropped + noise + torch.randn_like(tin, dtype=tin.dtype)

    tin, grad_out = inputs(np.float32)
    rule = captured(draws)
    first, again, other = (
        backend.numpy(rule(None, backend.array(grad_out), backend.array(tin), key=key))
        for key in (3, 3, 4)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1
    reference = rule(None, grad_out, tin, key=3)  # on NumPy
    np.testing.assert_allclose(first, reference, rtol=1e-6, atol=1e-6)


def test_draws_of_torch_have_torchs_distributions(captured: Callable[..., xg.Rule]) -> None:
    import torch

    def kept(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return torch.bernoulli(tin) * grad_out

    def dropped(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return torch.nn.functional.dropout(grad_out, p=0.25)

    def shifted(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out.clone().uniform_(2.0, 4.0)

    ones = np.ones(20_000, np.float32)
    given = captured(kept)(None, ones, ones * np.float32(0.3), key=1)
    assert set(np.unique(given)) == {0.0, 1.0}
    assert given.mean() == pytest.approx(0.3, abs=0.02)
    given = captured(dropped)(None, ones, ones, key=1)
    assert np.unique(given) == pytest.approx([0.0, 4 / 3])
    assert (given > 0).mean() == pytest.approx(0.75, abs=0.02)
    given = captured(shifted)(None, ones, ones, key=1)
    assert 2 <= given.min() < 2.01 and 3.99 < given.max() < 4


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
def test_any_callable_is_a_rule(
    make: Callable[[], Any], backend: Any, captured: Callable[..., xg.Rule]
) -> None:
    tin, grad_out = inputs(np.float32)
    rule = captured(make())
    arrays = backend.array(grad_out), backend.array(tin)
    given = backend.numpy(rule(None, *arrays))
    np.testing.assert_array_equal(given, grad_out * (np.abs(tin) <= 1.0))
    given = backend.numpy(rule(None, *arrays, least=1.5))
    np.testing.assert_array_equal(given, grad_out * (np.abs(tin) <= 1.5))
    assert backend.numpy(xg.activation("ReLU", make())(arrays[1])).shape == tin.shape


def test_a_closure_is_the_users_own(captured: Callable[..., xg.Rule]) -> None:
    import torch

    slope = 3.0

    def helper(x: Any) -> Any:
        return torch.clamp(x * max(slope, 1.0), max=1.0)

    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * helper(tin)

    tin, grad_out = inputs(np.float32)
    given = captured(rule)(None, grad_out, tin)
    np.testing.assert_allclose(given, grad_out * np.minimum(tin * 3, 1), rtol=1e-6)


def test_torch_rule_runs_elsewhere_when_torch_came_late(
    captured: Callable[..., xg.Rule], tmp_path: Path
) -> None:
    import subprocess
    import sys

    code = """
import numpy as np
import multigrad as xg
x = np.array([-1.0, 2.0], np.float32)
assert xg.activation("ReLU")(x).tolist() == [0.0, 2.0]  # NumPy's owner is known by now
import torch
rule = xg.register("late", native=False)(lambda ctx, g, x: torch.where(x > 0, g, 0.0))
assert rule(None, x, x).tolist() == [0.0, 2.0]
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
