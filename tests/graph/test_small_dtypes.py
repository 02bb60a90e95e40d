"""Integers of few bits and float8 on every backend: what wraps around, what is out of range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import multigrad as xg
from multigrad import xp
from multigrad.errors import TraceError
from multigrad_conformance.differences import kept

Tensor = Any
SMALL = ("int8", "uint8", "int16")
EDGES = np.array(
    [0.7, -0.7, -0.0, 127.6, 128.0, -128.9, -129.0, 255.9, 256.0, 300.0, -300.0, 4e4, -4e4, 3e9,
     np.inf, -np.inf, np.nan], np.float32,
)  # fmt: skip


def run(backend: Any, function: Callable[..., Any], *arrays: Any) -> Any:
    result = xg.function(function, native=False)(*map(backend.array, arrays))
    return backend.numpy(result)


@pytest.mark.parametrize("dtype", SMALL)
def test_a_float_out_of_range_is_the_nearest_integer_and_nan_is_0(backend: Any, dtype: str) -> None:
    whole = run(backend, lambda x: xp.astype(x, getattr(xp, dtype)), EDGES)
    limits = np.iinfo(dtype)
    expected = np.clip(np.trunc(np.nan_to_num(EDGES, nan=0.0)), limits.min, limits.max)
    assert whole.dtype == dtype
    np.testing.assert_array_equal(whole, expected)


WRAPPING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": lambda a, b: a + b + 100,
    "difference": lambda a, b: a - b - 7,
    "product": lambda a, b: a * b * 3,
    "negative": lambda a, b: -a,
    "absolute": lambda a, b: abs(b),
    "square": lambda a, b: a**2 + b**2,
    "quotient": lambda a, b: a // 3 + b // -5 if a.dtype != np.uint8 else a // 3 + b // 5,
    "remainder": lambda a, b: a % 7,
    "shifts": lambda a, b: (a << 3) ^ (b >> 2),
    "bits": lambda a, b: (a & b) | ~a,
    "constant": lambda a, b: a * np.array([3, 5, 7, 9, 11], a.dtype),
    "wider constant": lambda a, b: a * np.array([3, 500, 7, 9, 11]),
    "extremes": lambda a, b: np.max(a, axis=0) - np.min(b, axis=0),
    "chosen": lambda a, b: np.where(a > b, a, b),
    "joined": lambda a, b: np.concatenate([a, b]),
    "stacked": lambda a, b: np.stack([a, b]),
    "moved": lambda a, b: np.flip(a)[:, 1:].T,
    "total": lambda a, b: np.sum(a, axis=0),
    "packed": lambda a, b: np.packbits(a > b, axis=1),
    "unpacked": lambda a, b: np.unpackbits(np.packbits(a > b, axis=0), axis=0, count=3),
}


@pytest.mark.parametrize("dtype", SMALL)
def test_integers_of_few_bits_compute_as_in_numpy(backend: Any, dtype: str) -> None:
    limits, generator = np.iinfo(dtype), np.random.default_rng(0)
    a, b = generator.integers(limits.min, limits.max, (2, 3, 5), dtype, endpoint=True)
    for name, function in WRAPPING.items():
        with np.errstate(all="ignore"):
            expected = function(a, b)
        graph = xg.function(function, native=False, dialect="numpy", prove=False)
        if expected.dtype == np.uint64:
            with pytest.raises(TraceError, match="gives uint64"):
                graph(backend.array(a), backend.array(b))
            continue
        with backend.precision(np.dtype("int64")):
            result = backend.numpy(graph(backend.array(a), backend.array(b)))
        assert result.dtype == expected.dtype, name
        np.testing.assert_array_equal(result, expected, err_msg=name)


def test_integers_of_two_dtypes_meet_in_the_one_that_holds_both(backend: Any) -> None:
    arrays = [np.array([100, -100, 7], np.int8), np.array([250, 3, 200], np.uint8)]
    for other in ("int8", "uint8", "int16", "int32"):
        third = np.array([3, 4, 5], other)
        for first in arrays:
            result = run(backend, lambda a, b: a * b, first, third)
            assert result.dtype == (first * third).dtype
            np.testing.assert_array_equal(result, first * third)


def test_beside_floats_integers_of_few_bits_are_numbers(backend: Any) -> None:
    q, x = np.array([100, -128, 7], np.int8), np.array([0.5, 2.0, -3.0], np.float32)
    np.testing.assert_array_equal(run(backend, lambda q, x: (q + x) * q, q, x), (q + x) * q)
    halves = run(backend, lambda q: (q - 3) * 0.5, q)
    np.testing.assert_array_equal(halves, np.array([48.5, 62.5, 2.0], np.float32))


def test_a_number_that_does_not_fit_is_refused_where_libraries_differ() -> None:
    q = np.array([100, 3], np.uint8)
    for function in (lambda q: q > -1, lambda q: np.maximum(q, 300), lambda q: q // 300):
        with pytest.raises(TraceError, match="beside uint8: cast to int32 first"):
            xg.function(function, native=False)(q)


def test_a_residual_may_have_few_bits(backend: Any) -> None:
    @xg.custom_gradient
    def absolute(x: Tensor) -> Any:
        sign = xp.astype(xp.where(x >= 0, 1.0, -1.0), xp.int8)
        return xp.abs(x), lambda ct: ct * xp.astype(sign, ct.dtype)

    x = np.array([0.0, -2.0, 3.0], np.float32)
    pull = xg.vjp(absolute, backend.array(x))[1]
    np.testing.assert_array_equal(backend.numpy(pull(backend.array(x))[0]), [0.0, 2.0, 3.0])


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("source", ["float16", "bfloat16", "float32", "float64"])
def test_float8_rounds_as_in_ml_dtypes(backend: Any, dtype: str, source: str) -> None:
    import ml_dtypes

    words = np.arange(2**16, dtype=np.uint32)[::7]
    x = np.concatenate([words << 16, words << 16 | 0x8000, words << 16 | 0x8001]).view(np.float32)
    x = x.astype(getattr(ml_dtypes, source, source))
    with np.errstate(all="ignore"):
        expected = x.astype(np.float32).astype(getattr(ml_dtypes, dtype)).astype(x.dtype)

    def rounded(x: Tensor) -> Tensor:
        return xp.stop_gradient(xp.astype(xp.astype(x, getattr(xp, dtype)), x.dtype))

    with backend.precision(x.dtype):
        result = backend.numpy(xg.function(rounded, native=False)(backend.array(x)))
    assert result.dtype == x.dtype
    np.testing.assert_array_equal(result.astype(np.float64), expected.astype(np.float64))


def test_what_float8_cannot_do_is_refused() -> None:
    x = np.ones(3, np.float32)
    refused: dict[str, Callable[[Tensor], Tensor]] = {
        "no op computes in float8_e5m2": lambda x: xp.astype(x, xp.float8_e5m2) * 2,
        "a derivative through float8_e5m2": lambda x: xp.astype(
            xp.astype(x, xp.float8_e5m2), xp.float32
        ),
        "returns float8_e5m2": lambda x: xp.astype(x, xp.float8_e5m2),
    }
    for message, function in refused.items():
        with pytest.raises(TraceError, match=message):
            xg.function(function, native=False)(x)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("number", [0.1, 0.3, 0.5, 19.9, 20.0])
@pytest.mark.parametrize("name", ["hardshrink", "softshrink", "softplus"])
def test_a_number_of_torchs_cuts_16_bits_where_torch_cuts_them(name: str, number: float) -> None:
    import torch

    function = getattr(torch.nn.functional, name)
    given = (1, number) if name == "softplus" else (number,)
    captured = xg.function(lambda x: function(x, *given), None, native=False)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        at = torch.tensor([number, -number], dtype=dtype)
        ends = torch.tensor([-torch.inf, torch.inf], dtype=dtype)[:, None]
        x = torch.cat([at, torch.nextafter(at, ends).ravel()])
        torch.testing.assert_close(captured(x), function(x, *given), rtol=0, atol=0)


CUTS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "threshold": lambda x, number: xp.threshold(x, number, 20.0),
    "hard_shrink": lambda x, number: xp.hard_shrink(x, lambd=number),
    "soft_shrink": lambda x, number: xp.soft_shrink(x, lambd=number),
}


@pytest.mark.parametrize("name", CUTS)
def test_a_number_is_compared_before_it_is_rounded_to_16_bits(backend: Any, name: str) -> None:
    """Each of these numbers is above, or below, what 16 bits have in its place."""
    for dtype in (ml_dtypes.bfloat16, np.float16):
        for number in (0.1, 0.3, 0.7):
            x = np.array([number, -number, 1.0], np.float64).astype(dtype)
            wide = x.astype(np.float32)
            inside = wide <= np.float32(number)
            kept = {"threshold": 20.0}.get(name, 0.0)
            if name != "threshold":
                inside &= wide >= -np.float32(number)
            moved = np.copysign(np.float32(number), wide) if name == "soft_shrink" else 0.0
            expected = np.where(inside, np.float32(kept), wide - moved).astype(dtype)
            found = run(backend, lambda x, n=number: CUTS[name](x, n), x)
            np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))


# Limits of equal zeros: their sign is declared to be the framework's own, and is all that differs.


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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: xp.where(x > 0.5, 0, x),
        lambda x: xp.where(x < 0.5, x, 0.0),
        lambda x: xp.standardize(xp.reshape(x, (1, -1))),
    ],
)
def test_16_bits_stay_beside_numbers(backend: Any, function: Any, dtype: str) -> None:
    for shape in ((), (3,)):
        x = backend.array(np.full(shape, 0.25).astype(getattr(ml_dtypes, dtype, dtype)))
        for call in (function, xg.function(function)):
            y, pull = xg.vjp(call, x)
            assert [backend.numpy(each).dtype.name for each in (y, pull(y)[0])] == [dtype, dtype]
        assert backend.numpy(function(x)).dtype.name == dtype
