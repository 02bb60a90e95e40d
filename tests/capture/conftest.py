"""What tests of captures register for one test, and the libraries that they are written in."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable
from typing import Any

import pytest

import multigrad as xg


def imported(name: str, module: str) -> Any:
    """Return a fixture: a library, which is imported where a test asks for it."""
    return pytest.fixture(name=name)(lambda: importlib.import_module(module))


torch, jax, jnp = imported("torch", "torch"), imported("jax", "jax"), imported("jnp", "jax.numpy")
tf, F = imported("tf", "tensorflow"), imported("F", "torch.nn.functional")
keras = imported("keras", "keras")


@pytest.fixture
def registered() -> Callable[..., xg.Rule]:
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

    return register
