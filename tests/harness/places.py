"""A function with integer places in it, as its own library runs it and as a graph on NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import multigrad as xg

X = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
Own = Callable[[Callable[..., Any], Any], tuple[Any, Callable[[Any], Any]]]


def assert_captured(function: Callable[..., Any], own: Own) -> None:
    """Compare values and gradients of a function with those of its graph.

    Args:
        own: runs it in its library: (function, NumPy array) -> the result, and what maps a
            cotangent to the gradient, of NumPy arrays.
    """
    expected, pull = own(function, X)
    cotangent = np.random.default_rng(1).normal(size=expected.shape).astype(np.float32)
    result, captured_pull = xg.vjp(xg.function(function, native=False), X)
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    (gradient,) = captured_pull(cotangent)
    np.testing.assert_allclose(gradient, pull(cotangent), rtol=1e-5, atol=1e-6)
