"""A rule whose effect nothing else has, for tests of `xg.override`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import multigrad as xg


def scaled_by(factor: float) -> Callable[..., Any]:
    """Return a rule that gives the gradient of relu times a number."""

    def scaled(ctx, grad_out, tin):
        return xg.xp.where(tin > 0, factor * grad_out, 0)

    return scaled


@pytest.fixture(autouse=True)
def tenfold() -> None:
    """Register a rule that nothing else would give: ten times the gradient of relu."""
    xg.register("tenfold")(scaled_by(10.0))
