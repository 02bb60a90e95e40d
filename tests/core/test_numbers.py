"""Numbers at their edges: signs of zeros, infinities, NaN, subnormals, sixteen bits, shapes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import multigrad as xg
from multigrad import xp

INF, NAN = np.inf, np.nan


def reciprocal(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return grad_out * xp.where(tin == 0, xp.sign(1.0 / tin), tin)


def test_infinities_and_nan_go_where_ieee_754_sends_them(backend: Any) -> None:
    x = np.array([-INF, -1.0, 0.0, 1.0, INF, NAN], np.float32)
    y, gradient = backend.vjp(xg.activation("Heaviside", "triangular"), x, np.ones_like(x))
    np.testing.assert_array_equal(y[:5], [0, 0, 0, 1, 1])
    np.testing.assert_array_equal(gradient, [0, 0, 1, 0, 0, NAN])
    g = np.array([INF, INF, NAN, -INF, 1.0, 0.0], np.float32)
    _, gradient = backend.vjp(xg.activation("Linear", "scale", {"s": -2.0}), x, g)
    np.testing.assert_array_equal(gradient, [-INF, -INF, NAN, INF, -2.0, 0.0])


def test_zeros_keep_their_signs(backend: Any) -> None:
    x = np.array([0.0, -0.0], np.float32)
    _, gradient = backend.vjp(xg.activation("Linear", reciprocal), x, np.ones_like(x))
    np.testing.assert_array_equal(gradient, [1.0, -1.0])
    _, gradient = backend.vjp(xg.activation("Linear", "gradient_reversal"), x, x)
    np.testing.assert_array_equal(np.signbit(gradient), [True, False])


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_subnormal_numbers_are_kept_or_flushed_to_zero(backend: Any, dtype: Any) -> None:
    x = np.array([1.0, -1.0], dtype)
    g = np.full(2, np.finfo(dtype).smallest_subnormal * 8, dtype)
    _, gradient = backend.vjp(xg.activation("Linear", "scale", {"s": 2.0}), x, g)
    assert (gradient == g * 2).all() or not gradient.any()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_sixteen_bits_are_computed_and_returned(backend: Any, dtype: Any) -> None:
    x, g = np.array([-1.5, 0.25, 0.5, 3.0], dtype), np.array([1.0, 2.0, -4.0, 8.0], dtype)
    y, gradient = backend.vjp(xg.activation("ReLU", "triangular", {"width": 2.0}), x, g)
    assert y.dtype == gradient.dtype == dtype
    np.testing.assert_array_equal(y.astype(float), [0, 0.25, 0.5, 3.0])
    np.testing.assert_array_equal(gradient.astype(float), [0.25, 1.75, -3.0, 0.0])


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 4)])
def test_every_shape_has_a_gradient_of_its_own(backend: Any, shape: tuple[int, ...]) -> None:
    x = np.full(shape, 0.25, np.float32)
    y, gradient = backend.vjp(xg.activation("Heaviside", "triangular"), x, np.ones_like(x))
    assert y.shape == gradient.shape == shape
    np.testing.assert_array_equal(gradient, np.full(shape, 0.75))
    _, gradient = backend.vjp(xg.activation("Linear", "clip_norm"), x, np.ones_like(x))
    assert gradient.shape == shape and np.isfinite(gradient).all()
