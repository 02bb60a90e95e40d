"""What tests of compiled code and of transforms are given."""

from __future__ import annotations

from typing import Any

import pytest

import multigrad as xg


@pytest.fixture
def times_norm() -> str:
    """Register `g * |x|`, whose second order needs how the norm depends on x."""

    @xg.register("test norm")
    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * xg.xp.norm(tin)

    return "test norm"


@pytest.fixture
def own_rules(times_norm: str) -> None:
    """Register a rule with a norm of the input, and one that is no factor."""

    @xg.register("test mean")
    def mean(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return tin * xg.xp.mean(grad_out, axis=-1, keepdims=True)


@pytest.fixture
def step() -> Any:
    return xg.activation("Heaviside")


@pytest.fixture
def half() -> Any:
    """Register a rule that halves; it is gone after the test."""

    @xg.register("half of it")
    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return 0.5 * grad_out

    return rule
