"""Cumulative ops, softmax, sorting and masks of the largest, on every backend; see
`test_ops_arrays.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multigrad.core.trace.xp import all as neutral

from ..oracles import DTYPES, FLOAT32, FLOAT64, spread
from .test_ops import assert_close, special_rows, widen
from .test_ops_arrays import SETS, as_one_axis, exactly_equal, inputs, run

xp: Any = neutral  # `xg.xp`, and the functions that only VJPs call
Wide = Any
Function = Callable[..., Any]


def softmax(x: Wide, axis: Any) -> Wide:
    powers = np.exp(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
    return powers / np.sum(powers, axis=axis, keepdims=True)


def log_softmax(x: Wide, axis: Any) -> Wide:
    shifted = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    with np.errstate(divide="ignore"):  # over nothing
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
    "cumsum reversed": (
        lambda x, axis: xp.cumsum(x, axis, reverse=True),
        reversed_sum,
        lambda x, axis: reversed_sum(np.abs(x), axis),
        4,
    ),
    "cumprod": (xp.cumprod, lambda x, axis: np.cumprod(x, axis=axis), None, 16),
    "softmax": (xp.softmax, softmax, distance, 4),
    "log_softmax": (xp.log_softmax, log_softmax, lambda x, axis: 1 + whole_size(x, axis), 4),
}


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
    "sort descending": (
        lambda x, axis: xp.sort(x, axis, descending=True),
        lambda x, axis: sorted_rows(x, axis, True),
    ),
    "top_k_mask": (
        lambda x, axis: xp.top_k_mask(x, 2, axis),
        lambda x, axis: by_rows(top(2))(x, axis, True).astype(bool),
    ),
    "top_k_mask of none": (
        lambda x, axis: xp.top_k_mask(x, 0, axis),
        lambda x, axis: np.zeros(x.shape, bool),
    ),
    "top_k_mask of all": (
        lambda x, axis: xp.top_k_mask(x, 99, axis),
        lambda x, axis: np.ones(x.shape, bool),
    ),
    "argmax_mask": (xp.argmax_mask, lambda x, axis: by_rows(top(1))(x, axis, True).astype(bool)),
}


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


@pytest.mark.parametrize("function", [xp.argmax, xp.argmin])
@pytest.mark.parametrize("keepdims", [False, True])
def test_the_extreme_of_a_scalar_is_at_its_first_place(
    backend: Any, function: Any, keepdims: bool
) -> None:
    place = run(backend, lambda t: function(t, 0, keepdims=keepdims), np.float32(2.0))
    assert place.shape == ()
    assert place == 0


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
