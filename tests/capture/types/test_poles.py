"""At poles and between them a capture gives what its library gives."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import multigrad as xg

POLES = np.array([-2.5, -2.0, -1.25, -1.0, -0.5, 0.0, 0.3, 1.0, 2.5, np.nan])


def library_of(name: str) -> tuple[Any, Callable[[Any], Any]]:
    """Return a library and what makes its tensors."""
    library = import_module({"jax": "jax.numpy"}.get(name, name))
    make = {"torch": "tensor", "jax": "asarray", "tensorflow": "constant"}[name]
    return library, getattr(library, make)


def polygamma(name: str, order: int) -> Callable[[Any], Any]:
    if name == "jax":
        special = import_module("jax.scipy.special")
        return lambda x: special.polygamma(order, x)
    if name == "torch":
        torch: Any = import_module("torch")
        return lambda x: torch.polygamma(order, x)
    tf: Any = import_module("tensorflow")
    return lambda x: tf.math.polygamma(order, x)


def captured(function: Callable[[Any], Any], name: str) -> Any:
    return xg.function(function, lambda g, x: None, native=False, dialect=name)


NAMES = [pytest.param(n, marks=pytest.mark.needs(n)) for n in ("torch", "jax", "tensorflow")]


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_polygamma_is_that_of_the_library_at_its_poles_and_between_them(
    name: str, order: int
) -> None:
    _, make = library_of(name)
    # Torch's trigamma is finite at its poles, by how pi rounds.
    x = make((POLES if (name, order) != ("torch", 1) else POLES + 0.0625).astype(np.float32))
    function = polygamma(name, order)
    expected = np.asarray(function(x))
    np.testing.assert_allclose(captured(function, name)(x), expected, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_its_derivative_is_that_of_the_next_order(name: str) -> None:
    x = np.array([-2.7, -1.25, -0.4, 0.3, 2.5])
    special = import_module("scipy.special")
    _, make = library_of(name)
    given = make(x.astype(np.float32))
    _, pull = xg.vjp(xg.function(polygamma(name, 2), native=False, dialect=name), given)
    slope = np.asarray(pull(make(np.ones(5, np.float32)))[0])
    np.testing.assert_allclose(slope.reshape(5), special.polygamma(3, x), rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_digamma_is_that_of_the_library_at_zero(name: str) -> None:
    _, make = library_of(name)
    modules = {"jax": "jax.scipy.special", "torch": "torch.special", "tensorflow": "tensorflow"}
    room = import_module(modules[name])
    function = getattr(room, "math", room).digamma
    x = make(POLES.astype(np.float32))
    np.testing.assert_allclose(captured(function, name)(x), np.asarray(function(x)), rtol=1e-5)
