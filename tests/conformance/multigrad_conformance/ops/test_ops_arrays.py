"""Every op over whole arrays, on every backend, against NumPy and SciPy in a wider precision.

What only moves elements must be exact, NaN and infinities included; masks too. Numbers must be
within 4 eps of the exact result, or of the largest value met on the way to it (`SCALES`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

from multigrad.core.trace.xp import all as neutral

from ..oracles import BFLOAT16, DTYPES, FLOAT16, FLOAT32, FLOAT64, finfo, spread
from .test_ops import assert_close, special_rows, widen

xp: Any = neutral  # `xg.xp`, and the functions that only VJPs call
Wide = Any
Function = Callable[..., Any]

# Shapes, and the axes to try for each.
AXES: dict[tuple[int, ...], tuple[int, ...]] = {
    (): (0, -1),
    (3,): (0, -1),
    (1,): (0,),
    (0,): (0,),
    (2, 3, 4): (0, 1, -1, -3),
    (2, 0, 3): (1, 2),
}
SETS: tuple[Any, ...] = (None, 0, -1, (0, 2), (-1, -2), (0, 1, 2))


def inputs(dtype: Any) -> list[tuple[Any, int]]:
    """Arrays with an axis, of all shapes in float32; the last ones hold NaN, infinities, ties and
    zeros.
    """
    tried: dict[Any, Any] = AXES if dtype == FLOAT32 else {(2, 3, 4): (1,)}
    cases = [(spread(shape, dtype), axis) for shape in tried for axis in tried[shape]]
    rows = special_rows(dtype)
    if dtype != FLOAT32:
        return [*cases, (rows, -1)]
    return [*cases, (rows, -1), (rows, 0), (np.zeros((2, 4), dtype), 1), (rows[::-1, ::2], 1)]


def run(backend: Any, function: Function, *given: Any) -> Any:
    """A neutral function on the backend's own tensors."""
    with backend.precision(max((a.dtype for a in given), key=lambda d: d.itemsize)):
        tensors = [backend.array(a) for a in given]
        with np.errstate(all="ignore"):
            return backend.numpy(function(*tensors))


def as_one_axis(x: Any) -> Any:
    """A scalar as an array of one element, for NumPy's own functions."""
    return x.reshape(1) if x.ndim == 0 else x


def exactly_equal(actual: Any, expected: Any, what: str) -> None:
    assert actual.dtype == expected.dtype, what
    assert actual.shape == expected.shape, what
    kind = np.float64 if actual.dtype != bool else bool
    np.testing.assert_array_equal(actual.astype(kind), expected.astype(kind), err_msg=what)


# --- reductions -----------------------------------------------------------------------------------


def power_norm(order: float) -> Function:
    def norm(x: Wide, axis: Any, keepdims: bool) -> Wide:
        size = np.abs(x)
        if order == np.inf:
            return np.max(size, axis=axis, keepdims=keepdims, initial=0)
        return np.sum(size**order, axis=axis, keepdims=keepdims) ** (1 / x.dtype.type(order))

    return norm


def product(x: Wide, axis: Any, keepdims: bool) -> Wide:
    return np.prod(x, axis=axis, keepdims=keepdims)


def count(x: Wide, axis: Any, keepdims: bool) -> Wide:
    return np.sum(x != 0, axis=axis, keepdims=keepdims).astype(x.dtype)


def log_sum_exp(x: Wide, axis: Any, keepdims: bool) -> Wide:
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    total = top + np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True))
    return total if keepdims else np.squeeze(total, axis=axis)


def quantile_of(q: float) -> Function:
    def quantile(x: Wide, axis: Any, keepdims: bool) -> Wide:
        """By counting: the place q * (n - 1) among the sorted values."""
        if axis == ():
            return x
        axes = tuple(range(x.ndim)) if axis is None else np.atleast_1d(axis)
        axes = tuple(i % x.ndim for i in axes)
        rest = [i for i in range(x.ndim) if i not in axes]
        rows = x.transpose(*rest, *axes).reshape([x.shape[i] for i in rest] + [-1])
        result = np.empty(rows.shape[:-1], x.dtype)
        for place in np.ndindex(result.shape):
            values = sorted(rows[place], key=lambda v: (np.isnan(v), v))
            at = q * (len(values) - 1)
            low = int(at)
            share = x.dtype.type(at - low)
            number = values[low]
            if share:
                number = number * (1 - share) + values[low + 1] * share
            result[place] = np.nan if np.isnan(values[-1]) else number
        return (
            result.reshape([1 if i in axes else n for i, n in enumerate(x.shape)])
            if keepdims
            else result
        )

    return quantile


