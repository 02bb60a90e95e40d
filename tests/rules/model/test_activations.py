"""The activations: their values, their true derivatives, and the gradients frameworks have
for them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

import multigrad as xg
from multigrad_conformance.oracles import (
    DERIVATIVES,
    DTYPES,
    FLOAT32,
    FLOAT64,
    FORWARDS,
    Exact,
    assert_same_numbers,
    edge_values,
    exact,
    finfo,
    slack,
    spread,
    where,
)
from multigrad_conformance.test_rules import formula_of, without_unsettled

each_activation = pytest.mark.parametrize("name", FORWARDS)

# Where a framework's own gradient is not ours: (backend, activation, input) -> gradient, and why.
NATIVE_GRADIENTS: dict[tuple[str, str, float], tuple[float, str]] = {
    ("jax", "LeakyReLU", 0.0): (1.0, "jax.nn.leaky_relu takes the upper branch at zero"),
    ("torch", "ReLU", np.nan): (1.0, "torch blocks x <= 0, which NaN is not"),
    ("torch", "ReLU6", np.nan): (1.0, "torch blocks x <= 0 and x >= 6, which NaN is not"),
    ("torch", "ELU", np.nan): (1.0, "torch scales where x <= 0, which NaN is not"),
    ("tensorflow", "ELU", np.nan): (1.0, "tensorflow scales where y < 0, which NaN is not"),
}


def elu_from_its_value(x: Exact) -> Exact:
    return where(x > 0, 1.0, (x.apply(np.exp) - 1.0) + 1.0)


# Where it is computed by another formula, and why.
NATIVE_FORMULAS: dict[tuple[str, str], tuple[Callable[[Exact], Exact], str]] = {
    ("jax", "ELU"): (elu_from_its_value, "the derivative of expm1 is its value + 1"),
    ("tensorflow", "ELU"): (elu_from_its_value, "the gradient kernel takes y + 1"),
}


def inputs(dtype: Any) -> Any:
    return np.concatenate([edge_values(dtype), spread(60, dtype)])


def derivative(name: str, x: Any, g: Any) -> Exact:
    with np.errstate(all="ignore"):
        return exact(g) * DERIVATIVES[name](exact(x))


def former_kernels() -> Any:
    return importlib.import_module("multigrad_torch.core.kernels.elementwise").MENDED


@each_activation
def test_an_activation_without_a_rule_is_the_frameworks_own(backend: Any, name: str) -> None:
    act = xg.activation(name)
    for dtype in DTYPES:
        x = inputs(dtype)
        with backend.precision(dtype):
            y = backend.numpy(act(backend.array(x)))
        with np.errstate(all="ignore"):
            expected = formula_of(backend.name, name)(exact(x))
        expected = without_unsettled(expected, backend.name, name, x, {})
        assert_same_numbers(y, expected, f"{name}, {backend.name}, {dtype}")


@each_activation
def test_the_lowered_derivative_has_the_numbers_of_the_formula(backend: Any, name: str) -> None:
    for dtype in DTYPES:
        x = inputs(dtype)
        g = spread(x.shape, dtype, seed=1)
        _, grad_in = backend.vjp(xg.lower(None, backend.name, forward=name), x, g)
        what = f"d({name}), {backend.name}, {dtype}"
        assert_same_numbers(grad_in, derivative(name, x, g), what)


@each_activation
@pytest.mark.backends("torch", "jax", "tensorflow")
def test_the_frameworks_own_gradient_is_the_derivative_but_for_listed_points(
    backend: Any, name: str
) -> None:
    act = xg.activation(name)
    listed = {
        point: gradient
        for (framework, key, point), (gradient, _) in NATIVE_GRADIENTS.items()
        if (framework, key) == (backend.name, name)
    }
    formula = NATIVE_FORMULAS.get((backend.name, name), (DERIVATIVES[name], ""))[0]
    if (backend.name, name) == ("torch", "ELU") and former_kernels():
        formula = elu_from_its_value  # by expm1, as in jax
    for dtype in (FLOAT32, FLOAT64):
        x = inputs(dtype)
        for point in listed:
            x = x[(x != point) & ~(np.isnan(x) & np.isnan(point))]
        g = np.clip(spread(x.shape, dtype, seed=1), -1.0, 1.0)  # some multiply it by x first
        _, grad_in = backend.vjp(act, x, g)
        with np.errstate(all="ignore"):
            expected = exact(g) * formula(exact(x))
        assert_same_numbers(grad_in, expected, f"{name}, {backend.name}, {dtype}")
        for point, gradient in listed.items():
            _, grad_in = backend.vjp(act, np.array([point], dtype), np.ones(1, dtype))
            assert grad_in == gradient


@each_activation
def test_the_derivative_is_the_slope_of_the_values(name: str) -> None:
    x = np.linspace(-6.9, 6.9, 200)  # no integer or half, where some have a kink, is a point
    step = 1e-6
    f = xg.lower(None, "numpy", forward=name)
    slope = (f(x + step) - f(x - step)) / (2 * step)
    _, pullback = f.vjp(x)
    np.testing.assert_allclose(pullback(np.ones_like(x)), slope, rtol=0, atol=2e-9)


@each_activation
def test_far_from_zero_values_and_gradients_stay_finite(backend: Any, name: str) -> None:
    for dtype, far in ((FLOAT32, 1e30), (FLOAT64, 1e250)):
        x = np.array([far, -far, 300.0, -300.0], dtype)
        for f in (
            xg.lower(None, backend.name, forward=name),
            xg.lower("scale", backend.name, forward=name),
        ):
            y, grad_in = backend.vjp(f, x, np.ones_like(x))
            assert np.isfinite(y).all()
            assert np.isfinite(grad_in).all()


@pytest.mark.parametrize("approximate", [False, True])
def test_gelu_in_a_rule_is_right_in_every_dtype(backend: Any, approximate: bool) -> None:
    def gated(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * xg.xp.gelu(tin, approximate=approximate)

    for dtype in DTYPES:
        x = inputs(dtype)
        x = x[np.isfinite(x) & (np.abs(x.astype(np.float64)) < 1e4)]
        f = xg.lower(gated, backend.name)
        _, grad_in = backend.vjp(f, x, np.ones_like(x))
        expected = gelu(x.astype(np.float64), approximate)
        eps = float(finfo(dtype).eps)
        error = np.abs(grad_in.astype(np.float64) - expected)
        # both forms cancel in the negative tail, where they are x times something near zero
        assert (error <= 4 * eps * np.abs(x.astype(np.float64)) + slack(dtype)).all()


def gelu(x: Any, approximate: bool) -> Any:
    if approximate:
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return x * special.ndtr(x)
