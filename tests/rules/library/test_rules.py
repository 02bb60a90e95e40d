"""The rule library as its docstrings describe it: missing inputs, dtypes, FreeGrad, far params.

The formulas and edges, with bounds on the error in every dtype, are in the conformance suite.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import pytest

import multigrad as xg
from multigrad.core.rules.rule_names import OWN
from multigrad_conformance.expected.curves import CURVES
from multigrad_conformance.expected.transforms import TRANSFORMS
from multigrad_conformance.oracles import (
    BFLOAT16,
    FLOAT32,
    FLOAT64,
    LIBRARY,
    fold_in,
    spread,
    uniform,
)
from multigrad_conformance.under_test import strided

INF, NAN = np.inf, np.nan
RANDOM = ("full_jam", "noise", "positive_jam", "rectangular_jam")
each_rule = pytest.mark.parametrize("name", LIBRARY)

# (rule, params, {input: factor on the gradient}): what the conformance suite's formulas leave open,
# the gradient at guided's edge and the least width.
LANDMARKS: tuple[tuple[str, dict[str, Any], dict[Any, float]], ...] = (
    ("guided", {}, {0: 0, 1e-30: 1, -1e-30: 0, INF: 1, -INF: 0, NAN: 0}),
    ("triangular", {"width": 0}, {0: 1, 5e-7: 0.5, -5e-7: 0.5, 1e-5: 0}),
)


@pytest.mark.parametrize(("name", "params", "factors"), LANDMARKS)
def test_factors_at_landmarks(
    backend: Any, name: str, params: dict[str, Any], factors: dict[Any, float]
) -> None:
    rule = xg.get(name).with_params(**params)
    for dtype in (FLOAT32, FLOAT64):
        x = np.array(list(factors), dtype)
        f = xg.lower(rule, backend.name, forward="Heaviside")
        _, grad_in = backend.vjp(f, x, np.ones_like(x))
        # 1e-6: of an input that no float holds, and of width 1e-6
        np.testing.assert_allclose(grad_in, list(factors.values()), rtol=1e-6, atol=1e-7)


@each_rule
def test_without_the_forwards_input_a_factor_that_depends_on_it_is_one(
    backend: Any, name: str
) -> None:
    g = spread((3, 4), FLOAT32)
    own = {"clip_norm", "centralize", "scale", "gradient_reversal", "noise"}
    if name in ("guided", "deconvnet"):
        np.testing.assert_array_equal(
            backend.numpy(xg.get(name)(None, backend.array(g), None)), np.maximum(g, 0)
        )
        return
    rule = xg.get(name).with_params(s=2.0) if name == "scale" else xg.get(name)
    grad_in = backend.numpy(rule(None, backend.array(g), None, **keyed(name)))
    assert grad_in.dtype == g.dtype
    if name in RANDOM and name != "noise":
        factor = uniform(fold_in((0, 5), 0), g.size, FLOAT32).reshape(g.shape)
        np.testing.assert_array_equal(grad_in, g * factor)
    elif name not in own:
        np.testing.assert_array_equal(grad_in, g)
    else:
        x = spread((3, 4), FLOAT32, seed=1)  # these never look at it
        with_input = backend.numpy(rule(None, backend.array(g), backend.array(x), **keyed(name)))
        np.testing.assert_array_equal(grad_in, with_input)
        assert not np.array_equal(grad_in, g)


def keyed(name: str) -> dict[str, Any]:
    return {"key": 5} if name in RANDOM else {}


def test_every_rule_of_the_library_has_an_oracle() -> None:
    library = {name for name in xg.rules() if xg.get(name).__module__.startswith(OWN)}
    known = {*LIBRARY, *CURVES, *TRANSFORMS}
    place = "CURVES of tests/conformance/multigrad_conformance/expected/curves.py"
    assert library <= known, f"write its formula into {place}"
    assert known <= library, f"no rule has this name now: remove its formula from {place}"


@pytest.mark.parametrize("name", sorted({*LIBRARY, *CURVES, *TRANSFORMS}))
def test_a_rule_states_its_formula_and_source_and_names_all_it_takes(name: str) -> None:
    rule = xg.get(name)
    assert "Source:" in rule.__doc__, f"add a line `Source:` to {name}'s docstring"
    signature = inspect.signature(rule.function)
    assert list(signature.parameters)[:3] == ["ctx", "grad_out", "tin"]
    for parameter in list(signature.parameters.values())[3:]:
        assert parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        assert parameter.default is not parameter.empty
        assert parameter.annotation in ("float", "int", "bool", "str")


@each_rule
def test_a_gradient_of_any_dtype_is_cast_to_that_of_the_input(backend: Any, name: str) -> None:
    rule, g, x = xg.get(name), spread((2, 5), FLOAT64), spread((2, 5), FLOAT32, seed=1)
    for dtype in (FLOAT32, BFLOAT16):
        with backend.precision(FLOAT64):
            tin = backend.array(x.astype(dtype))
            grad_in = rule(None, backend.array(g), tin, **keyed(name))
            again = rule(None, backend.array(g.astype(dtype)), tin, **keyed(name))
        assert isinstance(grad_in, type(tin))
        result = backend.numpy(grad_in)
        assert (result.dtype, result.shape) == (dtype, (2, 5))
        np.testing.assert_array_equal(result, backend.numpy(again))


# --- whole tensors --------------------------------------------------------------------------------


def apply(backend: Any, name: str, g: Any, **params: Any) -> Any:
    with backend.precision(g.dtype):
        return backend.numpy(xg.get(name)(None, backend.array(g), None, **params))


def test_clip_norm_limits_the_norm_and_leaves_smaller_gradients_alone(backend: Any) -> None:
    g = spread((4, 5), FLOAT64)
    clipped = apply(backend, "clip_norm", g, max_norm=0.5)
    np.testing.assert_allclose(np.linalg.norm(clipped), 0.5, rtol=1e-14)
    np.testing.assert_allclose(clipped / g, 0.5 / np.linalg.norm(g), rtol=1e-14)
    np.testing.assert_array_equal(apply(backend, "clip_norm", g, max_norm=100.0), g)
    zero = np.zeros(3)
    np.testing.assert_array_equal(apply(backend, "clip_norm", zero), zero)
    np.testing.assert_array_equal(apply(backend, "clip_norm", np.array([3.0, NAN])), [NAN, NAN])


def test_clip_norm_never_divides_by_less_than_eps(backend: Any) -> None:
    g = np.array([1e-4, 0.0])
    clipped = apply(backend, "clip_norm", g, max_norm=1e-3, eps=1e-2)
    np.testing.assert_allclose(clipped, g * 0.1, rtol=1e-14)


# --- FreeGrad's own -------------------------------------------------------------------------------

FREEGRAD_PARAMS: dict[str, tuple[dict[str, Any], ...]] = {
    "d(ReLU)": ({},),
    "d(Linear)": ({},),
    "rectangular": ({}, {"a": -0.7, "b": 0.1}),
    "triangular": ({}, {"width": 0.3}, {"width": 0.0}),
    "scale": ({}, {"s": 0.3}),
    "clip_norm": ({}, {"max_norm": 0.1}, {"max_norm": 1e3, "eps": 1e-3}),
    "centralize": ({}, {"dim": 0}),
}


@pytest.mark.parametrize("rule", FREEGRAD_PARAMS)
@pytest.mark.needs("torch", "freegrad")
def test_rules_of_freegrads_names_give_its_numbers_in_every_dtype_shape_and_stride(
    rule: str,
) -> None:
    import freegrad
    import torch

    edges = [0.0, -0.0, 0.5, -0.5, 0.7, 0.1, 1.0, 0.3, -0.3, INF, -INF, NAN, 1e30, 1e-30]
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for shape in ((), (0,), (3,), (2, 3, 4), (4, 6), (14,)):
            numbers = (np.asarray(spread(shape, FLOAT32, seed=seed)) for seed in (0, 1))
            x, g = (torch.from_numpy(array).to(dtype) for array in numbers)
            if shape == (14,):
                x = torch.tensor(edges, dtype=dtype)
            if shape == (4, 6):
                x, g = strided(x), strided(g)
            for params in FREEGRAD_PARAMS[rule]:
                if rule == "centralize" and not shape:
                    continue  # FreeGrad's own has no dimension 0 there
                theirs = freegrad.get(rule)(None, g, x, **params)
                ours = xg.get(rule)(None, g, x, **params)
                assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
                is_same = ours.eq(theirs) | (ours.isnan() & theirs.isnan())
                assert is_same.all(), f"{rule}, {params}, {shape}, {dtype}"


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.needs("torch", "freegrad")
def test_a_random_rule_is_zero_where_freegrads_is_and_has_its_spread(name: str) -> None:
    import freegrad
    import torch

    torch.manual_seed(0)
    x = torch.from_numpy(np.linspace(-7, 7, 20001))
    g = torch.ones_like(x)
    theirs, ours = freegrad.get(name)(None, g, x), xg.get(name)(None, g, x)
    assert torch.equal(ours == 0, theirs == 0)
    assert abs(float(ours.mean() - theirs.mean())) < 0.01
    assert abs(float(ours.std() - theirs.std())) < 0.01


# Rules at the ends of a dtype and at far params: against formulas written here, in long double.


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
