"""Surrogate gradients as people name them: what is the same and what differs by package, edges,
sixteen bits, the derivative as a function.

Their numbers on each backend are in the conformance suite (test_curves.py).
"""

from __future__ import annotations

import contextlib
import copy
import math
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad_conformance.expected.curves import CURVES, NAN_AT_INFINITY, RANDOM_CURVES
from multigrad_conformance.oracles import BFLOAT16, FLOAT16, FLOAT32, LARGE

LIBRARY = "multigrad/core/rules/library"
X = np.array([-2.0, -0.25, -0.0, 0.0, 0.25, 2.0], np.float32)
each_curve = pytest.mark.parametrize("name", sorted(CURVES))


def keyed(name: str) -> dict[str, Any]:
    return {"key": 3} if name in RANDOM_CURVES else {}


@each_curve
def test_no_finite_input_overflows_in_sixteen_bits(name: str) -> None:
    for dtype, top in ((FLOAT16, 65504.0), (BFLOAT16, 3.3e38)):
        ends = [0.0, 6e-8, 1e-4, 0.5, 1.0, 20.0, 255.0, 300.0, 0.5 * top, top]
        x = np.array([*ends, *[-end for end in ends]]).astype(dtype)
        factor = xg.get(name).factor(x, **keyed(name))
        assert factor.dtype == dtype
        wrong = ~(np.abs(factor.astype(np.float32)) <= 30)
        rows = [*zip(x[wrong], factor[wrong], strict=True)]
        assert not rows, f"{name} of {LIBRARY} in {dtype}: (tin, factor): {rows}; expected <= 30"


def with_one_param(name: str, *numbers: float) -> Iterator[dict[str, float]]:
    """Give each float of a rule, by itself, each of the numbers that is in its range."""
    rule = xg.get(name)
    floats = [param for param, default in rule.params.items() if isinstance(default, float)]
    for params in ({param: number} for param in floats for number in numbers):
        with contextlib.suppress(xg.RuleError):
            rule.with_params(**rule.params | params)
            yield params


@pytest.mark.parametrize("name", sorted({*CURVES} - RANDOM_CURVES))
def test_a_large_param_does_not_overflow_on_the_way_in_float16(name: str) -> None:
    x = np.array([0.0, 6e-8, 1e-4, 0.5, 1.0, 20.0, 200.0, 255.0, 299.0, 3e4, 6.5e4])
    x = np.concatenate([x, -x]).astype(np.float16)
    for params in with_one_param(name, LARGE):
        factor = xg.get(name).factor(x, **params).astype(np.float64)
        exact = xg.get(name).factor(x.astype(np.float64), **params)
        wrong = ~(abs(factor - exact) <= 4 * 2.0**-10 * np.fmax(1, abs(exact).max()))
        rows = [*zip(x[wrong], factor[wrong], exact[wrong], strict=True)]
        assert not rows, f"{name}({params}) of {LIBRARY}: (tin, in float16, in float64): {rows}"


@pytest.mark.needs("jax")
def test_the_difference_of_a_fused_power_in_float16_is_needed_and_enough() -> None:
    import jax

    x = np.linspace(0, 2, 9999).astype(np.float16)
    factor = xg.get("q_pseudo_spike").with_params(alpha=LARGE).factor
    exact = factor(x.astype(np.float64))
    fused, eager = (np.asarray(f(jax.numpy.asarray(x))) for f in (xg.jit(factor), factor))
    assert 4 * 2.0**-10 < abs(fused - exact).max() <= 0.15  # half an eps, 300 times
    assert abs(eager - exact).max() <= 4 * 2.0**-10


@each_curve
def test_a_param_for_which_there_is_no_number_is_out_of_range(name: str) -> None:
    x = np.array([*X, 100.0, -100.0, 1e30, -1e30], np.float32)
    for params in with_one_param(name, 0.0, -1.0, math.inf, -math.inf):
        factor = xg.get(name).factor(x, **params, **keyed(name))
        assert np.isfinite(factor).all(), (
            f"{name}({params}) at {x} is {factor}: exclude it by ranges= of @register, in {LIBRARY}"
        )


@each_curve
def test_at_infinity_a_curve_has_its_limit_or_none(name: str) -> None:
    factor = xg.get(name).factor(np.array([np.inf, -np.inf], np.float32), **keyed(name))
    has_limit = name not in NAN_AT_INFINITY
    assert np.isfinite(factor).all() if has_limit else np.isnan(factor[0]), (
        f"{name} at [inf, -inf] is {factor}: write it in {LIBRARY} so that nothing overflows; "
        "if it is periodic, add it to NAN_AT_INFINITY of multigrad_conformance/expected/curves.py"
    )


@each_curve
def test_without_the_forwards_input_the_factor_is_one(name: str) -> None:
    for params in ({}, *with_one_param(name, 0.3, 3.0)):
        given = xg.get(name)(None, X, None, **params, **keyed(name))
        np.testing.assert_array_equal(given, X, f"{name}({params}) of {LIBRARY} without tin")


