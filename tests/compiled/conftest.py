"""What tests of compiled code and of transforms are given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import multigrad as xg


@pytest.fixture
def times_norm() -> Iterator[str]:
    """Register `g * |x|`, whose second order needs how the norm depends on x."""

    @xg.register("test norm")
    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * xg.xp.norm(tin)

    yield "test norm"
    xg.unregister("test norm")


@pytest.fixture
def own_rules(times_norm: str) -> Iterator[None]:
    """Register a rule with a norm of the input, and one that is no factor."""

    @xg.register("test mean")
    def mean(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return tin * xg.xp.mean(grad_out, axis=-1, keepdims=True)

    yield
    xg.unregister("test mean")


@pytest.fixture
def step() -> Any:
    return xg.activation("Heaviside")


@pytest.fixture
def half() -> Iterator[Any]:
    """Register a rule that halves; it is gone after the test."""

    @xg.register("half of it")
    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return 0.5 * grad_out

    yield rule
    if "half of it" in xg.rules():
        xg.unregister("half of it")
