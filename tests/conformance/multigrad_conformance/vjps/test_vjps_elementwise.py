"""The VJPs of elementwise ops far out, at poles and at ties; see `test_vjps.py` for the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

import multigrad as xg
from multigrad.backend.finding.discovery import load_backend
from multigrad.graph.passes.simplify import simplify
from multigrad.lowering.lower import emit_rule
from multigrad.trace.derived.derivatives import pullback

from .test_vjps import evaluate, record_function

xp = xg.xp
Tensor = Any


FAR = (
    "hypot", "atan2", "logaddexp", "asinh", "erfc", "ndtr", "log_ndtr", "log_sigmoid", "celu",
    "selu",
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
