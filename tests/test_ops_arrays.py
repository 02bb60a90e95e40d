"""Every op over whole arrays, on every backend, against NumPy and SciPy in a wider precision.

What only moves elements must be exact, NaN and infinities included; masks too. Numbers must be within 4 eps of
the exact result, or of the largest value met on the way to it (`SCALES`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

import multigrad as xg
from multigrad.ir import arrays, neutral, ops, ordering, shapes
from multigrad.ir.op import Op

from .oracles import BFLOAT16, DTYPES, FLOAT16, FLOAT32, FLOAT64, finfo, spread
from .test_ops import assert_close, special_rows, widen

xp: Any = neutral  # `xg.xp`, and the functions that only VJPs call
Wide = Any
Function = Callable[..., Any]

# Shapes, and the axes to try for each.
AXES: dict[tuple[int, ...], tuple[int, ...]] = {
    (): (0, -1), (3,): (0, -1), (1,): (0,), (0,): (0,), (2, 3, 4): (0, 1, -1, -3), (2, 0, 3): (1, 2),
}  # fmt: skip
SETS: tuple[Any, ...] = (None, 0, -1, (0, 2), (-1, -2), (0, 1, 2))


def inputs(dtype: Any) -> list[tuple[Any, int]]:
    """Arrays with an axis, of all shapes in float32; the last ones hold NaN, infinities, ties and zeros."""
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


# --- reductions ---------------------------------------------------------------------------------------


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
    "norm of order 0.5": (lambda x, axis, keepdims: xp.norm(x, axis, keepdims, 0.5), power_norm(0.5), 32),
    "norm of order inf": (lambda x, axis, keepdims: xp.norm(x, axis, keepdims, np.inf), power_norm(np.inf), 0),
    "logsumexp": (xp.logsumexp, log_sum_exp, 4),
    "median": (xp.median, quantile_of(0.5), 4),
    "quantile": (lambda x, axis, keepdims: xp.quantile(x, 0.3, axis, keepdims), quantile_of(0.3), 4),
    "quantile 0": (lambda x, axis, keepdims: xp.quantile(x, 0, axis, keepdims), quantile_of(0.0), 0),
    "quantile 1": (lambda x, axis, keepdims: xp.quantile(x, 1, axis, keepdims), quantile_of(1.0), 0),
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
            (xp.prod, 1), (xp.count_nonzero, 0), (xp.logsumexp, -np.inf), (xp.median, np.nan),
            (lambda x, axis: xp.norm(x, axis, ord=np.inf), 0), (lambda x, axis: xp.norm(x, axis, ord=3), 0),
        ):  # fmt: skip
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


# --- along one axis, the shape kept --------------------------------------------------------------------


def softmax(x: Wide, axis: Any) -> Wide:
    powers = np.exp(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
    return powers / np.sum(powers, axis=axis, keepdims=True)


def log_softmax(x: Wide, axis: Any) -> Wide:
    shifted = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


def reversed_sum(x: Wide, axis: int) -> Wide:
    return np.flip(np.cumsum(np.flip(x, axis), axis=axis), axis)


def running_size(x: Wide, axis: int) -> Wide:
    return np.cumsum(np.abs(x), axis=axis)


def whole_size(x: Wide, axis: int) -> Wide:
    return np.ones_like(x) * np.sum(np.abs(x), axis=axis, keepdims=True)


def distance(x: Wide, axis: int) -> Wide:
    return softmax(x, axis) * (
        4 + np.abs(x) + np.max(np.abs(x), axis=axis, keepdims=True, initial=0)
    )


ALONG: dict[str, tuple[Function, Function, Function | None, float]] = {
    "cumsum": (xp.cumsum, lambda x, axis: np.cumsum(x, axis=axis), running_size, 4),
    "cumsum reversed": (lambda x, axis: xp.cumsum(x, axis, reverse=True), reversed_sum, lambda x, axis: reversed_sum(np.abs(x), axis), 4),
    "cumprod": (xp.cumprod, lambda x, axis: np.cumprod(x, axis=axis), None, 16),
    "softmax": (xp.softmax, softmax, distance, 4),
    "log_softmax": (xp.log_softmax, log_softmax, lambda x, axis: 1 + whole_size(x, axis), 4),
}  # fmt: skip


@pytest.mark.parametrize("name", ALONG)
def test_functions_along_an_axis(backend: Any, name: str) -> None:
    function, exact, size, ulps = ALONG[name]
    for dtype in DTYPES:
        for x, axis in inputs(dtype):
            actual = run(backend, lambda t, a=axis: function(t, axis=a), x)
            with np.errstate(all="ignore"):
                expected = exact(as_one_axis(widen(x)), axis).reshape(x.shape)
                scale = None if size is None else size(as_one_axis(widen(x)), axis).reshape(x.shape)
            what = f"{name}, {x.shape}, {axis}, {dtype}"
            assert actual.shape == x.shape, what
            assert_close(actual, expected, dtype, what, scale, ulps)


def test_softmax_over_several_axes_is_that_of_them_as_one(backend: Any) -> None:
    x = spread((2, 3, 4), FLOAT32)
    for function, exact in ((xp.softmax, softmax), (xp.log_softmax, log_softmax)):
        for axis in (None, (0, 2)):
            actual = run(backend, lambda t, f=function, a=axis: f(t, axis=a), x)
            expected = exact(widen(x), axis)
            assert_close(actual, expected, FLOAT32, f"{axis}", np.full(x.shape, 8.0))


def running(compare: Function) -> Function:
    """The running extremum, in plain Python; NaN stays."""

    def function(x: Any, axis: int) -> Any:
        rows = np.moveaxis(np.array(x), axis, -1).copy()
        for place in np.ndindex(rows.shape[:-1]):
            for i in range(1, rows.shape[-1]):
                before, now = rows[(*place, i - 1)], rows[(*place, i)]
                if np.isnan(before) or not (np.isnan(now) or compare(now, before)):
                    rows[(*place, i)] = before
        return np.moveaxis(rows, -1, axis)

    return function


def ordered(x: Any, axis: int, descending: bool) -> list[Any]:
    """For each row, the stable order of its places: NaN the largest."""
    rows = np.moveaxis(x, axis, -1)
    flat = widen(rows).reshape(int(np.prod(rows.shape[:-1])), rows.shape[-1])

    def place_of(row: Any) -> Function:
        def key(i: int) -> tuple[bool, Any]:
            nan = bool(np.isnan(row[i]))
            number = 0.0 if nan else row[i]
            return (not nan, -number) if descending else (nan, number)

        return key

    return [sorted(range(len(row)), key=place_of(row)) for row in flat]


def by_rows(change: Function) -> Function:
    """Change every row of x, given its order."""

    def function(x: Any, axis: int, descending: bool = False, values: Any = None) -> Any:
        values = np.moveaxis(x if values is None else values, axis, -1)
        rows = values.reshape(int(np.prod(values.shape[:-1])), values.shape[-1])
        changed = [
            change(row, order)
            for row, order in zip(rows, ordered(x, axis, descending), strict=True)
        ]
        return np.moveaxis(np.array(changed, x.dtype).reshape(values.shape), -1, axis)

    return function


def put_back(row: Any, order: list[int]) -> Any:
    result = np.empty_like(row)
    result[order] = row
    return result


def top(k: int) -> Function:
    def mask(row: Any, order: list[int]) -> Any:
        return np.isin(np.arange(len(row)), order[:k])

    return mask


sorted_rows = by_rows(lambda row, order: row[order])
EXACT: dict[str, tuple[Function, Function]] = {
    "cummax": (xp.cummax, running(lambda now, before: now >= before)),
    "cummin": (xp.cummin, running(lambda now, before: now <= before)),
    "sort": (xp.sort, sorted_rows),
    "sort descending": (lambda x, axis: xp.sort(x, axis, descending=True), lambda x, axis: sorted_rows(x, axis, True)),
    "top_k_mask": (lambda x, axis: xp.top_k_mask(x, 2, axis), lambda x, axis: by_rows(top(2))(x, axis, True).astype(bool)),
    "top_k_mask of none": (lambda x, axis: xp.top_k_mask(x, 0, axis), lambda x, axis: np.zeros(x.shape, bool)),
    "top_k_mask of all": (lambda x, axis: xp.top_k_mask(x, 99, axis), lambda x, axis: np.ones(x.shape, bool)),
    "argmax_mask": (xp.argmax_mask, lambda x, axis: by_rows(top(1))(x, axis, True).astype(bool)),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_orders_and_masks_are_exact(backend: Any, name: str) -> None:
    function, exact = EXACT[name]
    for dtype in DTYPES:
        for x, axis in inputs(dtype):
            actual = run(backend, lambda t, a=axis: function(t, axis=a), x)
            expected = exact(as_one_axis(x), axis).reshape(x.shape)
            exactly_equal(actual, expected, f"{name}, {x.shape}, {axis}, {dtype}")


def test_the_first_of_all_the_largest_and_smallest_is_marked(backend: Any) -> None:
    for dtype in DTYPES:
        for x in (spread((2, 3), dtype), np.ones((2, 3), dtype), special_rows(dtype)):
            for function, find in ((xp.argmax_mask, np.argmax), (xp.argmin_mask, np.argmin)):
                expected = np.arange(x.size).reshape(x.shape) == find(widen(x))
                exactly_equal(run(backend, lambda t, f=function: f(t), x), expected, f"{dtype}")
        rows = special_rows(dtype)
        smallest = np.argmin(widen(rows), axis=1)[:, None] == np.arange(4)
        exactly_equal(run(backend, lambda t: xp.argmin_mask(t, axis=1), rows), smallest, "rows")


def test_values_follow_another_tensors_order_and_go_back(backend: Any) -> None:
    for dtype, descending in itertools.product(DTYPES, (False, True)):
        for x, axis in inputs(dtype)[-4:]:
            values = np.arange(x.size, dtype=np.float64).astype(dtype).reshape(x.shape)
            for function, change in (
                (xp.sort_like, lambda row, order: row[order]),
                (xp.unsort, put_back),
            ):
                actual = run(
                    backend, lambda v, t, f=function, a=axis, d=descending: f(v, t, a, d), values, x
                )
                expected = by_rows(change)(as_one_axis(x), axis, descending, as_one_axis(values))
                exactly_equal(actual, expected.reshape(x.shape), f"{x.shape}, {axis}, {dtype}")


def test_hold_keeps_the_value_at_the_last_true_and_unhold_sums_back_to_it(backend: Any) -> None:
    x = np.array([[1.0, 2.0, 4.0, 8.0], [1.0, 2.0, 4.0, 8.0]])
    mask = np.array([[False, True, False, True], [True, False, False, False]])
    held, summed = [[0, 2, 2, 8], [1, 1, 1, 1]], [[0, 6, 0, 8], [15, 0, 0, 0]]
    for dtype in DTYPES:
        for function, expected in ((xp.hold, held), (xp.unhold, summed)):
            for axis, turn in ((1, lambda a: a), (0, np.transpose)):
                actual = run(
                    backend,
                    lambda t, m, f=function, a=axis: f(t, m, a),
                    turn(x).astype(dtype),
                    turn(mask),
                )
                exactly_equal(actual, turn(np.array(expected)).astype(dtype), f"{dtype}, {axis}")


def test_quantile_weights_give_the_quantile(backend: Any) -> None:
    for x, axis, q in itertools.product(
        (spread((2, 3, 4), FLOAT64),), (*SETS, 1), (0.0, 0.3, 0.5, 1.0)
    ):
        weights = run(backend, lambda t, a=axis, q=q: xp.quantile_weights(t, q, a), x)
        np.testing.assert_allclose((weights * x).sum(axis), np.quantile(x, q, axis), rtol=1e-13)


# --- shapes --------------------------------------------------------------------------------------------

MOVES: dict[str, tuple[tuple[int, ...], Function, Function]] = {
    "reshape": ((2, 3, 4), lambda x: xp.reshape(x, (4, -1)), lambda x: x.reshape(4, 6)),
    "reshape flat": ((2, 3), lambda x: xp.reshape(x, -1), np.ravel),
    "reshape of a scalar": ((), lambda x: xp.reshape(x, (1, 1)), lambda x: x.reshape(1, 1)),
    "squeeze": ((2, 1, 3), lambda x: xp.squeeze(x, 1), lambda x: x[:, 0]),
    "squeeze of two": ((1, 3, 1), lambda x: xp.squeeze(x, (0, -1)), lambda x: x[0, :, 0]),
    "squeeze of all": ((1, 3, 1), xp.squeeze, lambda x: x[0, :, 0]),
    "permute_dims": ((2, 3, 4), lambda x: xp.permute_dims(x, (2, 0, -2)), lambda x: np.einsum("abc->cab", x)),
    "permute_dims reversed": ((2, 3, 4), xp.permute_dims, lambda x: np.einsum("abc->cba", x)),
    "swapaxes": ((2, 3, 4), lambda x: xp.swapaxes(x, 0, -1), lambda x: np.einsum("abc->cba", x)),
    "matrix_transpose": ((2, 3, 4), xp.matrix_transpose, lambda x: np.einsum("abc->acb", x)),
    "moveaxis": ((2, 3, 4), lambda x: xp.moveaxis(x, 0, -1), lambda x: np.einsum("abc->bca", x)),
    "moveaxis of two": ((2, 3, 4), lambda x: xp.moveaxis(x, (0, 1), (2, 0)), lambda x: np.einsum("abc->bca", x)),
    "flip": ((2, 3, 4), xp.flip, lambda x: x[::-1, ::-1, ::-1]),
    "flip of one": ((2, 3, 4), lambda x: xp.flip(x, -2), lambda x: x[:, ::-1]),
    "flip of two": ((2, 3, 4), lambda x: xp.flip(x, (0, 2)), lambda x: x[::-1, :, ::-1]),
    "flip of a scalar": ((), xp.flip, lambda x: x),
    "roll": ((2, 3), lambda x: xp.roll(x, 1, 1), lambda x: x[:, [2, 0, 1]]),
    "roll back": ((2, 3), lambda x: xp.roll(x, -4, -1), lambda x: x[:, [1, 2, 0]]),
    "roll flat": ((2, 3), lambda x: xp.roll(x, 2), lambda x: x.ravel()[[4, 5, 0, 1, 2, 3]].reshape(2, 3)),
    "roll two": ((2, 3), lambda x: xp.roll(x, (1, 2), (0, 1)), lambda x: x[[1, 0]][:, [1, 2, 0]]),
    "tril": ((2, 3, 4), xp.tril, lambda x: np.where(np.tri(3, 4) > 0, x, 0).astype(x.dtype)),
    "tril above": ((3, 3), lambda x: xp.tril(x, 1), lambda x: np.where(np.tri(3, 3, 1) > 0, x, 0).astype(x.dtype)),
    "triu": ((3, 2), xp.triu, lambda x: np.where(np.tri(3, 2, -1) > 0, 0, x).astype(x.dtype)),
    "triu below": ((3, 3), lambda x: xp.triu(x, -1), lambda x: np.where(np.tri(3, 3, -2) > 0, 0, x).astype(x.dtype)),
    "broadcast_to_shape": ((3, 1), lambda x: xp.broadcast_to(x, (2, 3, 4)), lambda x: x + np.zeros((2, 3, 4), x.dtype)),
    "getitem": ((4, 5), lambda x: xp.getitem(x, (slice(1, None), -1)), lambda x: x[1:, -1]),
    "getitem with steps": ((4, 5), lambda x: xp.getitem(x, (slice(None, None, -1), slice(3, 0, -2))), lambda x: x[::-1, 3:0:-2]),
    "getitem at the end": ((2, 3, 4), lambda x: xp.getitem(x, (..., 0)), lambda x: x[:, :, 0]),
    "getitem with a new axis": ((2, 3), lambda x: xp.getitem(x, (slice(None), None)), lambda x: x[:, None]),
    "getitem of nothing": ((2, 3), lambda x: xp.getitem(x, slice(5, None)), lambda x: x[5:]),
    "take": ((2, 4), lambda x: xp.take(x, (3, 0, -1), axis=1), lambda x: x[:, [3, 0, 3]]),
    "take of one": ((2, 4), lambda x: xp.take(x, 2, axis=-1), lambda x: x[:, 2]),
    "take flat": ((2, 3), lambda x: xp.take(x, [4, 1]), lambda x: x.ravel()[[4, 1]]),
    "take of nothing": ((2, 3), lambda x: xp.take(x, [], axis=0), lambda x: x[:0]),
    "half": ((2, 4), lambda x: xp.half(x, 0, 1), lambda x: x[:, :2]),
    "half, the second": ((4, 3), lambda x: xp.half(x, 1, 0), lambda x: x[2:]),
    "tile": ((2, 3), lambda x: xp.tile(x, (2, 2)), lambda x: np.block([[x, x], [x, x]])),
    "tile along the last": ((2, 3), lambda x: xp.tile(x, 2), lambda x: np.hstack([x, x])),
    "tile with new axes": ((3,), lambda x: xp.tile(x, (2, 1)), lambda x: np.vstack([x, x])),
    "repeat": ((2, 3), lambda x: xp.repeat(x, 2, axis=1), lambda x: x[:, [0, 0, 1, 1, 2, 2]]),
    "repeat flat": ((2, 2), lambda x: xp.repeat(x, 2), lambda x: x.ravel()[[0, 0, 1, 1, 2, 2, 3, 3]]),
    "pad": ((2, 3), lambda x: xp.pad(x, ((1, 0), (0, 2)), 5.0), lambda x: np.pad(x, ((1, 0), (0, 2)), constant_values=x.dtype.type(5))),
    "pad at the end": ((2, 3), lambda x: xp.pad(x, ((1, 1),)), lambda x: np.pad(x, ((0, 0), (1, 1)))),
    "pad all round": ((2, 3), lambda x: xp.pad(x, 1), lambda x: np.pad(x, 1)),
    "concatenate": ((2, 3), lambda x: xp.concatenate([x, x, x], axis=1), lambda x: np.hstack([x, x, x])),
    "concatenate flat": ((2, 3), lambda x: xp.concat([x, x], axis=None), lambda x: np.hstack([x.ravel(), x.ravel()])),
    "stack": ((2, 3), lambda x: xp.stack([x, x], axis=-1), lambda x: np.dstack([x, x])),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
def test_what_moves_elements_is_exact(backend: Any, name: str) -> None:
    shape, function, exact = MOVES[name]
    for dtype in DTYPES:
        x = spread(shape, dtype)
        if x.size > 3:
            x.reshape(-1)[:3] = np.nan, np.inf, -np.inf
        exactly_equal(run(backend, function, x), np.asarray(exact(x)), f"{name}, {dtype}")


# The function that undoes one: together they multiply an element by how often it was copied.
UNDOING: dict[str, tuple[Function, Function]] = {
    "reshape_like": (lambda x: xp.reshape(x, (3, 8)), xp.reshape_like),
    "setitem": (lambda x: xp.getitem(x, (1, slice(None, None, -2))), lambda y, x: xp.setitem(y, x, (1, (None, None, -2)))),
    "setitem at the end": (lambda x: xp.getitem(x, (..., None, 1)), lambda y, x: xp.setitem(y, x, ("...", None, 1))),
    "untake": (lambda x: xp.take(x, (1, 1, 0), axis=1), lambda y, x: xp.untake(y, x, (1, 1, 0), 1)),
    "untile": (lambda x: xp.tile(x, (2, 1, 3)), lambda y, x: xp.untile(y, x, (2, 1, 3))),
    "untile of more axes": (lambda x: xp.tile(x, (2, 1, 1, 3)), lambda y, x: xp.untile(y, x, (2, 1, 1, 3))),
    "unrepeat": (lambda x: xp.repeat(x, 3, axis=-1), lambda y, x: xp.unrepeat(y, x, 3, -1)),
    "part": (lambda x: xp.concatenate([x, x * 2], axis=1), lambda y, x: xp.part(y, x, 0, 1)),
    "part at the end": (lambda x: xp.concatenate([x * 2, x], axis=-1), lambda y, x: xp.part(y, x, 4, -1)),
}  # fmt: skip
COPIES: dict[str, Function] = {
    "setitem": lambda x: np.where(np.arange(2)[:, None, None] == 1, [[1], [0], [1]], 0) + 0 * x,
    "setitem at the end": lambda x: np.array([0, 1, 0, 0]) + 0 * x,
    "untake": lambda x: np.array([[1], [2], [0]]) + 0 * x,
    "untile": lambda x: 6 + 0 * x,
    "untile of more axes": lambda x: 6 + 0 * x,
    "unrepeat": lambda x: 3 + 0 * x,
}


@pytest.mark.parametrize("name", UNDOING)
def test_what_undoes_a_copy_sums_the_copies(backend: Any, name: str) -> None:
    function, undo = UNDOING[name]
    for dtype in DTYPES:
        x = spread((2, 3, 4), dtype)
        copies = COPIES[name](widen(x)) if name in COPIES else np.ones(x.shape)
        actual = run(backend, lambda t: undo(function(t), t), x)
        assert_close(actual, widen(x) * copies, dtype, f"{name}, {dtype}")


def test_unpart_puts_a_part_where_it_was(backend: Any) -> None:
    for dtype in DTYPES:
        like, x = spread((2, 5), dtype), spread((2, 2), dtype)
        expected = np.hstack([np.zeros((2, 2)), widen(x), np.zeros((2, 1))])
        actual = run(backend, lambda t, u: xp.unpart(t, u, 2, 1), x, like)
        exactly_equal(actual, expected.astype(dtype), f"{dtype}")


# --- products ------------------------------------------------------------------------------------------

PRODUCTS = [
    ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)), ((5, 2, 3), (5, 3, 4)), ((5, 1, 2, 3), (6, 3, 4)), ((4, 2, 3), (3,)),
    ((3,), (4, 3, 2)), ((2, 0), (0, 3)),
]  # fmt: skip


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
    "ij,jk->ik": ((2, 3), (3, 4)), "ij,jk": ((2, 3), (3, 4)), "bij,bkj->bik": ((2, 3, 4), (2, 5, 4)),
    "i,j->ij": ((2,), (3,)), "ij->ji": ((2, 3),), "ij->i": ((2, 3),), "ij->": ((2, 3),),
    "i,i->": ((3,), (3,)), "ij,jk,kl->il": ((2, 3), (3, 4), (4, 2)), "ij,ik->jk": ((2, 3), (2, 4)),
    "...ij,...jk->...ik": ((5, 2, 3), (5, 3, 4)), "ij,kl->ik": ((2, 3), (4, 2)),
}  # fmt: skip


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


# --- random draws ----------------------------------------------------------------------------------------


def draw(backend: Any, function: Function, dtype: Any = FLOAT32) -> Any:
    return run(backend, lambda t: function(t, key=(1, 2)), np.zeros(20_000, dtype))


def test_coins_are_the_uniforms_below_p_on_every_backend(backend: Any) -> None:
    from multigrad import random

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
    from multigrad import random

    for dtype in DTYPES:
        wide = FLOAT64 if dtype == FLOAT64 else FLOAT32
        uniform = np.maximum(random.uniform((1, 2), (20_000,), wide), np.finfo(wide).tiny)
        uniform = uniform.astype(np.longdouble)
        for function, expected in (
            (xp.exponential_like, -np.log1p(-uniform)),
            (xp.gumbel_like, -np.log(-np.log(uniform))),
        ):
            actual = draw(backend, function, dtype)
            ulps = (
                150 if (backend.name, dtype) == ("jax", FLOAT64) else 8
            )  # XLA's log1p, see test_ops
            scale = 1 + np.abs(expected)
            assert np.isfinite(widen(actual)).all()
            assert_close(actual, expected, dtype, f"{function}, {dtype}", scale, ulps)


# --- compiled ------------------------------------------------------------------------------------------

COMPILED: dict[str, tuple[tuple[int, ...], Function]] = {
    **{name: ((2, 3, 4), lambda t, f=row[0]: f(t, axis=(0, 2), keepdims=False)) for name, row in REDUCTIONS.items()},
    **{name: ((2, 3, 4), lambda t, f=row[0]: f(t, axis=1)) for name, row in {**ALONG, **EXACT}.items()},
    **{name: (row[0], row[1]) for name, row in MOVES.items()},
    **{name: ((2, 3, 4), lambda t, f=row: f[1](f[0](t), t)) for name, row in UNDOING.items()},
    "glu": ((4, 3), lambda t: xp.glu(t, 0)),
    "unsort": ((2, 3, 4), lambda t: xp.unsort(t, t, 1, True)),
    "unhold": ((2, 3, 4), lambda t: xp.unhold(t, t > 0, 1)),
    "hold": ((2, 3, 4), lambda t: xp.hold(t, t > 0, 2)),
    "quantile_weights": ((2, 3, 4), lambda t: xp.quantile_weights(t, 0.3, (0, 2))),
    "matmul": ((3, 3), lambda t: xp.matmul(t, t)),
    "matmul_left": ((3, 3), lambda t: xp.matmul_left(t, t, t)),
    "einsum": ((3, 3), lambda t: xp.einsum("ij,kj->ik", t, t)),
    "unpart": ((2, 3), lambda t: xp.unpart(t, xp.concatenate([t, t]), 1, 0)),
}  # fmt: skip


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("name", COMPILED)
def test_graphs_with_lengths_known_at_run_time_give_the_same(backend: Any, name: str) -> None:
    import tensorflow as tf

    shape, function = COMPILED[name]
    x = spread(shape, FLOAT32)
    graph = tf.function(function, input_signature=[tf.TensorSpec([None] * len(shape), tf.float32)])
    expected = function(tf.constant(x)).numpy()
    np.testing.assert_allclose(graph(tf.constant(x)).numpy(), expected, rtol=1e-6)


# --- errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: xp.norm(x, ord=0), "order above 0"),
        (lambda x: xp.quantile(x, 1.5), "from 0 to 1"),
        (lambda x: xp.top_k_mask(x, -1), "at least 0"),
        (lambda x: xp.reshape(x, (-1, -1)), "at most one -1"),
        (lambda x: xp.pad(x, ((-1, 0),)), "not negative"),
        (lambda x: xp.permute_dims(x, (0, 0)), "each axis once"),
        (lambda x: xp.roll(x, (1, 2, 3), (0, 1)), "3 shifts for 2 axes"),
        (lambda x: xp.getitem(x, True), "mask"),
    ],
)
def test_attributes_that_mean_nothing_are_refused(function: Function, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        function(np.ones((2, 2)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: xp.sum(x, axis=2), lambda x: xp.cumsum(x, axis=-3), lambda x: xp.sort(x, axis=2),
        lambda x: xp.prod(x, axis=(0, 2)), lambda x: xp.median(x, axis=2), lambda x: xp.argmax_mask(x, 2),
        lambda x: xp.softmax(x, axis=2), lambda x: xp.flip(x, 2), lambda x: xp.swapaxes(x, 0, 2),
        lambda x: xp.getitem(x, (0, 0, 0)), lambda x: xp.take(x, (0, 5), axis=1),
        lambda x: xp.squeeze(x, 0), lambda x: xp.half(x, 0, 1), lambda x: xp.reshape(x, (4,)),
    ],
)  # fmt: skip
def test_what_a_tensor_lacks_is_an_error_and_never_a_number(
    backend: Any, function: Function
) -> None:
    with pytest.raises(Exception, match=r"."):
        run(backend, function, spread((2, 3), FLOAT32))


def test_an_axis_that_the_input_lacks_is_named_while_capturing() -> None:
    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        assert grad_out.ndim == 2
        return grad_out - xg.xp.mean(grad_out, axis=2, keepdims=True)

    strict = xg.register("averages_no_axis", native=False)(rule)
    try:
        with pytest.raises(xg.TraceError, match=r"averages_no_axis.*axis 2 of a tensor that has 2"):
            strict(None, np.ones((2, 2)), np.ones((2, 2)))
    finally:
        xg.unregister("averages_no_axis")


# The names above that differ from the op's; the last are tested with the older ops in test_ops.py.
NAMED = {
    *REDUCTIONS, *ALONG, *EXACT, *MOVES, *UNDOING, "matmul", "matmul_left", "matmul_right", "einsum",
    "glu", "argmin_mask", "sort_like", "unsort", "hold", "unhold", "quantile_weights", "unpart",
    "bernoulli_like", "rademacher_like", "exponential_like", "gumbel_like",
}  # fmt: skip
OLDER = {
    "sum", "mean", "max", "min", "any", "all", "var", "std", "sum_to", "broadcast_to",
    "expand_dims", "dim", "size", "fold_in", "uniform_like", "normal_like", "array",
}  # fmt: skip


def test_every_op_of_these_families_is_tested_here() -> None:
    families = (arrays, ordering, shapes)
    rows = {op.name for family in families for op in vars(family).values() if isinstance(op, Op)}
    assert rows <= NAMED | OLDER
    assert rows <= {op.name for op in ops.CALLABLE_OPS}
