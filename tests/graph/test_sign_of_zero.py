"""Limits of equal zeros: their sign is declared to be the framework's own, and is all that
differs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import multigrad as xg
from multigrad import xp
from multigrad_conformance.differences import kept

ZEROS = np.array([-0.0, 0.0] * 9, np.float32)
VALUES = np.float32([-0.0, 0.0, -1, 1, -2, 2, -0.25, 0.25, 3, -3, -np.inf, np.inf])
PAIRS = tuple(each.ravel() for each in np.meshgrid(VALUES, VALUES))
ONE = """
    abs asin asinh atan atanh cbrt ceil celu cummax cummin cumsum elu erf erfinv expm1 floor gelu
    i1e log1p log_sigmoid logcumsumexp mish negative relu relu6 round selu sign silu sin sinh
    soft_shrink soft_sign sqrt square tan tanh tanh_shrink trunc
"""
TWO = """
    atan2 copysign divide floor_divide fmax fmin fmod hypot maximum minimum multiply remainder
    xlog1py xlogy
"""


def limits(x: Any) -> Any:
    return xp.relu(x), xp.relu6(x), xp.maximum(x, 0.0), xp.minimum(x, 0.0), xp.clip(x, 0.0, 1.0)


def test_a_limit_of_zeros_is_zero_of_a_declared_sign(backend: Any) -> None:
    results = xg.function(limits, native=False)(backend.array(ZEROS))
    assert all((backend.numpy(each) == 0).all() for each in results)
    assert {"relu", "relu6", "maximum", "minimum", "clip"} <= declared(backend.name, False)


def declared(name: str, *settled: bool) -> set[str]:
    """Give the ops whose zeros a backend declares."""
    rows = [row for row in kept(name, "zero") if row.settled in settled]
    return {op for row in rows for op in row.what.split(", ")}


def differ_in_zeros(name: str, backend: Any) -> bool:
    """Tell whether an op gives zeros of another sign on a backend than in NumPy."""
    function, given = getattr(xp, name), PAIRS if name in TWO.split() else (VALUES,)
    captured = xg.function(lambda *given: function(*given), native=False)
    with np.errstate(all="ignore"):
        expected = captured(*given)
    found = backend.numpy(captured(*map(backend.array, given)))
    is_other = np.signbit(found) != np.signbit(expected)
    return bool(((found == 0) & (expected == 0) & is_other).any())


def test_zeros_of_another_sign_than_numpys_are_declared_and_no_others_are(backend: Any) -> None:
    found = {name for name in (ONE + TWO).split() if differ_in_zeros(name, backend)}
    assert found <= declared(backend.name, True, False) | declared("numpy", True, False)
    assert backend.name == "numpy" or declared(backend.name, True) <= found


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
