"""A Python number, an integer above all, that comes before a tensor: eager and compiled, on every
backend.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp
from multigrad_conformance.under_test import pull

from ..functions.test_functions_everywhere import COMPILED, COMPILERS
from ..harness.traced import taped

X = np.array([-1.5, 0.3, 0.6, 3.5], np.float32)  # the quotients jump at none of them


def all_of_them(grad_out: Any, tin: Any) -> Any:
    x = tin
    total = xp.maximum(0, 1 - xp.abs(x)) + xp.minimum(1, x) + xp.fmax(0, x) + xp.fmin(1, x)
    total = total + (2 + x) * 3 - (1 - x) + 1 / x + 2**x + 1 // x + 2 % xp.abs(x)
    total = total + xp.atan2(1, x) + xp.hypot(1, x) + xp.copysign(1, x) + xp.logaddexp(0, x)
    total = (
        total + xp.xlogy(2, xp.abs(x)) + xp.fmod(2, x) + xp.where(x > 0, 1, x) + xp.lerp(0, x, 1)
    )
    total = total + xp.clip(0, x - 1, x + 1) + xp.where(x > 0, x, 0) + xp.full_like(x, 2)
    masks = (0 < x) & (1 >= x) | xp.equal(0, x) | xp.not_equal(1, x) | xp.less(0, x)  # noqa: SIM300
    return grad_out * xp.where(masks, total, 1)


def expected(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    x = x.astype(np.float64)
    total = np.maximum(0, 1 - np.abs(x)) + np.minimum(1, x) + np.fmax(0, x) + np.fmin(1, x)
    total = total + (2 + x) * 3 - (1 - x) + 1 / x + 2**x + 1 // x + 2 % np.abs(x)
    total = total + np.arctan2(1, x) + np.hypot(1, x) + np.copysign(1, x) + np.logaddexp(0, x)
    total = total + 2 * np.log(np.abs(x)) + np.fmod(2, x) + np.where(x > 0, 1, x) + x
    return total + np.clip(0, x - 1, x + 1) + np.where(x > 0, x, 0) + 2


def test_a_number_first_is_taken_by_every_operation(backend: Any) -> None:
    f = xg.function(lambda x: all_of_them(1, x), native=False)
    np.testing.assert_allclose(backend.numpy(f(backend.array(X))), expected(X), rtol=1e-5)


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_surrogate_with_the_integer_first_is_compiled(backend: Any, jit_compile: bool) -> None:
    import tensorflow as tf

    def triangle(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * tf.maximum(0, 1 - tf.abs(tin))

    gradient = taped(xg.activation("Heaviside", triangle))
    actual = tf.function(gradient, jit_compile=jit_compile)(tf.constant(X)).numpy()
    np.testing.assert_allclose(actual, np.maximum(0, 1 - np.abs(X)))


@COMPILED
def test_a_number_first_is_taken_by_a_compiler(backend: Any) -> None:
    f, h = xg.function(lambda x: all_of_them(1, x), native=False), 1e-6
    slope = (expected(X + np.float64(h)) - expected(X - np.float64(h))) / (2 * h)
    for options in COMPILERS[backend.name]:
        compiled = xg.jit(lambda x: f(x), backend.name, **options)
        y, (gradient,) = pull(backend, compiled, (X,))
        np.testing.assert_allclose(y, expected(X), rtol=1e-5)
        np.testing.assert_allclose(gradient, slope, rtol=1e-3)


# Operands of two ranks and dtypes, of which one has no axes.
MIXED = {
    "float64 first": (xp.add, np.float64(3.0), np.full((2, 3), 0.1, np.float32)),
    "float64 last": (xp.maximum, np.full((2, 3), 0.1, np.float32), np.float64(0.25)),
    "float16": (xp.multiply, np.float16(0.3), np.full((2, 3), 0.1, np.float32)),
    "integers": (xp.divide, np.arange(6).reshape(2, 3), np.float32(1.5)),
    "a mask": (xp.add, np.arange(6).reshape(2, 3) > 2, np.float32(1.5)),
}


@pytest.mark.parametrize("case", MIXED.values(), ids=MIXED)
def test_tensors_without_axes_count_in_eager_code_as_in_a_graph(backend: Any, case: Any) -> None:
    function, *arrays = case
    tensors = [backend.array(array) for array in arrays]
    captured = xg.function(lambda a, b: function(a, b), native=False)(*tensors)
    eager = function(*tensors)
    assert eager.dtype == captured.dtype
    np.testing.assert_array_equal(backend.numpy(eager), backend.numpy(captured))