REDUCTIONS: dict[str, tuple[Function, Function, float]] = {
    "prod": (xp.prod, product, 16),
    "count_nonzero": (xp.count_nonzero, count, 0),
    "norm": (lambda x, axis, keepdims: xp.norm(x, axis, keepdims, ord=2), power_norm(2), 4),
    "norm of order 1": (lambda x, axis, keepdims: xp.norm(x, axis, keepdims, 1), power_norm(1), 4),
    "norm of order 3": (lambda x, axis, keepdims: xp.norm(x, axis, keepdims, 3), power_norm(3), 16),
    "norm of order 0.5": (lambda x, axis, keepdims: xp.norm(x, axis, keepdims, 0.5),
        power_norm(0.5), 32),
    "norm of order inf": (lambda x, axis, keepdims: xp.norm(x, axis, keepdims, np.inf),
        power_norm(np.inf), 0),
    "logsumexp": (xp.logsumexp, log_sum_exp, 4),
    "median": (xp.median, quantile_of(0.5), 4),
    "quantile": (lambda x, axis, keepdims: xp.quantile(x, 0.3, axis, keepdims), quantile_of(0.3),
        4),
    "quantile 0": (lambda x, axis, keepdims: xp.quantile(x, 0, axis, keepdims), quantile_of(0.0),
        0),
    "quantile 1": (lambda x, axis, keepdims: xp.quantile(x, 1, axis, keepdims), quantile_of(1.0),
        0),
}  # fmt: skip
# These meet values larger than their result.
PEAKED = {"logsumexp", "median", "quantile"}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_over_any_axes(backend: Any, name: str) -> None:
    function, exact, ulps = REDUCTIONS[name]
    for dtype in DTYPES:
        sets = SETS if dtype == FLOAT32 else SETS[2:4]
        cases = [(spread((2, 3, 4), dtype), axis) for axis in sets]
        cases += [(spread((), dtype), None), (spread((), dtype), -1), (spread((3,), dtype), None)]
        cases += [(special_rows(dtype), -1), (special_rows(dtype), -1), (special_rows(dtype), 0)]
        for (x, axis), keepdims in zip(cases, itertools.cycle((False, True)), strict=False):
            actual = run(backend, lambda t, a=axis, k=keepdims: function(t, axis=a, keepdims=k), x)
            over = () if x.ndim == 0 else axis
            with np.errstate(all="ignore"):
                expected = np.asarray(exact(widen(x), over, keepdims))
                peak = np.max(np.abs(widen(x)), axis=over, keepdims=keepdims, initial=1.0)
            what = f"{name}, {x.shape}, {axis}, {keepdims}, {dtype}"
            assert np.shape(actual) == expected.shape, what
            scale = np.fmax(np.abs(expected), peak) if name in PEAKED else None
            assert_close(actual, expected, dtype, what, scale, ulps)


