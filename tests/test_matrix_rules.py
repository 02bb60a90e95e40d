"""What test_parity.py leaves out of the matrix of rules and activations: 16 bits, shapes and strides under all of them.

The numbers are those of the float64 oracles, within the design's bound. FreeGrad's own are met bit for bit.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from .differences import kept
from .oracles import (
    BFLOAT16,
    DERIVATIVES,
    DTYPES,
    FLOAT16,
    FORWARDS,
    LIBRARY,
    assert_same_numbers,
    edge_values,
    exact,
    slack,
    spread,
    subnormals,
)
from .strides import strided
from .test_parity import (
    DETERMINISTIC,
    assert_rule,
    cotangents,
    expected_gradient,
    formula_of,
    inputs,
    is_within,
)
from .test_rules import FREEGRAD_PARAMS

SHAPES = ((), (0,), (3,), (2, 3, 4))
each_rule = pytest.mark.parametrize("rule", LIBRARY)
each_forward = pytest.mark.parametrize("forward", FORWARDS)


@each_rule
def test_every_rule_under_every_activation_in_sixteen_bits(backend: Any, rule: str) -> None:
    for dtype in (FLOAT16, BFLOAT16):
        x = inputs(dtype)
        g = cotangents(rule, x)
        for forward in FORWARDS:
            assert_rule(backend, rule, forward, x, g)


def given(shape: tuple[int, ...], dtype: Any) -> tuple[Any, Any]:
    """An input and a cotangent; a scalar is an array too."""
    return np.asarray(spread(shape, dtype)), np.asarray(spread(shape, dtype, seed=1))


@each_rule
def test_every_rule_keeps_every_shape_in_every_dtype_under_every_activation(
    backend: Any, rule: str
) -> None:
    for dtype in DTYPES:
        for shape in SHAPES:
            x, g = given(shape, dtype)
            for forward in FORWARDS:
                assert_rule(backend, rule, forward, x, g)


def through_a_view(backend: Any, f: Any, x: Any, g: Any) -> tuple[Any, Any]:
    """Forward and backward at the strided view of x; the gradient of x itself where the framework has views."""
    if backend.name == "numpy":
        return backend.vjp(SimpleNamespace(vjp=lambda t: f.vjp(strided(t))), x, g)
    apply = f.apply if backend.name == "torch" else f
    y, gradient = backend.vjp(lambda t: apply(strided(t)), x, g)
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


# --- true derivatives -----------------------------------------------------------------------------------


@each_forward
def test_true_derivatives_keep_every_shape_and_stride(backend: Any, forward: str) -> None:
    f = xg.lower(None, backend.name, forward=forward)
    for dtype in DTYPES:
        for shape in SHAPES:
            x, g = given(shape, dtype)
            y, grad_in = backend.vjp(f, x, g)
            what = f"d({forward}), {shape}, {dtype}"
            assert_same_numbers(y, formula_of(backend.name, forward)(exact(x)), what)
            assert_same_numbers(grad_in, exact(g) * DERIVATIVES[forward](exact(x)), what)
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
            if kept(backend.name, "subnormals", "*"):
                tiny = np.isin(x, subnormals(dtype))
                zeroed = exact(g) * DERIVATIVES[forward](exact(np.where(tiny, x * 0, x)))
                right |= is_within(grad_in, zeroed, slack(dtype))
        assert right.all(), f"d({forward}), {dtype}: {grad_in[~right]} at {x[~right]}"


# --- FreeGrad -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", FREEGRAD_PARAMS)
@pytest.mark.needs("torch", "freegrad")
def test_rules_of_freegrads_names_give_its_numbers_in_every_dtype_shape_and_stride(
    rule: str,
) -> None:
    import freegrad
    import torch

    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for shape in (*SHAPES, (4, 6)):
            x, g = (torch.from_numpy(a).to(dtype) for a in given(shape, np.dtype(np.float32)))
            if shape == (4, 6):
                x, g = strided(x), strided(g)
            for params in FREEGRAD_PARAMS[rule]:
                if rule == "centralize" and len(shape) <= 0:
                    continue  # FreeGrad's own has no dimension 0 there
                theirs = freegrad.get(rule)(None, g, x, **params)
                ours = xg.get(rule)(None, g, x, **params)
                assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
                assert torch.equal(ours, theirs), f"{rule}, {params}, {shape}, {dtype}"
