"""Integers as values on every backend: ties, edges and what lies outside, as NumPy has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.own_library import X

xp: Any = xg.xp
Tensor = Any


EDGES = np.array([[0.0, -0.0, 1.0, 1.0], [np.nan, np.inf, np.nan, -np.inf]], np.float32)


def run(backend: Any, function: Callable[..., Any], *arrays: Any) -> Any:
    with backend.precision(np.float32):
        result = xg.function(function, native=False)(*map(backend.array, arrays))
        return backend.numpy(result)


def test_of_equal_extremes_the_first_has_the_place_and_nan_is_beyond_all(backend: Any) -> None:
    np.testing.assert_array_equal(run(backend, lambda x: xp.argmax(x, axis=1), EDGES), [2, 0])
    np.testing.assert_array_equal(run(backend, lambda x: xp.argmin(x, axis=1), EDGES), [0, 0])
    order = run(backend, lambda x: xp.argsort(x, axis=1), EDGES)
    np.testing.assert_array_equal(order, [[0, 1, 2, 3], [3, 1, 0, 2]])
    order = run(backend, lambda x: xp.argsort(x, axis=1, descending=True), EDGES)
    np.testing.assert_array_equal(order, [[2, 3, 0, 1], [0, 2, 1, 3]])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_places_are_the_same_in_every_dtype(backend: Any, dtype: str) -> None:
    import ml_dtypes

    x = X[0].astype(getattr(ml_dtypes, dtype, dtype))
    with backend.precision(x.dtype):
        ordered = xp.take_along_axis(backend.array(x), xp.argsort(backend.array(x)))
        np.testing.assert_array_equal(backend.numpy(ordered), np.sort(x))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64"])
def test_what_is_no_float_is_taken_as_it_is(backend: Any, dtype: str) -> None:
    x = (X[0] > 0).astype(dtype)
    order = np.argsort(X[0], axis=0)
    taken = backend.numpy(xp.take_along_axis(backend.array(x), backend.array(order), axis=0))
    assert taken.dtype == x.dtype
    np.testing.assert_array_equal(taken, np.take_along_axis(x, order, axis=0))


def test_an_index_may_count_from_the_end(backend: Any) -> None:
    index = np.array([[0, -1], [1, -4]], np.int32)
    taken = run(backend, lambda x, i: xp.take_along_axis(x, i, axis=1), X[:2, :, 0], index)
    np.testing.assert_array_equal(taken, np.take_along_axis(X[:2, :, 0], index, 1))
    rows = run(backend, lambda x, i: x[i], X, np.array([-1, 0], np.int32))
    np.testing.assert_array_equal(rows, X[[-1, 0]])


def test_what_lies_outside_raises_or_is_nan_where_nothing_is_computed_yet(backend: Any) -> None:
    def beyond(x: Tensor, i: Tensor) -> Tensor:
        return xp.take_along_axis(x, i + 2, axis=0)

    arrays = X[0, 0], np.array([0, 3], np.int32)
    if backend.name in ("jax", "mlx"):
        np.testing.assert_array_equal(run(backend, beyond, *arrays), [X[0, 0, 2], np.nan])
    else:
        with pytest.raises(Exception, match=r"(?i)ind(ex|ices)"):
            run(backend, beyond, *arrays)


def test_of_two_values_for_one_place_the_last_stays_and_gets_the_gradient(backend: Any) -> None:
    def put(x: Tensor, values: Tensor, i: Tensor) -> Tensor:
        return xp.put_along_axis(x, i, values, axis=0)

    x, values, index = X[0, 0], np.array([7.0, 8.0, 9.0], np.float32), np.array([1, 3, 1], np.int32)
    function = xg.function(put, native=False)
    with backend.precision(np.float32):
        given = backend.array(x), backend.array(values), backend.array(index)
        result, pull = xg.vjp(function, *given)
        own, of_values, _ = pull(backend.array(np.arange(1, 6, dtype=np.float32)))
    np.testing.assert_array_equal(backend.numpy(result), [x[0], 9.0, x[2], 8.0, x[4]])
    np.testing.assert_array_equal(backend.numpy(own), [1, 0, 3, 0, 5])
    np.testing.assert_array_equal(backend.numpy(of_values), [0, 4, 2])


def test_gradients_of_one_place_are_summed(backend: Any) -> None:
    function = xg.function(lambda x, i: x[i], native=False)
    with backend.precision(np.float32):
        given = backend.array(X[0, 0]), backend.array(np.array([2, 0, 2], np.int32))
        _, pull = xg.vjp(function, *given)
        gradient, _ = pull(backend.array(np.array([1.0, 10.0, 100.0], np.float32)))
    np.testing.assert_array_equal(backend.numpy(gradient), [10, 0, 101, 0, 0])


def test_one_hot_has_nothing_where_an_index_lies_outside(backend: Any) -> None:
    hot = run(backend, lambda i: xp.one_hot(i, 3), np.array([0, 2, 5, -1], np.int32))
    np.testing.assert_array_equal(hot, np.eye(3, dtype=bool)[[0, 2, 0, 0]] & [[1], [1], [0], [0]])


def test_integers_stay_integers_and_divide_as_in_numpy(backend: Any) -> None:
    a, b = np.array([7, -7, 5, 0], np.int32), np.array([2, 2, 0, -3], np.int32)
    quotient = run(backend, lambda a, b: a // b, a, b)
    rest = run(backend, lambda a, b: a % b, a, b)
    np.testing.assert_array_equal(quotient, [3, -4, 0, 0])
    np.testing.assert_array_equal(rest, [1, 1, 0, 0])
    assert quotient.dtype.kind == rest.dtype.kind == "i"


def test_a_float_becomes_an_integer_by_truncation_and_nan_becomes_0(backend: Any) -> None:
    x = np.array([1.9, -1.9, np.nan, 3e4, -0.0], np.float32)
    whole = run(backend, lambda x: xp.astype(x, "int64"), x)
    np.testing.assert_array_equal(whole, [1, -1, 0, 30000, 0])
    assert whole.dtype.kind == "i"


def test_nothing_has_no_places(backend: Any) -> None:
    empty = np.zeros((2, 0), np.float32)
    assert run(backend, lambda x: xp.argsort(x, axis=1), empty).shape == (2, 0)
    taken = run(backend, lambda x, i: x[i], X[0], np.zeros(0, np.int32))
    assert taken.shape == (0, 5)


def test_an_index_of_floats_is_refused() -> None:
    with pytest.raises(xg.TraceError, match=r"needs integers as indices.*cast to int64"):
        xg.function(lambda x: xp.take_along_axis(x, x), native=False)(X)
