"""Elementwise ops beyond arithmetic, on every backend, against scipy and NumPy in a wider
precision; see `test_ops.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..differences import allowed
from ..expected.slopes import PROMISED, SCALES
from ..oracles import BFLOAT16, DTYPES, FLOAT16, FLOAT32, FLOAT64, edge_values, finfo, spread
from ..programs.kernels.elementwise import celu, polygamma
from .test_ops import Wide, assert_close, call, native_dtype, numbers, widen

xp = xg.xp
INT32 = np.dtype(np.int32)


# Activations with numbers of their own; the vectors have others at their defaults.
SHAPED: tuple[tuple[str, dict[str, float], Callable[[Wide], Wide]], ...] = (
    ("celu", {"alpha": 1.5}, lambda x: celu(x, 1.5)),
    ("squareplus", {"b": 0.0}, lambda x: np.maximum(x, 0)),
    ("soft_shrink", {"lambd": 2.0}, lambda x: np.where(np.abs(x) <= 2, 0, x - np.copysign(2, x))),
    ("hard_shrink", {"lambd": 2.0}, lambda x: np.where(np.abs(x) <= 2, 0, x)),
    ("threshold", {"threshold": 0.5, "default": 20.0}, lambda x: np.where(x <= 0.5, 20, x)),
    ("hard_tanh", {"min": -2.0, "max": 0.5}, lambda x: np.clip(x, -2, 0.5)),
)
BINARY: dict[str, Callable[[Wide, Wide], Wide]] = {
    **{
        name: getattr(np, name)
        for name in (
            "add", "subtract", "multiply", "divide", "maximum", "minimum", "floor_divide",
            "remainder", "fmod", "fmax", "fmin", "copysign", "hypot", "logaddexp", "less",
            "less_equal", "greater", "greater_equal", "equal", "not_equal",
        )
    },
    "pow": np.power,
    "atan2": np.arctan2,
    "xlogy": lambda a, b: np.where((a == 0) & ~np.isnan(b), 0, a * np.log(b)),
    "xlog1py": lambda a, b: np.where((a == 0) & ~np.isnan(b), 0, a * np.log1p(b)),
}  # fmt: skip
INTEGERS: dict[str, Callable[..., Any]] = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "bitwise_left_shift": np.left_shift,
    "bitwise_right_shift": np.right_shift,
}


def operands(dtype: Any) -> Any:
    """Edge values, random numbers, and some between -1 and 1, where many of these functions
    live.
    """
    narrow = np.random.default_rng(1).uniform(-1, 1, 60).astype(dtype)
    return np.concatenate([numbers(dtype), narrow, np.arange(-30, 31).astype(dtype)])


def assert_function(
    backend: Any, name: str, x: Any, function: Callable[[Wide], Wide], **attrs: Any
) -> None:
    with np.errstate(all="ignore"):
        expected = function(widen(x))
        scale = SCALES[name](widen(x), expected) if name in SCALES else None
    what = f"{name}, {attrs}, {x.dtype}"
    assert_close(call(backend, name, x, **attrs), expected, x.dtype, what, scale)


def test_activations_with_numbers_of_their_own(backend: Any) -> None:
    for (name, attrs, function), dtype in itertools.product(SHAPED, DTYPES):
        assert_function(backend, name, operands(dtype), function, **attrs)


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_operands(backend: Any, name: str) -> None:
    for dtype in DTYPES:
        # TensorFlow's pow is off by the more, the larger an exponent is.
        more = spread(0 if name == "pow" else 12, dtype)
        values = np.concatenate([edge_values(dtype), more])
        a, b = (grid.ravel() for grid in np.meshgrid(values, values))
        with np.errstate(all="ignore"):
            # Quotients are rounded down: in the dtype itself, where that is NumPy's.
            exact = dtype == FLOAT64 and name == "floor_divide"
            expected = BINARY[name](*((a, b) if exact else (widen(a), widen(b))))
            scale = SCALES[name](widen(a), expected) if name in SCALES else None
        actual, ulps = call(backend, name, a, b), allowed(backend.name, name, "value", dtype)
        expected = expected if expected.dtype == bool else widen(expected)
        assert_close(actual, expected, dtype, f"{name}, {dtype}", scale, ulps)


def test_a_number_is_taken_for_either_operand(backend: Any) -> None:
    for name, dtype in itertools.product(BINARY, DTYPES):
        x = spread(20, dtype)
        for number in (2.0, -0.75):
            with backend.precision(dtype), np.errstate(all="ignore"):
                function, tensor = getattr(xp, name), backend.array(x)
                right = backend.numpy(function(tensor, number))
                left = backend.numpy(function(number, tensor))
            with np.errstate(all="ignore"):
                wide = np.full_like(widen(x), number)
                for actual, pair in ((right, (widen(x), wide)), (left, (wide, widen(x)))):
                    expected = BINARY[name](*pair)
                    assert_close(actual, expected, dtype, f"{name}, {number}", np.abs(expected) + 1)


def test_quotients_round_down_where_the_division_rounds_up(backend: Any) -> None:
    # 1 / 0.1 rounds to 10, and 0.1 is above a tenth
    a, b = np.array([1.0, -1.0, 6.0]), np.array([0.1, 0.1, 0.1])
    np.testing.assert_array_equal(call(backend, "floor_divide", a, b), [9.0, -10.0, 59.0])


def test_lerp_takes_a_number_as_its_weight(backend: Any) -> None:
    for dtype in DTYPES:
        a, b = (spread(20, dtype, seed) for seed in range(2))
        halfway, scale = (
            call(backend, "lerp", a, b, weight=0.5),
            np.abs(widen(a)) + np.abs(widen(b)),
        )
        assert_close(halfway, (widen(a) + widen(b)) / 2, dtype, "lerp", scale)


def test_polygamma_is_a_derivative_of_lgamma(backend: Any) -> None:
    for dtype in DTYPES:
        x = operands(dtype)
        x = x[~(np.abs(x.astype(np.float64)) > 1e10)]
        with backend.precision(dtype), np.errstate(all="ignore"):
            tensor = backend.array(x)
            second = backend.numpy(xp.polygamma(2, tensor))
            first, zeroth = (backend.numpy(xp.polygamma(n, tensor)) for n in (1, 0))
        with np.errstate(all="ignore"):
            wide = x.astype(np.float64)
            assert_close(first, polygamma(wide, 1), dtype, "polygamma(1)")
            assert_close(second, polygamma(wide, 2), dtype, "polygamma(2)")
        assert_close(zeroth, widen(call(backend, "digamma", x)), dtype, "polygamma(0)", ulps=0)


@pytest.mark.parametrize("name", ["digamma", "polygamma"])
def test_at_poles_a_framework_derives_what_the_gradient_promises(backend: Any, name: str) -> None:
    points, promised = np.array(PROMISED[name], np.float32).T
    op = xp.digamma if name == "digamma" else lambda x: xp.polygamma(1, x)
    # no Function, so that its framework differentiates it
    _, pull = xg.vjp(lambda x: op(x), backend.array(points))
    (slopes,) = pull(backend.array(np.ones_like(points)))
    np.testing.assert_array_equal(backend.numpy(slopes), promised)


def test_nan_to_num_replaces_what_is_not_finite(backend: Any) -> None:
    for dtype in DTYPES:
        x, top = numbers(dtype), float(finfo(dtype).max)
        for nan, posinf, neginf in ((0.0, None, None), (7.0, 1.0, -2.0), (-1.0, None, 0.5)):
            above, below = (top if posinf is None else posinf, -top if neginf is None else neginf)
            expected = np.where(np.isnan(x), nan, np.clip(x, -top, top).astype(np.float64))
            expected = np.where(x == np.inf, above, np.where(x == -np.inf, below, expected))
            actual = call(backend, "nan_to_num", x, nan=nan, posinf=posinf, neginf=neginf)
            assert_close(actual, expected, dtype, f"nan_to_num {nan}", ulps=0)


# --- integers ------------------------------------------------------------------------------------
WHOLE = np.array([0, 1, -1, 2, -2, 7, 100, -100, 2**30, 2**31 - 1, -(2**31)], np.int32)


def test_casts_to_int32_truncate_and_saturate_and_nan_gives_zero(backend: Any) -> None:
    for dtype in DTYPES:
        x = np.concatenate([numbers(dtype), np.array([2.0**31, 2.0**31 - 200, -2e9, 3e9, -3e9])])
        with np.errstate(all="ignore"):
            x = x.astype(dtype)
            wide = np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0))
            expected = np.clip(wide, -(2.0**31), 2.0**31 - 1).astype(np.int64)
        with backend.precision(FLOAT64):
            tensor = backend.array(x)
            whole = backend.numpy(xp.astype(tensor, native_dtype(backend, "int32")))
        assert whole.dtype == INT32
        np.testing.assert_array_equal(whole, expected, err_msg=str(dtype))


@pytest.mark.parametrize("name", INTEGERS)
def test_bits_of_integers(backend: Any, name: str) -> None:
    a, b = (grid.ravel() for grid in np.meshgrid(WHOLE, WHOLE))
    if "shift" in name:
        b = np.resize(np.array([0, 1, 2, 5, 31, 32, 40], np.int32), a.shape)
    actual = call(backend, name, a, b)
    assert actual.dtype == INT32
    np.testing.assert_array_equal(actual, INTEGERS[name](a, b))
    np.testing.assert_array_equal(call(backend, "bitwise_invert", a), ~a)


def test_bitwise_functions_of_masks_are_logic(backend: Any) -> None:
    a, b = np.array([True, True, False, False]), np.array([True, False, True, False])
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        np.testing.assert_array_equal(call(backend, name, a, b), INTEGERS[name](a, b))
    np.testing.assert_array_equal(call(backend, "bitwise_invert", a), ~a)


@xg.register("low_bits_of_the_input", native=False)
def low_bits(ctx: Any, grad_out: Any, tin: Any) -> Any:
    code = xp.astype(tin * 8, "int32")
    masked = ((code & 0b1101) | (code << 2)) ^ 5
    shifted = (~masked >> 1) - 3 * code
    return grad_out * xp.where(shifted > code, shifted, code) + xp.abs(code) * 0.5 + code / 4


def test_integers_in_a_rule_become_floats_where_they_meet_them(backend: Any) -> None:
    for dtype in (FLOAT32, FLOAT64, FLOAT16):
        x, g = spread((3, 4), dtype), spread((3, 4), dtype, seed=1)
        code = np.trunc(x.astype(np.float64) * 8).astype(np.int32)
        shifted = (~(((code & 13) | (code << 2)) ^ 5) >> 1) - 3 * code
        chosen = np.where(shifted > code, shifted, code).astype(dtype)
        expected = widen(g) * widen(chosen) + np.abs(code) * 0.5 + code / 4
        with backend.precision(dtype):
            actual = backend.numpy(low_bits(None, backend.array(g), backend.array(x)))
        scale = np.abs(widen(g) * widen(chosen)) + np.abs(code)
        assert_close(actual, expected, dtype, "low_bits", scale)


def test_integers_of_a_rule_under_an_activation_stay_integers(backend: Any) -> None:
    x, g = spread((3, 4), FLOAT32), spread((3, 4), FLOAT32, seed=1)
    bare = backend.numpy(low_bits(None, backend.array(g), backend.array(x)))
    act = xg.activation("Linear", rule="low_bits_of_the_input")
    _, pullback = xg.vjp(act, backend.array(x))
    np.testing.assert_array_equal(backend.numpy(pullback(backend.array(g))[0]), bare)


@xg.register("wraps_around", native=False)
def wraps(ctx: Any, grad_out: Any, tin: Any, width: float = 1.5) -> Any:
    return grad_out * (tin % width) + 7.0 % tin + tin // width + 7.0 // tin + width % 0.4


def test_remainders_and_floors_are_python_operators(backend: Any) -> None:
    for dtype in (FLOAT32, FLOAT64):
        x, g = np.abs(spread((3, 4), dtype)) + dtype.type(0.3), spread((3, 4), dtype, seed=1)
        for width in (1.5, 0.75):
            with backend.precision(dtype):
                tensors = backend.array(g), backend.array(x)
                actual = backend.numpy(wraps(None, *tensors, width=width))
            wide, first = x.astype(np.float64), g.astype(np.float64)
            floors = np.floor(wide / width) + np.floor(7 / wide)
            remainder = 7 - wide * np.floor(7 / wide)
            expected = first * (wide - width * np.floor(wide / width)) + remainder + floors
            expected += width - 0.4 * np.floor(width / 0.4)
            assert_close(actual, expected, dtype, f"wraps {width}", np.full(x.shape, 25.0))


def test_half_a_length_is_a_length() -> None:
    @xg.register("halves_a_length", native=False)
    def halves(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * xp.full_like(tin, xp.dim(tin, 0) // 2 + xp.dim(tin, 0) % 2)

    x = np.ones((5, 2), np.float32)
    np.testing.assert_array_equal(halves(None, x, x), 3 * x)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
def test_sixteen_bit_functions_round_once(backend: Any, dtype: Any) -> None:
    x = spread(500, dtype)
    for name in ("mish", "erfinv", "ndtr", "cosh", "exp2", "cbrt", "celu", "hard_silu", "digamma"):
        with np.errstate(all="ignore"):
            exact = getattr(xp, name)(x.astype(np.float64))
            actual, rounded = widen(call(backend, name, x)), np.abs(exact).astype(dtype)
            above = widen(np.nextafter(rounded, np.array(np.inf, dtype)))
            gap = above - widen(rounded)
            wrong = np.isfinite(exact) & (np.abs(actual - exact) > 0.51 * gap)
        assert not wrong.any(), (name, x[wrong][:3])
