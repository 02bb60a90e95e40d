"""The same numbers everywhere: every rule under every activation, on every backend, in every dtype.

The bound is the design's (see `assert_same_numbers`), against float64 oracles. Where a framework
differs, its backend declares it with the reason in its `differences`, and the declared behavior is
what is tested.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.ir.op import INTEGERS
from multigrad.engine.backend.differences import ALL, KINDS
from multigrad.engine.trace.random_keys import read_key

from .differences import flushes, kept, unsettled
from .oracles import (
    BFLOAT16,
    DTYPES,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    FORWARDS,
    LIBRARY,
    RULES,
    UNDER_RULES,
    Draws,
    Exact,
    assert_same_numbers,
    edge_values,
    exact,
    settings,
    slack,
    spread,
    subnormals,
)

KEY = (0x1234, 0xFFFF0001)
RANDOM = {"full_jam", "positive_jam", "rectangular_jam", "noise"}
DETERMINISTIC = sorted(set(LIBRARY) - RANDOM)
WHOLE_TENSOR = {"clip_norm", "centralize"}  # one bad element of grad_out spoils the others

# Beside those of `settings`.
PARAMS: dict[str, tuple[dict[str, Any], ...]] = {
    "rectangular": ({"a": 1.0, "b": 1.0},),
    "clip_norm": ({"max_norm": 1e3},),
    "centralize": ({"dim": -2, "keepdim": False},),
}
THRESHOLDS = (0.1, 0.3, 0.7)
SIZE = 132


def inputs(dtype: Any, params: dict[str, Any] | None = None) -> Any:
    """Edges, where params may be thresholds, and ordinary numbers; always of one length, because
    jax compiles for each.
    """
    floats = [value for value in (params or {}).values() if value and isinstance(value, float)]
    ends = edge_values(dtype, *(floats or THRESHOLDS))
    return np.concatenate([ends, spread(SIZE - ends.size, dtype)])


def formula_of(backend: str, forward: str) -> Callable[[Exact], Exact]:
    """The activation's, unless the backend declares that it computes another one."""
    rows = [row for row in kept(backend, "value", forward) if row.formula is not None]
    return rows[0].formula if rows and rows[0].formula else FORWARDS[forward]


def without_unsettled(
    expected: Exact, backend: str, what: str, x: Any, params: dict[str, Any]
) -> Exact:
    """The same, with no bound on the elements that are declared to be unsettled."""
    error = np.where(unsettled(backend, what, x, params), np.inf, expected.error)
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
    key = read_key(backend.row, backend.array(np.array(KEY, np.uint32)))
    return backend.vjp(f, x, g, *(floats[name] for name in sorted(floats)), key)


def expected_gradient(rule: str, x: Any, g: Any, params: dict[str, Any] | None = None) -> Exact:
    with np.errstate(all="ignore"):
        return RULES[rule](exact(g), exact(x), Draws(KEY, g), **(params or {}))


def cotangents(rule: str, like: Any) -> Any:
    """Gradients to push back: ordinary ones, zeros, and where elements are independent also the
    ends of the range.
    """
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
        for forward in UNDER_RULES:
            assert_rule(backend, rule, forward, x, g)


@pytest.mark.parametrize("rule", LIBRARY)
def test_every_rule_keeps_its_numbers_with_other_params_and_in_sixteen_bits(
    backend: Any, rule: str
) -> None:
    for dtype, params in itertools.product(
        DTYPES, ({}, *settings(xg.get(rule)), *PARAMS.get(rule, ()))
    ):
        x = inputs(dtype, params)
        g = cotangents(rule, x)
        if rule in WHOLE_TENSOR:
            x, g = x.reshape(2, 3, -1), g.reshape(2, 3, -1)
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
        if flushes(backend.name, dtype):
            right |= is_within(grad_in, expected_gradient(rule, x * 0, g), slack(dtype))
        assert right.all(), f"{rule}, {dtype}: {grad_in} for {g}"


@pytest.mark.parametrize("forward", FORWARDS)
def test_subnormal_activations_are_exact_or_where_flushed_zero(backend: Any, forward: str) -> None:
    for dtype in DTYPES:
        x = np.resize(subnormals(dtype), SIZE)
        y, _ = run(backend, "d(Linear)", forward, x, np.ones_like(x))
        right = is_within(y, formula_of(backend.name, forward)(exact(x)))
        if flushes(backend.name, dtype):
            right |= is_within(y, formula_of(backend.name, forward)(exact(x * 0)), slack(dtype))
        assert right.all(), f"{forward}, {dtype}: {y} for {x}"


SHAPES = ((), (0,), (3,), (2, 3, 4))


@pytest.mark.parametrize("rule", LIBRARY)
def test_every_rule_works_on_every_shape(backend: Any, rule: str) -> None:
    for shape in SHAPES:
        x, g = spread(shape, FLOAT32), spread(shape, FLOAT32, seed=1)
        assert_rule(backend, rule, "LeakyReLU", x, g)


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


# --- the declared differences ---------------------------------------------------------------------


def test_a_declared_formula_is_needed(backend: Any) -> None:
    for row in [row for row in kept(backend.name, "value") if row.formula is not None]:
        for dtype in (FLOAT32, FLOAT64):
            x = np.linspace(-8, 1, 500).astype(dtype) ** 3 / 64
            y, _ = run(backend, "d(Linear)", row.what, x, np.ones_like(x))
            with np.errstate(all="ignore"):
                expected = FORWARDS[row.what](exact(x))
            with pytest.raises(AssertionError, match="differ"):
                assert_same_numbers(y, expected, row.what)


def test_subnormal_numbers_are_flushed_where_that_is_declared_and_nowhere_else(
    backend: Any,
) -> None:
    for dtype in DTYPES:
        x = subnormals(dtype)
        _, grad_in = run(backend, "scale", "Linear", x, x, {"s": 2.0})
        assert ((grad_in == 0) == flushes(backend.name, dtype)).all(), dtype


def test_a_declared_difference_is_of_something_that_is_tested(backend: Any) -> None:
    for row in backend.row.differences.kept:
        assert row.kind in KINDS
        assert set(row.dtypes) <= {*ALL, *(INTEGERS if row.kind == "integers" else ())}
        assert row.figure and row.reason
        assert (
            row.kind not in ("value", "rule", "slope") or row.ulps or row.formula or row.unsettled
        )
        op = row.what.split(",")[0]
        is_known = op in {*FORWARDS, *LIBRARY} or hasattr(xg.xp, op)
        assert row.what == "*" or is_known or "." in op, row.what  # a name of the library's own
