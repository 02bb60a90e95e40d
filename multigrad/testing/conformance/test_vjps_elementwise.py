"""The VJPs of elementwise ops beyond arithmetic; see `test_vjps.py` for how they are tested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

import multigrad as xg
from multigrad.ir.derivatives import pullback
from multigrad.ir.passes import simplify
from multigrad.lowering.backend import load_backend
from multigrad.lowering.lower import emit_rule

from ..oracles import FLOAT64
from .test_vjps import (
    OTHER,
    X,
    check_slopes,
    evaluate,
    gradient_of_the_sum,
    other,
    record_function,
)

xp = xg.xp
Tensor = Any


def unit(x: Tensor) -> Tensor:
    """Numbers between -1 and 1, none near them."""
    return xp.sin(x) * 0.7


def bits(x: Tensor) -> Tensor:
    """The lowest bits of 8 x: 8 x is not near an integer where it counts."""
    return xp.astype(8.3 * x, "int32")


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "floor_divide": lambda x: x * xp.floor_divide(other(x), x),
    "remainder": lambda x: xp.remainder(other(x), 0.7 * x),
    "fmod": lambda x: xp.fmod(other(x), 0.7 * x),
    "fmax": lambda x: xp.fmax(x, other(x)),
    "fmin": lambda x: xp.fmin(other(x), x),
    "copysign": lambda x: xp.copysign(other(x), x),
    "signbit": lambda x: x * xp.signbit(x),
    "hypot": lambda x: xp.hypot(x, other(x)),
    "atan2": lambda x: xp.atan2(x, other(x)),
    "lerp": lambda x: xp.lerp(x, other(x), xp.sin(x)),
    "frac": xp.frac,
    "cbrt": xp.cbrt,
    "exp2": xp.exp2,
    "log2": lambda x: xp.log2(abs(x)),
    "log10": lambda x: xp.log10(abs(x)),
    "logaddexp": lambda x: xp.logaddexp(x, other(x)),
    "xlogy": lambda x: xp.xlogy(x, other(x) ** 2),
    "xlog1py": lambda x: xp.xlog1py(x, other(x) ** 2),
    "tan": lambda x: xp.tan(unit(x)),
    "asin": lambda x: xp.asin(unit(x)),
    "acos": lambda x: xp.acos(unit(x)),
    "sinc": xp.sinc,
    "deg2rad": xp.deg2rad,
    "rad2deg": xp.rad2deg,
    "sinh": xp.sinh,
    "cosh": xp.cosh,
    "asinh": xp.asinh,
    "acosh": lambda x: xp.acosh(1.5 + abs(x)),
    "atanh": lambda x: xp.atanh(unit(x)),
    "erfc": xp.erfc,
    "erfinv": lambda x: xp.erfinv(unit(x)),
    "ndtr": xp.ndtr,
    "ndtri": lambda x: xp.ndtri(0.5 + 0.4 * xp.sin(x)),
    "log_ndtr": lambda x: xp.log_ndtr(4.0 * x),
    "lgamma": xp.lgamma,
    "digamma": xp.digamma,
    "polygamma": lambda x: xp.polygamma(1, abs(x)),
    "polygamma of order 3": lambda x: xp.polygamma(3, abs(x) + 0.5),
    "nan_to_num": lambda x: xp.nan_to_num(x * x),
    "bitwise_and": lambda x: x * (bits(x) & 6),
    "bitwise_or": lambda x: x * (bits(x) | 1),
    "bitwise_xor": lambda x: x * (bits(x) ^ 3),
    "bitwise_invert": lambda x: x * ~bits(x),
    "bitwise_left_shift": lambda x: x * (bits(x) << 2),
    "bitwise_right_shift": lambda x: x * (bits(x) >> 1),
    "log_sigmoid": xp.log_sigmoid,
    "logit": lambda x: xp.logit(0.5 + 0.4 * xp.sin(x)),
    "celu": lambda x: xp.celu(x, alpha=1.5),
    "selu": xp.selu,
    "mish": xp.mish,
    "squareplus": xp.squareplus,
    "squareplus of another b": lambda x: xp.squareplus(x, b=0.25),
    "sparse_plus": xp.sparse_plus,
    "sparse_sigmoid": lambda x: x * xp.sparse_sigmoid(x),
    "soft_sign": xp.soft_sign,
    "tanh_shrink": xp.tanh_shrink,
    "soft_shrink": lambda x: x * xp.soft_shrink(x),
    "hard_shrink": lambda x: x * xp.hard_shrink(x, lambd=0.5),
    "threshold": lambda x: x * xp.threshold(x, 0.5, 20.0),
    "hard_tanh": lambda x: x * xp.hard_tanh(x, -1.0, 0.5),
    "hard_sigmoid": lambda x: x * xp.hard_sigmoid(1.5 * x),
    "hard_silu": lambda x: xp.hard_silu(1.5 * x),
}
each_function = pytest.mark.parametrize("name", FUNCTIONS)


@each_function
def test_the_vjp_is_the_slope(name: str) -> None:
    check_slopes(record_function(FUNCTIONS[name]), 1e-8)


@each_function
def test_the_vjp_can_be_differentiated_again(name: str) -> None:
    check_slopes(gradient_of_the_sum(record_function(FUNCTIONS[name])), 2e-7)


@pytest.mark.beside_numpy
@each_function
def test_every_backend_computes_the_vjps_that_numpy_does(backend: Any, name: str) -> None:
    grad = simplify(pullback(record_function(FUNCTIONS[name])))
    expected = emit_rule(grad, load_backend("numpy"))[0](OTHER, X)
    actual = evaluate(grad, backend, OTHER, X)
    assert actual.dtype == FLOAT64
    np.testing.assert_allclose(actual, expected, rtol=4e-12, atol=1e-13)


FAR = (
    "hypot", "atan2", "logaddexp", "asinh", "erfc", "ndtr", "log_ndtr", "log_sigmoid", "celu", "selu",
    "mish", "squareplus", "sparse_plus", "soft_sign", "tanh_shrink", "hard_silu", "hard_tanh",
)  # fmt: skip


def test_far_from_zero_vjps_give_no_nan(backend: Any) -> None:
    far = np.array([1e30, -1e30, 80.0, -80.0], np.float32)
    for name in FAR:
        function = getattr(xp, name)
        if name in ("hypot", "atan2", "logaddexp"):
            graph = record_function(lambda x, function=function: function(x, 0.5 * x))
        else:
            graph = record_function(function)
        grad = simplify(pullback(graph))
        assert np.isfinite(evaluate(grad, backend, np.ones_like(far), far)).all(), name


def test_at_poles_and_ties_gradients_are_those_of_one_side_or_zero() -> None:
    x = np.array([0.0, 1.0, -1.0])
    for function, expected in (
        (lambda x: xp.hypot(x, 0.0), [0.0, 1.0, -1.0]),
        (lambda x: xp.atan2(x, 0.0), [0.0, 0.0, 0.0]),
        (lambda x: xp.xlogy(0.0 * x, abs(x)), [0.0, 0.0, 0.0]),
        (lambda x: xp.fmax(x, np.nan), [1.0, 1.0, 1.0]),
        (lambda x: xp.fmin(x, x), [1.0, 1.0, 1.0]),
        (xp.sinc, [0.0, -1.0, 1.0]),
        (xp.hard_tanh, [1.0, 0.0, 0.0]),
    ):
        grad = emit_rule(simplify(pullback(record_function(function))), load_backend("numpy"))[0]
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(grad(np.ones(3), x), expected, atol=1e-15)


def test_the_tail_of_log_ndtr_has_the_slope_of_scipy(backend: Any) -> None:
    x = np.array([-1e4, -40.0, -8.1, -7.9, -5.0, -1.0, 0.0, 3.0])
    grad = simplify(pullback(record_function(xp.log_ndtr)))
    # phi / Phi by the scaled erfc, which does not underflow
    expected = np.sqrt(2 / np.pi) / special.erfcx(-x / np.sqrt(2))
    actual = evaluate(grad, backend, np.ones_like(x), x)
    np.testing.assert_allclose(actual, expected, rtol=1e-13)


def test_near_zero_sinc_has_the_slope_of_its_series() -> None:
    x = np.array([1e-9, -1e-4, 0.02, -0.29, 0.31])
    angle = np.pi * x.astype(np.longdouble)
    expected = np.where(
        np.abs(x) < 1e-3, -(np.pi**2) * x / 3, (np.cos(angle) - np.sin(angle) / angle) / x
    )
    grad = emit_rule(simplify(pullback(record_function(xp.sinc))), load_backend("numpy"))[0]
    np.testing.assert_allclose(grad(np.ones_like(x), x), expected.astype(float), rtol=1e-7)
