"""Numbers and params inside rules: they take the dtype of what they meet, whatever they are, on
every backend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

import multigrad as xg
from multigrad_conformance.oracles import BFLOAT16, DTYPES, FLOAT16, FLOAT64, finfo

xp = xg.xp
INF, NAN = np.inf, np.nan
X = np.array([[0.5, -1.0, 2.0], [-0.25, 0.0, 1.0]])
G = np.array([[1.0, 2.0, -3.0], [0.5, -0.125, 0.25]])
Body = Callable[[Any, Any, Any], Any]

# (the rule's body, its meaning in float64, the param)
CASES: dict[str, tuple[Body, Body, float]] = {
    "a test of a param times a tensor": (
        lambda g, x, w: g * (w > 0), lambda g, x, w: g * float(w > 0), 1.0,
    ),
    "a mask and a test of a param": (
        lambda g, x, w: g * ((x > 0) & (w > 0)), lambda g, x, w: g * (x > 0), 1.0,
    ),
    "a test of a param or a mask": (
        lambda g, x, w: g * ((w < 0) | (x > 0)), lambda g, x, w: g * (x > 0), 1.0,
    ),
    "a denied test of a param": (
        lambda g, x, w: xp.where(xp.logical_not(w > 0), 0.0, g), lambda g, x, w: g, 1.0,
    ),
    "a choice by a param between a tensor and a number": (
        lambda g, x, w: xp.where(w > 0, g, 0.0), lambda g, x, w: 0 * g, -1.0,
    ),
    "a choice by a param between numbers": (
        lambda g, x, w: xp.where(w > 0, 2.0, 3.0) * g, lambda g, x, w: 2 * g, 1.0,
    ),
    "a choice by all elements": (
        lambda g, x, w: xp.where(xp.any(x > w), g, -g), lambda g, x, w: g, 1.0,
    ),
    "two masks compared": (
        lambda g, x, w: g * xp.equal(x > 0, g > 0), lambda g, x, w: g * ((x > 0) == (g > 0)), 1.0,
    ),
    "a count": (
        lambda g, x, w: g * xp.sum((x > 0) * 1.0), lambda g, x, w: g * 3, 1.0,
    ),
    "the count of a mask": (
        lambda g, x, w: g * xp.count_nonzero(x > 0), lambda g, x, w: g * np.sum(x > 0), 1.0,
    ),
    "the share of a mask": (
        lambda g, x, w: g * xp.mean(x > 0), lambda g, x, w: g * 0.5, 1.0,
    ),
    "the number of elements": (
        lambda g, x, w: g / xp.size(x) + xp.dim(x, 0) * w, lambda g, x, w: g / 6 + 2 * w, 0.5,
    ),
    "functions of a param": (
        lambda g, x, w: g * xp.exp(w) * xp.sign(w) * xp.sqrt(w) * xp.tanh(w) * abs(-w),
        lambda g, x, w: g * np.exp(w) * np.sqrt(w) * np.tanh(w) * w, 0.75,
    ),
    "functions of a param, with attributes": (
        lambda g, x, w: g * xp.leaky_relu(-w, slope=0.25) * xp.gelu(w),
        lambda g, x, w: g * -w / 4 * w * special.ndtr(w), 0.75,
    ),
    "a limit between a param and a norm": (
        lambda g, x, w: g / xp.maximum(w, xp.norm(g)),
        lambda g, x, w: g / max(w, np.linalg.norm(g)), 1.0,
    ),
    "a window between a tensor and a number": (
        lambda g, x, w: xp.clip(g, -xp.norm(x), w),
        lambda g, x, w: np.clip(g, -np.linalg.norm(x), w), 0.125,
    ),
    "a param to the power of a tensor": (
        lambda g, x, w: g * w**x, lambda g, x, w: g * w**x, 1.5,
    ),
    "an infinite limit": (
        lambda g, x, w: xp.clip(g, -w, w), lambda g, x, w: g, INF,
    ),
    "a limit that is no number": (
        lambda g, x, w: xp.maximum(g, w), lambda g, x, w: g * w, NAN,
    ),
    "limits above the range of float16": (
        lambda g, x, w: xp.minimum(xp.maximum(xp.clip(g, -1e6, w), -w), 1e6), lambda g, x, w: g,
        1e6,
    ),
    "a window above the range of float16": (
        lambda g, x, w: g * ((x >= -w) & (x <= w)), lambda g, x, w: g, 1e6,
    ),
    "a filling above the range of float16": (
        lambda g, x, w: xp.minimum(xp.full_like(g, w), g), lambda g, x, w: g, 1e6,
    ),
}  # fmt: skip


def rule_of(body: Body, param: float) -> Any:
    def rule(ctx: Any, grad_out: Any, tin: Any, w: float = param) -> Any:
        return body(grad_out, tin, w)

    return rule


@pytest.mark.parametrize("case", CASES)
def test_a_number_takes_the_dtype_of_what_it_meets(backend: Any, case: str) -> None:
    body, meaning, param = CASES[case]
    for dtype in DTYPES:
        f = xg.lower(rule_of(body, param), backend.name)
        _, grad_in = backend.vjp(f, X.astype(dtype), G.astype(dtype))
        assert grad_in.dtype == dtype
        expected = np.asarray(meaning(G, X, param), np.float64)
        rtol = 8 * float(finfo(dtype).eps)
        np.testing.assert_allclose(grad_in.astype(np.float64), expected, rtol=rtol, atol=rtol / 8)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT64])
def test_a_tensor_cast_to_a_fixed_dtype_meets_numbers_in_that_dtype(
    backend: Any, dtype: Any
) -> None:
    def in_float32(ctx: Any, grad_out: Any, tin: Any, w: float = 0.7) -> Any:
        wide = xp.astype(grad_out, "float32")
        return xp.astype((wide * 0.1) * w, tin.dtype)

    g = G.astype(dtype)
    _, grad_in = backend.vjp(xg.lower(in_float32, backend.name), X.astype(dtype), g)
    expected = (g.astype(np.float32) * np.float32(0.1)) * np.float32(0.7)
    np.testing.assert_array_equal(grad_in, expected.astype(dtype))


@pytest.mark.parametrize("value", [INF, -INF, NAN])
def test_a_default_need_not_be_finite(backend: Any, value: float) -> None:
    rule = rule_of(lambda g, x, w: g * w, value)
    _, grad_in = backend.vjp(xg.lower(rule, backend.name), X, np.ones_like(X))
    np.testing.assert_array_equal(grad_in, np.full_like(X, value))
    source = xg.source(rule, backend.name)
    assert compile(source, "source", "exec")


@pytest.mark.parametrize("name", ["sign", "abs", "where", "norm", "maximum", "cast", "weak"])
def test_a_rule_may_be_called_as_an_op_that_it_uses(backend: Any, name: str) -> None:
    def body(ctx: Any, grad_out: Any, tin: Any) -> Any:
        unit = grad_out / xp.maximum(xp.norm(grad_out), 1e-6)
        return xp.where(abs(tin) > 0.5, xp.sign(grad_out), unit * (tin > 0))

    body.__name__ = name
    x, g = X.astype(np.float32), G.astype(np.float32)
    unit = g / np.linalg.norm(g)
    expected = np.where(np.abs(x) > 0.5, np.sign(g), unit * (x > 0))
    bare = backend.numpy(xg.compose(body)(None, backend.array(g), backend.array(x)))
    np.testing.assert_allclose(bare, expected, rtol=1e-6)
    _, lowered = backend.vjp(xg.lower(body, backend.name), x, g)
    np.testing.assert_allclose(lowered, expected, rtol=1e-6)
    named = xg.register(f"{name}")(body)
    bare = backend.numpy(named(None, backend.array(g), backend.array(x)))
    np.testing.assert_allclose(bare, expected, rtol=1e-6)


def test_the_neutral_functions_take_numbers_and_masks_on_real_tensors_too(backend: Any) -> None:
    for dtype in DTYPES:
        x = X.astype(dtype)
        with backend.precision(dtype):
            t, mask = backend.array(x), backend.array(x > 0)
            results = {
                "number on the right": (xp.multiply(t, 0.5), x * 0.5),
                "number on the left": (xp.maximum(0.5, t), np.maximum(x, 0.5)),
                "whole number": (xp.add(t, 1), x + 1.0),
                "power": (xp.pow(xp.abs(t), 1.5), np.abs(x) ** 1.5),
                "window": (xp.clip(t, -0.5, 0.5), np.clip(x, -0.5, 0.5)),
                "mask": (xp.multiply(t, mask), np.where(x > 0, x, dtype.type(0))),
                "choice": (xp.where(mask, t, 0.0), np.where(x > 0, x, dtype.type(0))),
            }
            for what, (result, expected) in results.items():
                actual = backend.numpy(result)
                assert actual.dtype == dtype, what
                rtol = 4 * float(finfo(dtype).eps)
                np.testing.assert_allclose(
                    actual.astype(np.float64), expected.astype(np.float64), rtol=rtol, err_msg=what
                )