def test_reductions_of_nothing_give_the_neutral_element(backend: Any) -> None:
    for dtype in DTYPES:
        x = np.zeros((2, 0), dtype)
        for function, expected in (
            (xp.prod, 1),
            (xp.count_nonzero, 0),
            (xp.logsumexp, -np.inf),
            (xp.median, np.nan),
            (lambda x, axis: xp.norm(x, axis, ord=np.inf), 0),
            (lambda x, axis: xp.norm(x, axis, ord=3), 0),
        ):
            actual = run(backend, lambda t, f=function: f(t, axis=1), x)
            exactly_equal(actual, np.full(2, expected, dtype), f"{function}, {dtype}")


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
def test_sixteen_bit_results_round_once(backend: Any, dtype: Any) -> None:
    x = spread(1001, dtype)
    near_one = (1 + 0.02 * spread(1001, FLOAT64)).astype(dtype)
    half = 0.51 * float(finfo(dtype).eps)
    for function, exact, given in (
        (lambda t: xp.cumsum(t, axis=0), np.cumsum, x),
        (lambda t: xp.norm(t, ord=1), lambda w: np.sum(np.abs(w)), x),
        (xp.prod, np.prod, near_one),
        (lambda t: xp.cumprod(t, axis=0), np.cumprod, near_one),
        (lambda t: xp.matmul(t, t), lambda w: w @ w, x),
        (lambda t: xp.einsum("i,i->", t, t), lambda w: w @ w, x),
        (xp.logsumexp, lambda w: np.asarray(special.logsumexp(w)), x),
        (lambda t: xp.softmax(t, 0), lambda w: np.asarray(special.softmax(w)), x),
    ):
        expected = exact(widen(given).astype(np.float64))
        error = np.abs(widen(run(backend, function, given)) - expected)
        loose = 1e-6 * np.abs(widen(given)).sum() * np.minimum(1, np.abs(expected))
        assert (
            error <= half * np.abs(expected) + loose + float(finfo(dtype).smallest_subnormal)
        ).all()


# --- products -------------------------------------------------------------------------------------

PRODUCTS = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((5, 1, 2, 3), (6, 3, 4)),
    ((4, 2, 3), (3,)),
    ((3,), (4, 3, 2)),
    ((2, 0), (0, 3)),
]


@pytest.mark.parametrize(("left", "right"), PRODUCTS)
def test_matmul_takes_vectors_and_broadcasts_batches(backend: Any, left: Any, right: Any) -> None:
    for dtype in DTYPES:
        a, b = spread(left, dtype), spread(right, dtype, seed=1)
        expected = np.asarray(widen(a) @ widen(b))
        actual = run(backend, xp.matmul, a, b)
        assert actual.shape == expected.shape
        scale = np.asarray(np.abs(widen(a)) @ np.abs(widen(b)))
        assert_close(actual, expected, dtype, f"{left} @ {right}, {dtype}", scale)


@pytest.mark.parametrize(("left", "right"), PRODUCTS)
def test_the_cotangents_of_matmul_have_its_operands_shapes(
    backend: Any, left: Any, right: Any
) -> None:
    for dtype in DTYPES:
        a, b = spread(left, dtype), spread(right, dtype, seed=1)
        ct = spread(
            np.shape(a @ b) if dtype not in (BFLOAT16,) else np.shape(widen(a) @ widen(b)),
            dtype,
            seed=2,
        )
        for actual, expected, scale in (
            (
                run(backend, xp.matmul_left, ct, b, a),
                slope(ct, a, b, 0),
                slope(np.abs(ct), np.abs(a), np.abs(b), 0),
            ),
            (
                run(backend, xp.matmul_right, a, ct, b),
                slope(ct, a, b, 1),
                slope(np.abs(ct), np.abs(a), np.abs(b), 1),
            ),
        ):
            assert actual.shape == expected.shape
            assert_close(actual, expected, dtype, f"{left} @ {right}, {dtype}", scale)


def slope(ct: Any, a: Any, b: Any, operand: int) -> Wide:
    """The derivative of `sum(ct * (a @ b))`, element by element: it is linear in each."""
    ct, a, b = map(widen, (ct, a, b))
    moved = (a, b)[operand]
    result = np.zeros_like(moved)
    for place in np.ndindex(moved.shape):
        unit = np.zeros_like(moved)
        unit[place] = 1
        result[place] = np.sum(ct * (unit @ b if operand == 0 else a @ unit))
    return result


SUBSCRIPTS: dict[str, tuple[tuple[int, ...], ...]] = {
    "ij,jk->ik": ((2, 3), (3, 4)),
    "ij,jk": ((2, 3), (3, 4)),
    "bij,bkj->bik": ((2, 3, 4), (2, 5, 4)),
    "i,j->ij": ((2,), (3,)),
    "ij->ji": ((2, 3),),
    "ij->i": ((2, 3),),
    "ij->": ((2, 3),),
    "i,i->": ((3,), (3,)),
    "ij,jk,kl->il": ((2, 3), (3, 4), (4, 2)),
    "ij,ik->jk": ((2, 3), (2, 4)),
    "...ij,...jk->...ik": ((5, 2, 3), (5, 3, 4)),
    "ij,kl->ik": ((2, 3), (4, 2)),
}