def landmark(name: str, x: float, **params: float) -> float:
    return float(xg.get(name).factor(np.array([x], np.float64), **params)[0])


def test_one_name_is_one_curve_and_a_packages_own_is_under_its_name() -> None:
    # superspike: the slope, the height, and the paper's square forgotten
    assert landmark("norse.super", 1.0, alpha=3.0) == pytest.approx(1 / 16)
    assert landmark("spikingjelly.super_spike", 1.0, alpha=3.0) == pytest.approx(3 / 4)
    assert landmark("snnax.superspike", 1.0, beta=3.0) == pytest.approx(1 / 4)
    # triangular: a width, a slope, a height, no triangle at all
    assert landmark("triangular", 0.25) == pytest.approx(0.75)
    assert landmark("spyx.triangular", 0.25) == pytest.approx(0.5)
    assert landmark("norse.triangle", 0.25) == pytest.approx(0.3 * 0.75)
    assert landmark("snntorch.triangular", 0.25) == -1.0
    # arctan: its heights at zero
    assert landmark("arctan", 0.0) == 1.0
    assert landmark("spyx.arctan", 0.0) == pytest.approx(1 / np.pi)
    assert landmark("braintools.arctan", 0.0) == 0.5
    # the terms of a series, and a sign in q-PseudoSpike
    assert landmark("squarewave_fourier", 0.0, n=3) == pytest.approx(3 / 2)
    assert landmark("spikingjelly.squarewave_fourier_series", 0.0, n=3) == pytest.approx(1.0)
    assert landmark("q_pseudo_spike", 1.0) == pytest.approx(1 / 9)
    assert landmark("braintools.q_pseudo_spike", 1.0) == pytest.approx(9 / 25)


def test_edges_of_windows_are_those_that_are_stated() -> None:
    edges = {
        ("unit_rectangular", 0.5): 0.0,
        ("spyx.boxcar", 1.0): 0.0,
        ("snnax.piecewise", 0.5): 0.0,
        ("sinabs.Heaviside", -1.0): 1.0,
        ("piecewise_leaky_relu", 1.0): 0.01,
        ("braintools.piecewise_leaky_relu", 1.0): 0.5,
        ("sparse_fast_sigmoid", 1.0): 0.0,
        ("leaky_k_relu", -0.0): 1.0,
        ("leaky_spike", 0.0): 0.1,
        ("snntorch.heaviside", 0.0): 0.0,
        ("log_tailed_relu", 0.0): 0.0,
        ("log_tailed_relu", 1.0): 1.0,
        ("fake_numerical_gradient", -0.0): 0.3,
        ("spikingjelly.multi_level_spike_count", 1.0): 1.0,
        ("s2nn", -0.0): 1.0,
    }
    for (name, x), expected in edges.items():
        assert landmark(name, x) == pytest.approx(expected), (name, x)


def test_a_packages_own_spelling_means_its_rule() -> None:
    for spelled, name in (
        ("spikingjelly.ATan", "spikingjelly.atan"),
        ("spikingjelly.PiecewiseLeakyReLU", "spikingjelly.piecewise_leaky_relu"),
        ("snntorch.FastSigmoid", "snntorch.fast_sigmoid"),
        ("sinabs.single_exponential", "sinabs.SingleExponential"),
    ):
        assert xg.get(spelled) is xg.get(name)
        assert spelled not in xg.rules()
        act = xg.activation("Heaviside", spelled)
        assert pickle.loads(pickle.dumps(act)).rule == spelled
    with pytest.raises(xg.RuleError, match=r"did you mean 'spikingjelly\.atan'"):
        xg.get("spikingjelly.ATam")


def test_a_name_registered_later_wins_over_another_spelling() -> None:
    act = xg.activation("Heaviside", "spikingjelly.ATan")
    _, pull = xg.vjp(act, X)
    assert pull(np.ones_like(X))[0][2] == 1.0
    xg.register("spikingjelly.ATan")(lambda ctx, grad_out, tin: grad_out * 7.0)
    try:
        _, pull = xg.vjp(act, X)
        assert pull(np.ones_like(X))[0][2] == 7.0
    finally:
        xg.unregister("spikingjelly.ATan")
    _, pull = xg.vjp(act, X)
    assert pull(np.ones_like(X))[0][2] == 1.0


# --- the factor -----------------------------------------------------------------------------------


def test_the_factor_is_the_rule_for_a_gradient_of_ones(backend: Any) -> None:
    x = backend.array(X)
    for name, params in (("triangular", {"width": 2.0}), ("arctan", {}), ("rectangular", {})):
        rule = xg.get(name)
        given = backend.numpy(rule.factor(x, **params))
        expected = backend.numpy(rule(None, backend.array(np.ones_like(X)), x, **params))
        np.testing.assert_array_equal(given, expected)
        assert given.dtype == FLOAT32
        bound = rule.with_params(**params).factor
        np.testing.assert_array_equal(backend.numpy(bound(x)), expected)


