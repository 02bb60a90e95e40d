"""Every surrogate gradient gives the numbers of its formula, at its defaults and at other params.

One activation: what carries a factor under the others is the same for all, and test_rules.py has
it. In the other dtypes all curves are asked for at once, so that a compiler compiles once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.engine.trace.random_keys import read_key

from .expected.curves import CURVES, NAN_AT_INFINITY, RANDOM_CURVES
from .oracles import (
    DTYPES,
    FLOAT16,
    FLOAT32,
    Draws,
    assert_same_numbers,
    exact,
    fold_in,
    large,
    settings,
)
from .test_rules import KEY, inputs

FILES = "the rule in multigrad/core/rules/library against its row of CURVES in expected/curves.py"


@pytest.mark.parametrize("rule", sorted(CURVES))
def test_every_curve_is_that_of_its_formula(backend: Any, rule: str) -> None:
    for params in ({}, *settings(xg.get(rule))):
        x = inputs(FLOAT32, params)
        g = np.ones_like(x)
        f = xg.lower(xg.get(rule).with_params(**params), backend.name, forward="Heaviside")
        numbers: tuple[Any, ...] = ()
        if rule in RANDOM_CURVES:
            floats = {**xg.get(rule).params, **params}
            key = read_key(backend.row, backend.array(np.array(KEY, np.uint32)))
            numbers = (*(floats[name] for name in sorted(floats)), key)
        _, grad_in = backend.vjp(f, x, g, *numbers)
        with np.errstate(all="ignore"):
            expected = CURVES[rule](exact(x), Draws(KEY, g), **params)
        what = f"{rule}({params}), {backend.name}, {FILES}"
        assert_same_numbers(grad_in, expected, what, tin=x)
        lost = x[np.isnan(expected.value) & ~np.isnan(x)]  # compared with nothing
        assert params or rule in NAN_AT_INFINITY or not lost.size, (
            f"the row {rule!r} of CURVES in expected/curves.py is NaN at tin = {lost}: write it so "
            "that nothing overflows, as super_spike; a periodic one belongs into NAN_AT_INFINITY"
        )


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_every_curve_is_that_of_its_formula_in_every_dtype(backend: Any, dtype: Any) -> None:
    x = inputs(dtype)
    rows = [(rule, params) for rule in CURVES for params in ({}, *settings(xg.get(rule))[:1])]
    if dtype == FLOAT16:  # docs/differences.md has what XLA makes of q_pseudo_spike
        others = [r for r in CURVES if backend.name != "jax" or "pseudo_spike" not in r]
        rows += [(rule, params) for rule in others for params in large(xg.get(rule))]

    def factors(tin: Any) -> list[Any]:
        return [xg.get(rule).factor(tin, **params, **keyed(rule)) for rule, params in rows]

    call = xg.jit(factors) if backend.name == "jax" else factors
    with backend.precision(dtype):
        found = [backend.numpy(factor) for factor in call(backend.array(x))]
    draws = Draws(fold_in((0, 5), 0), np.ones_like(x))
    for (rule, params), factor in zip(rows, found, strict=True):
        with np.errstate(all="ignore"):
            expected = CURVES[rule](exact(x), draws, **params)
            what = f"{rule}({params}), {backend.name}, {dtype}, {FILES}"
            assert_same_numbers(factor, expected, what, tin=x)


def keyed(rule: str) -> dict[str, int]:
    return {"key": 5} if rule in RANDOM_CURVES else {}