@pytest.mark.parametrize("subscripts", SUBSCRIPTS)
def test_einsum(backend: Any, subscripts: str) -> None:
    for dtype in DTYPES:
        given = [spread(shape, dtype, seed=i) for i, shape in enumerate(SUBSCRIPTS[subscripts])]
        wide = [widen(x).astype(np.float64) for x in given]
        expected = np.asarray(np.einsum(subscripts, *wide))
        scale = np.asarray(np.einsum(subscripts, *map(np.abs, wide))) * (
            2 if dtype == FLOAT64 else 1
        )
        actual = run(backend, lambda *t: xp.einsum(subscripts, *t), *given)
        assert actual.shape == expected.shape
        assert_close(actual, expected, dtype, f"{subscripts}, {dtype}", scale)


def test_products_made_of_others(backend: Any) -> None:
    a, b = spread((2, 3), FLOAT64), spread((3, 4), FLOAT64, seed=1)
    for function, given, expected in (
        (xp.outer, (a[0], b[0]), a[0][:, None] * b[0]),
        (xp.vecdot, (a, a), (a * a).sum(-1)),
        (lambda a, b: xp.tensordot(a, b, 1), (a, b), a @ b),
    ):
        np.testing.assert_allclose(run(backend, function, *given), expected, rtol=1e-14)


def test_glu_gates_the_first_half_with_the_second(backend: Any) -> None:
    for dtype in DTYPES:
        for x, axis in ((spread((2, 6), dtype), -1), (spread((4, 3), dtype), 0)):
            first, second = np.split(widen(x), 2, axis)
            expected = first * special.expit(second.astype(np.float64))
            actual = run(backend, lambda t, a=axis: xp.glu(t, a), x)
            assert_close(actual, expected, dtype, f"glu, {dtype}", np.abs(first))


def test_standardize_gives_mean_zero_and_variance_one(backend: Any) -> None:
    x = spread((3, 50), FLOAT32)
    y = run(backend, xp.standardize, x)
    np.testing.assert_allclose(y.mean(1), 0, atol=1e-6)
    np.testing.assert_allclose(y.std(1), 1, rtol=1e-4)


# --- random draws ---------------------------------------------------------------------------------


def draw(backend: Any, function: Function, dtype: Any = FLOAT32) -> Any:
    return run(backend, lambda t: function(t, key=(1, 2)), np.zeros(20_000, dtype))


def test_coins_are_the_uniforms_below_p_on_every_backend(backend: Any) -> None:
    from multigrad.engine import random

    for dtype in DTYPES:
        uniform = random.uniform((1, 2), (20_000,), dtype)
        coins = draw(backend, lambda t, key: xp.bernoulli_like(t, 0.3, key), dtype)
        exactly_equal(coins, (uniform < dtype.type(0.3)).astype(dtype), f"{dtype}")
        signs = draw(backend, xp.rademacher_like, dtype)
        exactly_equal(signs, np.where(uniform < dtype.type(0.5), 1, -1).astype(dtype), f"{dtype}")


def test_probabilities_may_be_a_tensor(backend: Any) -> None:
    x = np.zeros((2, 3), FLOAT32)
    p = np.array([[0, 1, 0], [1, 0, 1]], FLOAT32)
    actual = run(backend, lambda t, p: xp.bernoulli_like(t, p, (1, 2)), x, p)
    np.testing.assert_array_equal(actual, p)


def test_exponential_and_gumbel_draws_are_functions_of_the_uniforms(backend: Any) -> None:
    from multigrad.engine import random

    for dtype in DTYPES:
        wide = FLOAT64 if dtype == FLOAT64 else FLOAT32
        uniform = np.maximum(random.uniform((1, 2), (20_000,), wide), np.finfo(wide).tiny)
        uniform = uniform.astype(np.longdouble)
        for function, expected in (
            (xp.exponential_like, -np.log1p(-uniform)),
            (xp.gumbel_like, -np.log(-np.log(uniform))),
        ):
            actual = draw(backend, function, dtype)
            scale = 1 + np.abs(expected)
            assert np.isfinite(widen(actual)).all()
            assert_close(actual, expected, dtype, f"{function}, {dtype}", scale, 8)
