"""A quantizer as a graph on a backend, beside what it is in its own library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import multigrad as xg

X = np.random.default_rng(3).normal(scale=1.5, size=(4, 6)).astype(np.float32)
X[0, :4] = 0.0, -0.0, 0.5, -0.5
COTANGENT = np.random.default_rng(4).normal(size=X.shape).astype(np.float32)


def assert_equals(function: Callable[..., Any], expected: Any, gradient: Any, backend: Any) -> None:
    """Compare a function of X, and its gradient for the cotangent, with its own library's."""
    y, pull = xg.vjp(function, backend.array(X))
    np.testing.assert_allclose(backend.numpy(y), expected, rtol=1e-6, atol=1e-6)
    (own,) = pull(backend.array(COTANGENT))
    np.testing.assert_allclose(backend.numpy(own), gradient, rtol=1e-6, atol=1e-6)
