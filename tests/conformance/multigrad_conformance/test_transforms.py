"""Every rule that is no factor on the gradient gives the numbers of its formula, in every dtype, on
tensors whose squares and sums overflow, and in every rank that it tells apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

from .expected.transforms import RANDOM_TRANSFORMS, TRANSFORMS
from .oracles import (
    DTYPES,
    FLOAT32,
    FLOAT64,
    Draws,
    assert_same_numbers,
    exact,
    finfo,
    fold_in,
    settings,
    spread,
)

# The same formulas by other packages' names.
OF_PACKAGES = {name for name in TRANSFORMS if "." in name} - {"optax.centralize", "optax.add_noise"}
PARAMS = {"clip_rms": ({"threshold": 1e-3}, {"threshold": 1e3})}  # beside those of `settings`
BY_SHAPE = ("adaptive_clip", "magnitude_aware_sign", "optax.centralize")
SHAPES = ((), (0,), (1, 5), (2, 3, 4), (2, 1, 3, 2), (1, 2, 2, 1, 3))


def check(backend: Any, rule: str, cases: list[tuple[Any, Any]], params: dict[str, Any]) -> None:
    """Compare a rule with its formula on inputs and gradients of one shape and dtype."""
    key = {"key": 5} if rule in RANDOM_TRANSFORMS else {}

    def call(grad_out: Any, tin: Any) -> Any:
        return xg.get(rule)(None, grad_out, tin, **params, **key)

    if backend.name == "jax":  # which compiles each op by itself otherwise
        call = xg.jit(call)
    for x, g in cases:
        with backend.precision(x.dtype):
            grad_in = backend.numpy(call(backend.array(g), backend.array(x)))
        with np.errstate(all="ignore"):
            draws = Draws(fold_in((0, 5), 0), g)
            expected = TRANSFORMS[rule](exact(g), exact(x), draws, **params)
        assert_same_numbers(grad_in, expected, f"{rule}({params}) of {g.shape}, {g.dtype}")


def inputs(rule: str, dtype: Any) -> list[tuple[Any, Any]]:
    """Ordinary numbers; none; and the largest, whose squares and sums overflow."""
    x, g = spread((4, 33), dtype), spread((4, 33), dtype, seed=1)
    g[0, ::5] = 0.0
    x[0, :3] = np.array([0.0, 1.0, -1.0]).astype(dtype)
    if rule in RANDOM_TRANSFORMS:
        return [(x, g)]
    share = 0.02 if dtype == FLOAT64 else 0.2  # the oracle has no wider dtype
    top = np.asarray(share * float(finfo(dtype).max), dtype)
    huge = (np.clip(x, -4, 4) * top).astype(dtype)
    huge[0] = np.asarray(0.5, dtype)
    return [(x, g), (x, np.zeros_like(g)), (huge, (np.clip(g, -4, 4) * top).astype(dtype))]


@pytest.mark.parametrize("rule", sorted(TRANSFORMS))
def test_every_transform_is_that_of_its_formula_also_where_squares_overflow(
    backend: Any, rule: str
) -> None:
    for dtype in (FLOAT32,) if rule in OF_PACKAGES else DTYPES:
        check(backend, rule, inputs(rule, dtype), {})
    for params in (*settings(xg.get(rule)), *PARAMS.get(rule, ())):
        check(backend, rule, inputs(rule, FLOAT32), params)


@pytest.mark.parametrize("rule", BY_SHAPE)
def test_a_transform_that_looks_at_the_shape_does_in_every_rank(backend: Any, rule: str) -> None:
    for shape in SHAPES:
        x, g = (np.asarray(spread(shape, FLOAT32, seed=seed)) for seed in (0, 1))
        check(backend, rule, [(x, g)], {})
