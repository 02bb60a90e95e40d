"""Rules at the ends of a dtype and at far params: against formulas written here, in long double."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import pytest

import multigrad as xg

Array: TypeAlias = np.ndarray[Any, Any]
Exact = np.longdouble
DTYPES = [np.dtype(each) for each in ("float16", ml_dtypes.bfloat16, "float32", "float64")]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)


def fall_of_a_power(x: Array, alpha: float) -> Array:
    return (1 + 2 * abs(x) / (Exact(alpha) - 1)) ** -Exact(alpha)


def fall_of_a_logistic(x: Array, alpha: float) -> Array:
    decay = np.exp(-abs(alpha * x))
    return alpha * decay / (1 + decay) ** 2


def fall_of_a_bell(x: Array, mean: float, sigma: float) -> Array:
    height = 1 / (sigma * np.sqrt(2 * Exact(np.pi)))
    return height * np.exp(-(((x - mean) / sigma) ** 2) / 2)


def slope_of_a_swish(x: Array, beta: float) -> Array:
    u = np.minimum(abs(beta * x), Exact(10_000))
    decay = np.exp(-u)
    bent = 2 - u * (1 - decay) / (1 + decay)
    return beta * bent * 2 * decay / (1 + decay) ** 2


def logarithm(x: Array, alpha: float) -> Array:
    return 1 / (1 / Exact(alpha) + abs(x))


FACTORS: list[tuple[str, dict[str, float], Callable[..., Array]]] = [
    ("q_pseudo_spike", {"alpha": 2.0}, fall_of_a_power),
    ("q_pseudo_spike", {"alpha": 30.0}, fall_of_a_power),
    ("sigmoid_surrogate", {"alpha": 100.0}, fall_of_a_logistic),
    ("gaussian", {"mean": 3.0, "sigma": 20.0}, fall_of_a_bell),
    ("swish_sign", {"beta": 0.01}, slope_of_a_swish),
    ("swish_sign", {"beta": 100.0}, slope_of_a_swish),
    ("nonzero_sign_log", {"alpha": 1000.0}, logarithm),
]


def ends_of(dtype: Any) -> Array:
    """Zeros, the smallest and the largest numbers, infinities, and what lies between."""
    info = ml_dtypes.finfo(dtype)
    ends = [0.0, float(info.smallest_subnormal), float(info.tiny), float(info.max), np.inf]
    between = [0.05, 0.135, 0.25, 0.5, 1.0, 1.5, 3.5, 8.0, 17.0, 40.0, 300.0]
    return np.array([sign * each for each in (*ends, *between) for sign in (1, -1)], dtype)


@each_dtype
@pytest.mark.parametrize(("name", "params", "formula"), FACTORS)
def test_a_factor_is_that_of_its_formula_out_to_infinity(
    name: str, params: dict[str, float], formula: Callable[..., Array], dtype: Any
) -> None:
    x = ends_of(dtype)
    given = xg.get(name)(None, np.ones_like(x), x, **params)
    with np.errstate(over="ignore"):
        expected = formula(x.astype(Exact), **params)
    assert given.dtype == dtype and np.isfinite(given.astype(float)).all()
    eps = float(ml_dtypes.finfo(dtype).eps)
    error = abs(given.astype(Exact) - expected)
    assert (error <= 8 * eps * abs(expected) + eps * abs(expected).max()).all()


# XLA multiplies by the inverse of what it divides by, which overflows here, and takes a subnormal
# number for zero; so does TensorFlow.
exact = pytest.mark.backends("numpy", "torch")


@exact
@each_dtype
def test_weights_that_are_all_subnormal_keep_a_finite_gradient(backend: Any, dtype: Any) -> None:
    smallest = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    x = np.array([[smallest, -smallest], [0.0, smallest]], dtype)
    g = np.array([[0.0, 2 * smallest], [-3 * smallest, 0.0]], dtype)
    for rule, params in (("dorefa_weights", {}), ("larq.DoReFa", {"mode": "weights"})):
        given = xg.get(rule)(None, backend.array(g), backend.array(x), **params)
        np.testing.assert_array_equal(backend.numpy(given).astype(float), [[0.0, 2.0], [-3.0, 0.0]])


@exact
@each_dtype
def test_a_gradient_far_below_eps_is_divided_by_it(backend: Any, dtype: Any) -> None:
    smallest = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    g = np.array([40 * smallest, 0.0, -80 * smallest], dtype)
    for name in ("normalize", "optax.normalize_by_update_norm"):
        given = backend.numpy(xg.get(name)(None, backend.array(g), None, eps=1.0)).astype(float)
        np.testing.assert_allclose(given, g.astype(float), rtol=0, atol=smallest)
