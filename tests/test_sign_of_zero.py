"""Limits of equal zeros: their sign is declared to be the framework's own, and is all that
differs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import multigrad as xg
from multigrad import xp
from multigrad.testing.differences import kept

ZEROS = np.array([-0.0, 0.0] * 9, np.float32)


def limits(x: Any) -> Any:
    return xp.relu(x), xp.relu6(x), xp.maximum(x, 0.0), xp.minimum(x, 0.0), xp.clip(x, 0.0, 1.0)


def test_a_limit_of_zeros_is_zero_of_a_declared_sign(backend: Any) -> None:
    results = xg.function(limits, native=False)(backend.array(ZEROS))
    assert all((backend.numpy(each) == 0).all() for each in results)
    (row,) = kept(backend.name, "zero")
    assert {"relu", "relu6", "maximum", "minimum", "clip"} == set(row.what.split(", "))


def test_a_leaky_relu_keeps_the_sign_of_zero(backend: Any) -> None:
    leaky = xg.function(xp.leaky_relu, native=False)(backend.array(ZEROS))
    np.testing.assert_array_equal(np.signbit(backend.numpy(leaky)), np.signbit(ZEROS))


def test_minus_zero_is_a_number_of_its_own(backend: Any) -> None:
    """TensorFlow takes an equal number that it has converted before: 0.0 for -0.0."""
    zeros = backend.array(np.zeros(2, np.float32))
    literal = xg.function(lambda x: xp.atan2(x, -0.0))
    number = xg.function(lambda x, y: xp.atan2(x, y))
    for minus, plus in (
        (literal(zeros), xg.function(lambda x: xp.atan2(x, 0.0))(zeros)),
        (number(zeros, -0.0), number(zeros, 0.0)),
        (xp.atan2(zeros, -0.0), xp.atan2(zeros, 0.0)),
    ):
        np.testing.assert_array_equal(backend.numpy(plus), [0.0, 0.0])
        np.testing.assert_array_equal(backend.numpy(minus), np.float32([np.pi, np.pi]))
