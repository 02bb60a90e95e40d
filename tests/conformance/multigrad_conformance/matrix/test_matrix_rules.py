"""What test_rules.py leaves out of the matrix of rules and activations: 16 bits, shapes and strides
under all of them.

The numbers are those of the float64 oracles, within the design's bound.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..differences import flushes
from ..oracles import (
    BFLOAT16,
    DERIVATIVES,
    DTYPES,
    FLOAT16,
    FORWARDS,
    LIBRARY,
    UNDER_RULES,
    assert_same_numbers,
    edge_values,
    exact,
    slack,
    spread,
    subnormals,
)
from ..test_rules import (
    DETERMINISTIC,
    assert_rule,
    cotangents,
    expected_gradient,
    formula_of,
    inputs,
    is_within,
)
from ..under_test import strided

SHAPES = ((), (0,), (3,), (2, 3, 4))
each_rule = pytest.mark.parametrize("rule", LIBRARY)
each_forward = pytest.mark.parametrize("forward", FORWARDS)


@each_rule
def test_every_rule_under_every_activation_in_sixteen_bits(backend: Any, rule: str) -> None:
    for dtype in (FLOAT16, BFLOAT16):
        x = inputs(dtype)
        g = cotangents(rule, x)
        for forward in UNDER_RULES:
            assert_rule(backend, rule, forward, x, g)


def given(shape: tuple[int, ...], dtype: Any) -> tuple[Any, Any]:
    """An input and a cotangent; a scalar is an array too."""
    return np.asarray(spread(shape, dtype)), np.asarray(spread(shape, dtype, seed=1))


@each_rule
def test_every_rule_keeps_every_shape_in_every_dtype_under_every_activation(
    backend: Any, rule: str, paired: Any
) -> None:
    for shape, dtype in paired(SHAPES, DTYPES):
        x, g = given(shape, dtype)
        for forward in UNDER_RULES:
            assert_rule(backend, rule, forward, x, g)


def through_a_view(backend: Any, f: Any, x: Any, g: Any) -> tuple[Any, Any]:
    """Forward and backward at the strided view of x; the gradient of x itself where the framework
    has views.
    """
    y, gradient = backend.vjp(f, x, g, view=strided)
    if gradient.shape == g.shape:  # without autodiff
        return y, gradient
    unseen = gradient.copy()
    strided(unseen)[...] = 0
    assert not unseen.any()  # what the view leaves out has no gradient
    return y, strided(gradient)


@pytest.mark.parametrize("rule", DETERMINISTIC)
def test_every_rule_takes_strided_inputs_in_every_dtype(backend: Any, rule: str) -> None:
    for dtype in DTYPES:
        x, (_, g) = spread((4, 6), dtype), given((3, 4), dtype)
        for forward in ("Heaviside", "Tanh"):
            f = xg.lower(rule, backend.name, forward=forward)
            y, grad_in = through_a_view(backend, f, x, g)
            what = f"{rule} under {forward}, {dtype}"
            assert_same_numbers(y, formula_of(backend.name, forward)(exact(strided(x))), what)
            assert_same_numbers(grad_in, expected_gradient(rule, strided(x), g), what)


# --- true derivatives -----------------------------------------------------------------------------


@each_forward
def test_true_derivatives_keep_every_shape_and_stride(
    backend: Any, forward: str, paired: Any
) -> None:
    f = xg.lower(None, backend.name, forward=forward)
    for shape, dtype in paired(SHAPES, DTYPES):
        x, g = given(shape, dtype)
        y, grad_in = backend.vjp(f, x, g)
        what = f"d({forward}), {shape}, {dtype}"
        assert_same_numbers(y, formula_of(backend.name, forward)(exact(x)), what)
        assert_same_numbers(grad_in, exact(g) * DERIVATIVES[forward](exact(x)), what)
    for dtype in DTYPES:
        x, (_, g) = spread((4, 6), dtype), given((3, 4), dtype)
        _, grad_in = through_a_view(backend, f, x, g)
        expected = exact(g) * DERIVATIVES[forward](exact(strided(x)))
        assert_same_numbers(grad_in, expected, f"d({forward}), strided, {dtype}")


@each_forward
def test_true_derivatives_at_subnormals_and_thresholds(backend: Any, forward: str) -> None:
    f = xg.lower(None, backend.name, forward=forward)
    for dtype in DTYPES:
        x = np.concatenate([subnormals(dtype), edge_values(dtype, 3.0, 8.0, 10.0)])
        x = x[np.isfinite(x)]
        g = np.clip(spread(x.shape, dtype, seed=1), -1.0, 1.0).astype(dtype)
        _, grad_in = backend.vjp(f, x, g)
        with np.errstate(all="ignore"):
            right = is_within(grad_in, exact(g) * DERIVATIVES[forward](exact(x)), slack(dtype))
            if flushes(backend.name, dtype):
                tiny = np.isin(x, subnormals(dtype))
                zeroed = exact(g) * DERIVATIVES[forward](exact(np.where(tiny, x * 0, x)))
                right |= is_within(grad_in, zeroed, slack(dtype))
        assert right.all(), f"d({forward}), {dtype}: {grad_in[~right]} at {x[~right]}"