def test_the_factor_of_a_chain_is_the_product_of_its_parts_compiled_too(backend: Any) -> None:
    factor = xg.compose("triangular", "scale").factor

    def scaled(x: Any) -> Any:
        return factor(x, **{"scale.s": 3.0, "width": 2.0})

    for run in (scaled, scaled if backend.name == "numpy" else xg.jit(scaled)):
        given = backend.numpy(run(backend.array(X)))
        np.testing.assert_allclose(given, 3 * np.maximum(1 - abs(X) / 2, 0), rtol=1e-6)


def test_the_factor_of_a_membrane_and_its_threshold(backend: Any) -> None:
    v = backend.array(X + 1)
    triangle = xg.get("triangular").factor(v, 1.0)
    np.testing.assert_allclose(backend.numpy(triangle), np.maximum(1 - abs(X), 0), atol=1e-6)
    decaying = xg.get("sinabs.SingleExponential").factor(v, 2.0, grad_width=0.25)
    expected = np.exp(-abs(X - 1) / 0.5) / 0.5
    np.testing.assert_allclose(backend.numpy(decaying), expected, rtol=1e-5)


def test_the_factor_is_copied_and_says_what_is_wrong() -> None:
    factor = xg.get("triangular").with_params(width=4.0).factor
    for other in (copy.deepcopy(factor), pickle.loads(pickle.dumps(factor))):
        np.testing.assert_array_equal(other(X), factor(X))
    with pytest.raises(xg.RuleError, match="'widht'; did you mean 'width'"):
        xg.get("triangular").factor(X, widht=2.0)
    with pytest.raises(xg.GradientError):
        xg.get("triangular").factor(np.arange(3))


# --- the value at the jump ------------------------------------------------------------------------


@pytest.mark.parametrize("at_zero", [1.0, 0.5, 0.0, -2])
def test_a_step_has_the_value_at_zero_that_is_asked_for(backend: Any, at_zero: float) -> None:
    x = np.array([-1.0, -0.0, 0.0, 1.0, np.nan, np.inf], np.float32)
    expected = np.array([0.0, at_zero, at_zero, 1.0, 0.0, 1.0], np.float32)
    for act in (
        xg.activation("Heaviside", "arctan", at_zero=at_zero),
        xg.activation(f"heaviside(at_zero={at_zero})", "arctan"),
        xg.activation("Heaviside", at_zero=at_zero),
    ):
        with xg.use("d(ReLU)"):
            np.testing.assert_array_equal(backend.numpy(act(backend.array(x))), expected)
    for dtype in (FLOAT16, BFLOAT16):
        f = xg.lower("triangular", backend.name, forward=f"Heaviside(at_zero={at_zero})")
        y, grad = backend.vjp(f, x[:4].astype(dtype), np.ones(4).astype(dtype))
        np.testing.assert_array_equal(y, expected[:4].astype(dtype))
        np.testing.assert_array_equal(grad, np.array([0, 1, 1, 0]).astype(dtype))


def test_its_gradient_is_that_of_the_rule_or_zero(backend: Any) -> None:
    g = backend.array(np.ones_like(X))
    for rule, expected in (("d(ReLU)", X > 0), (None, 0 * X)):
        _, pull = xg.vjp(xg.activation("Heaviside", rule, at_zero=1.0), backend.array(X))
        np.testing.assert_array_equal(backend.numpy(pull(g)[0]), expected)


def test_it_is_part_of_what_is_copied_saved_and_shown() -> None:
    act = xg.activation("Heaviside", "triangular", {"width": 2.0}, at_zero=1)
    assert repr(act).startswith("activation('Heaviside(at_zero=1.0)', rule='triangular'")
    for other in (copy.deepcopy(act), pickle.loads(pickle.dumps(act))):
        np.testing.assert_array_equal(other(X), (X >= 0).astype(np.float32))
    spike = xg.get("triangular").under("Heaviside(at_zero=1.0)")
    spike(X, 2.0)
    np.testing.assert_array_equal(xg.from_dict(spike.to_dict())(X, 2.0), (X >= 0) * 1.0)
    assert xg.parity(act, X, backends=["numpy"]).ok


@pytest.mark.parametrize(
    ("forward", "at_zero", "message"),
    [
        ("ReLU", 1.0, "'ReLU' takes no at_zero"),
        ("ReLU(at_zero=1.0)", None, "'ReLU' takes no at_zero"),
        ("Heaviside", np.nan, "finite number"),
        ("Heaviside", True, "at_zero is a number"),
        ("Heaviside", "1", "at_zero is a number"),
        ("Heaviside(at_zero=one)", None, "'one' is not a number"),
        ("Heavyside(at_zero=1.0)", None, "did you mean 'Heaviside'"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(forward: str, at_zero: Any, message: str) -> None:
    with pytest.raises(xg.RuleError, match=message):
        xg.activation(forward, "arctan", at_zero=at_zero)
