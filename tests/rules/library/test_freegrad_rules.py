"""FreeGrad's eleven rule functions, untouched, as rules of this library: on every backend,
FreeGrad's own numbers.

So are rules that a FreeGrad user has in a file of their own, with `freegrad` replaced by
`multigrad`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg

pytestmark = pytest.mark.needs("torch", "freegrad", "jax")

KEY = 7
RULES = {
    "d(ReLU)": {},
    "d(Linear)": {},
    "rectangular": {"a": -1.0, "b": 0.75},
    "triangular": {"width": 1.5},
    "scale": {"s": -0.25},
    "clip_norm": {"max_norm": 0.5},
    "noise": {"sigma": 0.3},
    "centralize": {"dim": 0},
    "full_jam": {},
    "positive_jam": {},
    "rectangular_jam": {"a": -1.0, "b": 1.0},
}
NEEDS_TIN = ("rectangular", "triangular")  # FreeGrad's own functions fail without it
USER_FILE = """
import multigrad as xg
import torch


@xg.register("noisy_threshold", native=False)
def noisy_threshold(ctx, grad_out, tin, t: float = 0.0, sigma: float = 0.1):
    # A parameter hook has no tin
    if tin is None:
        mask = 1.0
    else:
        mask = (tin >= t).to(grad_out.dtype)
    noise = sigma * torch.randn_like(grad_out)
    return grad_out * mask + noise
"""


@pytest.fixture
def user_rule(tmp_path: Path) -> Iterator[xg.Rule]:
    """A rule from a file of the user's own."""
    path = tmp_path / "my_rules.py"
    path.write_text(USER_FILE)
    spec = importlib.util.spec_from_file_location("my_rules", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["my_rules"] = module
    spec.loader.exec_module(module)
    yield module.noisy_threshold
    del sys.modules["my_rules"]


def freegrad_function(name: str) -> Callable[..., Any]:
    import freegrad

    importlib.import_module("freegrad.transforms")
    return freegrad.get(name)


@cache
def draws(shape: tuple[int, ...], kind: str) -> Any:
    """What the first draw of the first application under KEY is, by jax's own generator."""
    import jax

    key = jax.random.fold_in(jax.random.key(KEY), 0)
    return np.array(getattr(jax.random, kind)(key, shape, np.float32))


def instead_of(numbers: Any, x: Any) -> Any:
    return numbers


def expected(
    monkeypatch: pytest.MonkeyPatch,
    function: Callable[..., Any],
    grad_out: Any,
    tin: Any,
    params: dict[str, Any],
) -> Any:
    """Give what FreeGrad's function returns in torch, its draws being jax's."""
    import torch

    for name, kind in (("rand_like", "uniform"), ("randn_like", "normal")):
        numbers = torch.from_numpy(draws(grad_out.shape, kind))
        monkeypatch.setattr(torch, name, partial(instead_of, numbers))
    try:
        x = None if tin is None else torch.from_numpy(tin)
        return function(None, torch.from_numpy(grad_out), x, **params).numpy()
    finally:
        monkeypatch.undo()


def inputs() -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    tin = random.normal(size=(6, 5)).astype(np.float32)
    tin[0] = [-1.0, 0.75, 0.0, -0.0, 1.5]  # on the thresholds
    return tin, random.normal(size=(6, 5)).astype(np.float32)


@pytest.fixture
def freegrads(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Give a function of FreeGrad as a rule, what it is applied to and what it gives in torch."""

    def prepare(name: str, has_tin: bool = True) -> tuple[xg.Rule, Any, Any, Any]:
        function = freegrad_function(name)
        rule = xg.register(f"freegrad {name}", native=False)(function)
        tin, grad_out = inputs()
        tin = tin if has_tin else None
        return rule, tin, grad_out, expected(monkeypatch, function, grad_out, tin, RULES[name])

    return prepare


@pytest.mark.parametrize(
    ("name", "has_tin"),
    [(name, True) for name in RULES] + [(name, False) for name in RULES if name not in NEEDS_TIN],
)
def test_freegrads_function_is_captured_and_gives_its_own_numbers(
    name: str, has_tin: bool, backend: Any, freegrads: Callable[..., Any]
) -> None:
    rule, tin, grad_out, wanted = freegrads(name, has_tin)
    x = backend.array(tin) if has_tin else None
    given = backend.numpy(rule(None, backend.array(grad_out), x, key=KEY, **RULES[name]))
    assert given.dtype == np.float32
    np.testing.assert_allclose(given, wanted, rtol=1e-6, atol=5e-7)


@pytest.mark.backends("torch", "jax", "tensorflow")
@pytest.mark.parametrize("name", RULES)
def test_freegrads_function_acts_under_an_activation(
    name: str, backend: Any, freegrads: Callable[..., Any]
) -> None:
    rule, tin, grad_out, wanted = freegrads(name)
    with xg.use(rule, RULES[name], scope="activations", key=KEY):
        y, grad_in = backend.vjp(xg.activation("Heaviside"), tin, grad_out)
    np.testing.assert_array_equal(y, (tin > 0).astype(np.float32))
    np.testing.assert_allclose(grad_in, wanted, rtol=1e-6, atol=5e-7)


@pytest.mark.parametrize("has_tin", [True, False])
def test_rule_in_a_users_file_is_captured_as_it_stands(
    has_tin: bool, user_rule: xg.Rule, backend: Any
) -> None:
    tin, grad_out = inputs()
    params = {"t": 0.5, "sigma": 0.05}
    wanted = grad_out * ((tin >= 0.5) if has_tin else 1.0)
    wanted = wanted + np.float32(0.05) * draws(grad_out.shape, "normal")
    x = backend.array(tin) if has_tin else None
    given = backend.numpy(user_rule(None, backend.array(grad_out), x, key=KEY, **params))
    np.testing.assert_allclose(given, wanted, rtol=1e-6, atol=5e-7)


def test_all_rules_of_freegrad_are_here_under_their_names() -> None:
    import freegrad.registry

    importlib.import_module("freegrad.transforms")
    assert set(freegrad.registry._RULES) == set(RULES) <= set(xg.rules())
