"""What test_ops_*.py leave out of the matrix of ops over whole arrays: shapes in every dtype,
strides, huge and tiny.

The exact values are those files' own, in float64 or wider. Tensors are cut from larger ones by the
framework itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multigrad.graph.support.versions import ignoring_warnings
from multigrad.testing.oracles import DTYPES, finfo, slack, spread, subnormals
from multigrad.testing.under_test import strided
from multigrad.trace.xp import all as neutral

from ..differences import flushes
from ..ops.test_ops import REDUCTIONS as BASIC
from ..ops.test_ops import assert_close, reduce_exactly, widen
from ..ops.test_ops_arrays import PEAKED, REDUCTIONS, as_one_axis, exactly_equal
from ..ops.test_ops_ordering import ALONG, EXACT
from ..ops.test_ops_shapes import MOVES

xp: Any = neutral
Function = Callable[..., Any]
SHAPES = ((), (0,), (3,), (2, 3, 4))
NEEDS_ELEMENTS = {"max", "min", "quantile", "quantile 0", "quantile 1", "median"}


def run(backend: Any, function: Function, x: Any) -> Any:
    with (
        backend.precision(x.dtype),
        np.errstate(all="ignore"),
        ignoring_warnings(),
    ):
        return np.asarray(backend.numpy(function(backend.array(x))))


def whole(x: Any) -> Any:
    return x


# Every shape, and a view: each with the function that makes it of a fresh tensor.
CASES = [*((shape, whole) for shape in SHAPES), ((4, 6), strided)]


@pytest.mark.parametrize("name", [*BASIC, *REDUCTIONS])
def test_reductions_of_every_shape_and_stride_in_every_dtype(
    backend: Any, name: str, paired: Any
) -> None:
    for (shape, view), dtype in paired(CASES, DTYPES):
        x = np.asarray(spread(shape, dtype))
        if x.size == 0 and name in NEEDS_ELEMENTS:
            continue
        seen = np.asarray(view(x))
        with np.errstate(all="ignore"):
            if name in BASIC:
                function, ulps = getattr(xp, name), 4.0
                expected, scale = reduce_exactly(name, seen, -1, False)
            else:
                function, exact, ulps = REDUCTIONS[name]
                expected = np.asarray(exact(widen(seen), () if x.ndim == 0 else -1, False))
                over = () if x.ndim == 0 else -1
                peak = np.max(np.abs(widen(seen)), axis=over, initial=1.0)
                scale = np.fmax(np.abs(expected), peak) if name in PEAKED else None
        actual = run(backend, lambda t, f=function, v=view: f(v(t), axis=-1, keepdims=False), x)
        what = f"{name}, {seen.shape}, {dtype}"
        assert actual.shape == expected.shape, what
        assert_close(actual, expected, dtype, what, scale, ulps)


@pytest.mark.parametrize("name", [*ALONG, *EXACT])
def test_functions_along_an_axis_of_every_shape_and_stride_in_every_dtype(
    backend: Any, name: str, paired: Any
) -> None:
    for (shape, view), dtype in paired(CASES, DTYPES):
        x = np.asarray(spread(shape, dtype))
        seen = np.asarray(view(x))
        function = ALONG[name][0] if name in ALONG else EXACT[name][0]
        actual = run(backend, lambda t, f=function, v=view: f(v(t), axis=-1), x)
        what = f"{name}, {seen.shape}, {dtype}"
        if name in EXACT:
            expected = EXACT[name][1](as_one_axis(seen), -1).reshape(seen.shape)
            exactly_equal(actual, expected, what)
            continue
        _, exact, size, ulps = ALONG[name]
        wide = as_one_axis(widen(seen))
        scale = None if size is None else size(wide, -1).reshape(seen.shape)
        assert_close(actual, exact(wide, -1).reshape(seen.shape), dtype, what, scale, ulps)


@pytest.mark.parametrize("name", MOVES)
def test_what_moves_elements_takes_views_and_keeps_every_number(backend: Any, name: str) -> None:
    shape, function, exact = MOVES[name]
    for dtype in DTYPES:
        ends = np.array([finfo(dtype).max, -finfo(dtype).max, -0.0, np.inf]).astype(dtype)
        x = np.resize(np.concatenate([ends, subnormals(dtype)]), (*shape, 2)).astype(dtype)
        actual = run(backend, lambda t: function(xp.getitem(t, (..., 1))), x)
        expected = np.asarray(exact(x[..., 1]))
        if flushes(backend.name, dtype):  # a product with a mask flushes
            expected = np.where(np.abs(widen(expected)) < slack(dtype), actual, expected)
            assert (np.abs(widen(actual)) <= np.abs(widen(expected))).all()
        exactly_equal(actual, expected.astype(dtype), f"{name}, {dtype}")


@pytest.mark.parametrize(
    "name", ["cummax", "cummin", "sort", "sort descending", "top_k_mask", "argmax_mask"]
)
def test_orders_of_huge_and_tiny_numbers_are_exact(backend: Any, name: str) -> None:
    function, exact = EXACT[name]
    for dtype in DTYPES:
        top = np.array(finfo(dtype).max, dtype)
        below = np.nextafter(top, np.array(0, dtype))
        row = [*subnormals(dtype), top, -top, below, -below, np.inf, -np.inf, 0.0, 1.0]
        for seed in range(3):
            x = np.random.default_rng(seed).permutation(np.array(row, dtype)).reshape(1, -1)
            if flushes(backend.name, dtype):  # equal to zero there, so in another order
                x = x[:, (x[0] == 0) | (np.abs(widen(x[0])) >= float(finfo(dtype).smallest_normal))]
            actual = run(backend, lambda t: function(t, axis=1), x)
            exactly_equal(actual, exact(x, 1), f"{name}, {dtype}")


def test_norms_and_sums_of_numbers_that_overflow_are_infinite(backend: Any) -> None:
    for dtype in DTYPES:
        top = float(finfo(dtype).max)
        x = np.array([top, top, 1.0]).astype(dtype)
        for function in (xp.sum, xp.prod, xp.norm):
            assert run(backend, function, x) == np.inf
        assert widen(run(backend, xp.max, x)) == widen(x).max()
        assert widen(run(backend, lambda t: xp.norm(t, ord=np.inf), x)) == widen(x).max()
        expected = np.log(np.longdouble(2)) + widen(x).max()
        actual = run(backend, xp.logsumexp, x)
        assert_close(actual, np.asarray(expected), dtype, "logsumexp")
