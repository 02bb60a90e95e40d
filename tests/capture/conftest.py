"""What tests of captures register, for one test."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import multigrad as xg


@pytest.fixture
def registered() -> Iterator[Callable[..., xg.Rule]]:
    """Register a new copy of a rule, which may run as it is: one function warns once."""

    def register(function: Any, **options: Any) -> xg.Rule:
        if isinstance(function, types.FunctionType):
            copy = types.FunctionType(
                function.__code__,
                function.__globals__,
                function.__name__,
                function.__defaults__,
                function.__closure__,
            )
            copy.__kwdefaults__ = function.__kwdefaults__
            function = copy
        return xg.register("under test", override=True, **options)(function)

    yield register
    if "under test" in xg.rules():
        xg.unregister("under test")
