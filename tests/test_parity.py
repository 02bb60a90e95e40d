"""The same numbers everywhere: every rule under every activation, on every backend, in every dtype.

The bound is the design's (see `assert_same_numbers`), against float64 oracles. Where a framework differs, its backend
declares it with the reason in `differences.py`, and the declared behavior is what is tested.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import special

import multigrad as xg

from .differences import kept
from .oracles import (
    BFLOAT16,
    DTYPES,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    FORWARDS,
    LIBRARY,
    RULES,
    Draws,
    Exact,
    assert_same_numbers,
    edge_values,
    exact,
    finfo,
    slack,
    spread,
    subnormals,
    where,
)

KEY = (0x1234, 0xFFFF0001)
RANDOM = {"full_jam", "positive_jam", "rectangular_jam", "noise"}
DETERMINISTIC = sorted(set(LIBRARY) - RANDOM)
WHOLE_TENSOR = {"clip_norm", "centralize"}  # one bad element of grad_out spoils the others

# Settings other than the defaults, with thresholds that no float holds exactly.
PARAMS: dict[str, tuple[dict[str, Any], ...]] = {
    "rectangular": ({"a": -0.7, "b": 0.1}, {"a": 1.0, "b": -1.0}),
    "rectangular_jam": ({"a": -0.7, "b": 0.1},),
    "triangular": ({"width": 0.3}, {"width": 3.0}, {"width": 0.0}, {"width": -1.0}),
    "clipped_straight_through": ({"clip": 0.7}, {"clip": 0.0}),
    "arctan": ({"alpha": 0.3}, {"alpha": 50.0}),
    "fast_sigmoid": ({"slope": 0.3}, {"slope": 100.0}),
    "sigmoid_surrogate": ({"alpha": 0.3}, {"alpha": 25.0}),
    "scale": ({"s": -0.3}, {"s": 0.0}),
    "gradient_reversal": ({"alpha": 0.3},),
    "clip_norm": ({"max_norm": 0.1}, {"max_norm": 1e3}),
    "centralize": ({"dim": 0}, {"dim": -2, "keepdim": False}),
    "noise": ({"sigma": 0.3},),
}
THRESHOLDS = (0.1, 0.3, 0.7)
SIZE = 132


def gelu_by_erf(x: Exact) -> Exact:
    return 0.5 * x * (1.0 + (0.5**0.5 * x).apply(special.erf))


def elu_by_exp(x: Exact) -> Exact:
    return where(x > 0, x, x.apply(np.exp) - 1.0)


def is_above_half_the_range(x: Any, params: dict[str, Any]) -> Any:
    return (x.dtype in (FLOAT32, BFLOAT16)) & (x.astype(np.float64) > float(finfo(FLOAT32).max) / 2)


def is_tiny_width_in_float16(x: Any, params: dict[str, Any]) -> Any:
    return np.full(x.shape, x.dtype == FLOAT16 and params.get("width", 1.0) < 2e-5)


# What a backend computes instead of the formula, by its declared rows; and where the result is not settled.
FORMULAS: dict[tuple[str, str], Callable[[Exact], Exact]] = {
    ("torch", "GELU"): gelu_by_erf,
    ("tensorflow", "ELU"): elu_by_exp,
}
UNSETTLED: dict[tuple[str, str], Callable[[Any, dict[str, Any]], Any]] = {
    ("torch", "GELU"): is_above_half_the_range,
    ("jax", "triangular"): is_tiny_width_in_float16,
}


def inputs(dtype: Any) -> Any:
    """Edges and ordinary numbers; always of one length, because jax compiles for each."""
    ends = edge_values(dtype, *THRESHOLDS)
    return np.concatenate([ends, spread(SIZE - ends.size, dtype)])


def formula_of(backend: str, forward: str) -> Callable[[Exact], Exact]:
    return FORMULAS.get((backend, forward), FORWARDS[forward])


def without_unsettled(
    expected: Exact, backend: str, what: str, x: Any, params: dict[str, Any]
) -> Exact:
    """The same, with no bound on the elements that are declared to be unsettled."""
    if (backend, what) not in UNSETTLED:
        return expected
    error = np.where(UNSETTLED[backend, what](x, params), np.inf, expected.error)
    return replace(expected, error=error)


def run(
    backend: Any, rule: str, forward: str, x: Any, g: Any, params: dict[str, Any] | None = None
) -> tuple[Any, Any]:
    """Forward and backward of a lowered rule, as NumPy arrays."""
    rule_ = xg.get(rule).with_params(**(params or {}))
    f = xg.lower(rule_, backend.name, forward=forward)
    if rule not in RANDOM:
        return backend.vjp(f, x, g)
    floats = {**xg.get(rule).params, **(params or {})}
    key = np.array(KEY, np.uint32) if backend.name == "jax" else KEY
    values = [*(floats[name] for name in sorted(floats)), key]
    if backend.name == "numpy":
        return backend.vjp(SimpleNamespace(vjp=lambda tin: f.vjp(tin, *values)), x, g)
    apply = f.apply if backend.name == "torch" else f
    return backend.vjp(lambda tin: apply(tin, *values), x, g)


def expected_gradient(rule: str, x: Any, g: Any, params: dict[str, Any] | None = None) -> Exact:
    with np.errstate(all="ignore"):
        return RULES[rule](exact(g), exact(x), Draws(KEY, g), **(params or {}))


def cotangents(rule: str, like: Any) -> Any:
    """Gradients to push back: ordinary ones, zeros, and where elements are independent also the ends of the range."""
    g = spread(like.shape, like.dtype, seed=1, width=1.0)
    g[::7] *= 0.0
    if rule not in WHOLE_TENSOR:
        ends = edge_values(like.dtype)
        g[-ends.size :] = ends
    return g


def assert_rule(backend: Any, rule: str, forward: str, x: Any, g: Any, **params: Any) -> None:
    y, grad_in = run(backend, rule, forward, x, g, params)
    what = f"{rule}({params}) under {forward}, {backend.name}, {x.dtype}"
    with np.errstate(all="ignore"):
        primal = formula_of(backend.name, forward)(exact(x))
    primal = without_unsettled(primal, backend.name, forward, x, {})
    gradient = without_unsettled(
        expected_gradient(rule, x, g, params), backend.name, rule, x, params
    )
    assert_same_numbers(y, primal, f"forward of {what}")
    assert_same_numbers(grad_in, gradient, f"gradient of {what}")


@pytest.mark.parametrize("rule", LIBRARY)
def test_every_rule_under_every_activation_gives_the_numbers_of_its_formula(
    backend: Any, rule: str
) -> None:
    for dtype in (FLOAT32, FLOAT64):
        x = inputs(dtype)
        g = cotangents(rule, x)
        for forward in FORWARDS:
            assert_rule(backend, rule, forward, x, g)


@pytest.mark.parametrize("rule", LIBRARY)
def test_every_rule_keeps_its_numbers_with_other_params_and_in_sixteen_bits(
    backend: Any, rule: str
) -> None:
    for dtype in DTYPES:
        x = inputs(dtype)
        g = cotangents(rule, x)
        if rule in WHOLE_TENSOR:
            x, g = x.reshape(2, 3, -1), g.reshape(2, 3, -1)
        for params in ({}, *PARAMS.get(rule, ())):
            assert_rule(backend, rule, "Heaviside", x, g, **params)


def test_a_window_without_end_is_closed_by_the_other_side(backend: Any) -> None:
    x = inputs(FLOAT32)
    for params in ({"a": -np.inf, "b": 0.3}, {"a": 0.1, "b": np.inf}, {"a": -np.inf, "b": np.inf}):
        assert_rule(backend, "rectangular", "Heaviside", x, spread(x.shape, FLOAT32), **params)


def is_within(actual: Any, expected: Exact, more: float = 0.0) -> Any:
    return np.abs(actual.astype(np.float64) - expected.value) <= expected.error + more


@pytest.mark.parametrize("rule", sorted(set(LIBRARY) - WHOLE_TENSOR))
def test_subnormal_inputs_count_as_themselves_or_where_flushed_as_zero(
    backend: Any, rule: str
) -> None:
    for dtype in DTYPES:
        x = np.resize(subnormals(dtype), SIZE)
        g = spread(x.shape, dtype)
        _, grad_in = run(backend, rule, "Heaviside", x, g)
        right = is_within(grad_in, expected_gradient(rule, x, g))
        if kept(backend.name, "subnormals", "*"):
            right |= is_within(grad_in, expected_gradient(rule, x * 0, g), slack(dtype))
        assert right.all(), f"{rule}, {dtype}: {grad_in} for {g}"


@pytest.mark.parametrize("forward", FORWARDS)
def test_subnormal_activations_are_exact_or_where_flushed_zero(backend: Any, forward: str) -> None:
    for dtype in DTYPES:
        x = np.resize(subnormals(dtype), SIZE)
        y, _ = run(backend, "d(Linear)", forward, x, np.ones_like(x))
        right = is_within(y, FORWARDS[forward](exact(x)))
        if kept(backend.name, "subnormals", "*"):
            right |= is_within(y, FORWARDS[forward](exact(x * 0)), slack(dtype))
        assert right.all(), f"{forward}, {dtype}: {y} for {x}"


SHAPES = ((), (0,), (3,), (2, 3, 4))


@pytest.mark.parametrize("rule", LIBRARY)
def test_every_rule_works_on_every_shape(backend: Any, rule: str) -> None:
    for shape in SHAPES:
        x, g = spread(shape, FLOAT32), spread(shape, FLOAT32, seed=1)
        assert_rule(backend, rule, "LeakyReLU", x, g)


def transposed_and_strided(x: Any) -> Any:
    return x.T[::2]


@pytest.mark.backends("numpy", "torch")
def test_strided_inputs_and_expanded_gradients_give_the_same_numbers(backend: Any) -> None:
    for rule in DETERMINISTIC:
        assert_strided(backend, rule)


def assert_strided(backend: Any, rule: str) -> None:
    base = spread((4, 6), FLOAT32)
    x, one = transposed_and_strided(base), np.float32(0.5)
    f = xg.lower(rule, backend.name, forward="Tanh")
    if backend.name == "numpy":
        y, pullback = f.vjp(x)
        grad_in = pullback(np.broadcast_to(one, x.shape))
    else:
        import torch

        primal = transposed_and_strided(torch.from_numpy(base)).requires_grad_()
        out = f.apply(primal)
        (gradient,) = torch.autograd.grad((out * one).sum(), primal)
        y, grad_in = out.detach().numpy(), gradient.numpy()
    assert_same_numbers(y, FORWARDS["Tanh"](exact(x)), "forward")
    expected = expected_gradient(rule, x, np.broadcast_to(one, x.shape))
    assert_same_numbers(grad_in, expected, f"gradient of {rule}")


def compiled(backend: Any, f: Callable[..., Any]) -> Callable[..., Any]:
    if backend.name == "jax":
        import jax

        return jax.jit(f)
    import tensorflow as tf

    return tf.function(f, jit_compile=True)


@pytest.mark.backends("jax", "tensorflow")
def test_the_xla_compiler_keeps_the_numbers(backend: Any) -> None:
    x, g = spread(SIZE, FLOAT32), spread(SIZE, FLOAT32, seed=1)
    for rule in DETERMINISTIC:
        f = xg.lower(rule, backend.name, forward="Softplus")
        y, grad_in = backend.vjp(compiled(backend, f), x, g)
        assert_same_numbers(y, FORWARDS["Softplus"](exact(x)), "forward")
        assert_same_numbers(grad_in, expected_gradient(rule, x, g), f"gradient of {rule}")


def test_an_infinite_gradient_at_a_closed_mask_is_nan_everywhere(backend: Any) -> None:
    # grad_out * mask, as FreeGrad writes it: 0 * inf. An exploded gradient is not hidden.
    x = np.array([-1.0, 0.1, 1.0], np.float32)
    g = np.array([np.inf, np.inf, np.nan], np.float32)
    _, grad_in = run(backend, "rectangular", "Heaviside", x, g)
    np.testing.assert_array_equal(grad_in, np.array([np.nan, np.inf, np.nan], np.float32))


def test_a_norm_beyond_the_range_clips_to_zero_everywhere(backend: Any) -> None:
    # The squares overflow, as in torch.nn.utils.clip_grad_norm_ and optax.clip_by_global_norm.
    for dtype, huge in ((FLOAT32, 1e30), (FLOAT64, 1e200), (FLOAT16, 6e4), (BFLOAT16, 1e30)):
        g = np.array([huge, -huge, 1.0]).astype(dtype)
        _, grad_in = run(backend, "clip_norm", "Linear", g, g)
        np.testing.assert_array_equal(grad_in.astype(np.float64), [0.0, 0.0, 0.0])


def test_sixteen_bit_norms_and_means_are_accumulated_in_float32(backend: Any) -> None:
    for dtype, error in ((FLOAT16, 2e-3), (BFLOAT16, 1.6e-2)):
        g = np.full(4096, 1.0).astype(
            dtype
        )  # a float16 sum of ones stops at 2048, a bfloat16 one at 256
        _, grad_in = run(backend, "clip_norm", "Linear", g, g)
        np.testing.assert_allclose(grad_in.astype(np.float64), 1 / 64, rtol=error)
        _, grad_in = run(backend, "centralize", "Linear", g, g)
        np.testing.assert_array_equal(grad_in.astype(np.float64), 0.0)


# --- the declared differences -----------------------------------------------------------------------


@pytest.mark.needs("torch", "jax", "tensorflow")
def test_what_backends_declare_of_values_and_rules_is_what_is_tested_here() -> None:
    declared = {
        (backend, row.what)
        for backend in ("numpy", "torch", "jax", "tensorflow")
        for kind in ("value", "rule")
        for row in kept(backend, kind)
        if row.ulps is None
    }
    assert declared == {*FORMULAS, *UNSETTLED}


@pytest.mark.backends("torch", "tensorflow")
def test_a_declared_formula_is_needed(backend: Any) -> None:
    for name in [name for framework, name in FORMULAS if framework == backend.name]:
        for dtype in (FLOAT32, FLOAT64):
            x = np.linspace(-8, 1, 500).astype(dtype) ** 3 / 64
            y, _ = run(backend, "d(Linear)", name, x, np.ones_like(x))
            with np.errstate(all="ignore"):
                expected = FORWARDS[name](exact(x))
            with pytest.raises(AssertionError, match="differ"):
                assert_same_numbers(y, expected, name)


@pytest.mark.backends("jax")
def test_a_tiny_width_in_float16_is_still_beyond_jax(backend: Any) -> None:
    x, g = np.array([0.0, 1e-6, 0.5], np.float16), np.ones(3, np.float16)
    _, grad_in = run(backend, "triangular", "Linear", x, g, {"width": 1e-6})
    expected = expected_gradient("triangular", x, g, {"width": 1e-6})
    with pytest.raises(AssertionError, match="differ"):
        assert_same_numbers(grad_in, expected, "triangular")


@pytest.mark.backends("jax", "tensorflow")
def test_what_flushes_subnormal_numbers_still_does(backend: Any) -> None:
    for dtype in (FLOAT32, FLOAT64, BFLOAT16):
        x = subnormals(dtype)
        _, grad_in = run(backend, "scale", "Linear", x, x, {"s": 0.5})
        assert (grad_in == 0).all()
