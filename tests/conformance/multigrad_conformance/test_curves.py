"""Every surrogate gradient gives the numbers of its formula, at its defaults and at other params.

One activation: what carries a factor under the others is the same for all, and test_rules.py has
it. In the other dtypes all curves are asked for at once, so that a compiler compiles once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.backend.values import read_key

from .expected.curves import CURVES, RANDOM_CURVES
from .oracles import DTYPES, FLOAT32, Draws, assert_same_numbers, exact, fold_in
from .test_rules import KEY, inputs

# Settings other than the defaults; the thresholds 0.3 and 0.7 are among the inputs.
PARAMS: dict[str, tuple[dict[str, Any], ...]] = {
    "circle": ({"alpha": 30.0},),
    "exponential": ({"alpha": 3.0, "scale": 0.5},),
    "fake_numerical_gradient": ({"alpha": 30.0},),
    "gaussian": ({"mean": 0.3, "sigma": 2.0, "scale": 3.0},),
    "multi_gaussian": ({"mean": 0.3, "sigma": 1.5, "h": 0.3, "s": 2.0, "scale": 3.0},),
    "nonzero_sign_log": ({"alpha": 30.0},),
    "periodic_exponential": ({"width": 0.3, "threshold": 2.0, "scale": 3.0},),
    "piecewise_leaky_relu": ({"w": 0.3, "c": 0.7},),
    "piecewise_quadratic": ({"alpha": 3.0},),
    "q_pseudo_spike": ({"alpha": 3.5},),
    "qkeras.quantized_bits": ({"use_ste": False, "qnoise_factor": 0.3},),
    "rockpool.step_pwl": ({"window": 0.3},),
    "rockpool.threshold_subtract": ({"window": 0.3},),
    "s2nn": ({"alpha": 0.3, "beta": 3.0},),
    "sinabs.Heaviside": ({"window": 0.3, "threshold": 2.0},),
    "sinabs.PeriodicExponential": ({"grad_width": 0.3, "threshold": 2.0},),
    "sinabs.SingleExponential": ({"grad_width": 0.3, "threshold": 2.0},),
    "snntorch.triangular": ({"threshold": 0.7},),
    "spikingjelly.multi_level_spike_count": ({"grad_min": -0.7, "grad_max": 0.3},),
    "spikingjelly.soft_sign": ({"alpha": 0.3},),
    "spikingjelly.squarewave_fourier_series": ({"n": 5, "T_period": 4.0},),
    "spyx.arctan": ({"k": 0.3},),
    "squarewave_fourier": ({"n": 4, "period": 2.0},),
    "stochastic_spike": ({"mean": 0.3, "variance": 2.0},),
    "swish_sign": ({"beta": 0.3}, {"beta": 30.0}),
    "unit_rectangular": ({"alpha": 2.0},),
}


@pytest.mark.parametrize("rule", sorted(CURVES))
def test_every_curve_is_that_of_its_formula(backend: Any, rule: str) -> None:
    x = inputs(FLOAT32)
    g = np.ones_like(x)
    for params in ({}, *PARAMS.get(rule, ())):
        f = xg.lower(xg.get(rule).with_params(**params), backend.name, forward="Heaviside")
        numbers: tuple[Any, ...] = ()
        if rule in RANDOM_CURVES:
            floats = {**xg.get(rule).params, **params}
            key = read_key(backend.row, backend.array(np.array(KEY, np.uint32)))
            numbers = (*(floats[name] for name in sorted(floats)), key)
        _, grad_in = backend.vjp(f, x, g, *numbers)
        with np.errstate(all="ignore"):
            expected = CURVES[rule](exact(x), Draws(KEY, g), **params)
        what = f"{rule}({params}), {backend.name}"
        assert_same_numbers(grad_in, expected, what)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_every_curve_is_that_of_its_formula_in_every_dtype(backend: Any, dtype: Any) -> None:
    x = inputs(dtype)

    def factors(tin: Any) -> list[Any]:
        return [xg.get(rule).factor(tin, **keyed(rule)) for rule in CURVES]

    call = xg.jit(factors) if backend.name == "jax" else factors
    with backend.precision(dtype):
        found = [backend.numpy(factor) for factor in call(backend.array(x))]
    draws = Draws(fold_in((0, 5), 0), np.ones_like(x))
    for (rule, formula), factor in zip(CURVES.items(), found, strict=True):
        with np.errstate(all="ignore"):
            assert_same_numbers(factor, formula(exact(x), draws), f"{rule}, {dtype}")


def keyed(rule: str) -> dict[str, int]:
    return {"key": 5} if rule in RANDOM_CURVES else {}
