"""What test_ops*.py leave out of the matrix of ops: subnormal numbers, more thresholds, every shape
and stride.

The exact values are those of test_ops.py and test_ops_elementwise.py, in float64 or wider. Where a
framework takes subnormal numbers for zero (the declared rows of kind "subnormals"), the value at
zero is right too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.ops.numerics import ignoring_warnings
from multigrad.core.trace.xp import all as neutral

from ..differences import DESIGNED, allowed, flushes, kept
from ..expected.slopes import SCALES
from ..ops.test_ops import REDUCTIONS as BASIC
from ..ops.test_ops import assert_close, reduce_exactly, widen
from ..ops.test_ops_arrays import PEAKED, REDUCTIONS, as_one_axis, exactly_equal
from ..ops.test_ops_elementwise import BINARY
from ..ops.test_ops_ordering import ALONG, EXACT
from ..ops.test_ops_shapes import MOVES
from ..oracles import DTYPES, FLOAT32, FLOAT64, edge_values, finfo, slack, spread, subnormals
from ..under_test import strided

xp = xg.xp
Wide = Any
NEGLIGIBLE = 2  # smallest normal numbers: what may be flushed on the way


def is_right(name: str, actual: Any, expected: Wide, scale: Wide, ulps: float) -> Any:
    """Bools equal; numbers within `ulps` eps of the result or of `scale`."""
    if expected.dtype == bool:
        return actual == expected
    info, got = finfo(actual.dtype), widen(actual)
    limit = ulps * float(info.eps) * np.abs(scale) + NEGLIGIBLE * slack(actual.dtype)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    overflow = np.isinf(got) & (np.abs(expected) > float(info.max) * (1 - 4 * float(info.eps)))
    overflow &= np.sign(got) == np.sign(expected)
    return same | overflow | (np.abs(got - expected) <= limit)


def scale_of(name: str, expected: Wide, *operands: Wide) -> Wide:
    return SCALES[name](operands[0], expected) if name in SCALES else expected


def is_subnormal(x: Any) -> Any:
    return (x != 0) & (np.abs(widen(x)) < float(finfo(x.dtype).smallest_normal))


def call(backend: Any, name: str, *tensors: Any) -> Any:
    with np.errstate(all="ignore"), ignoring_warnings():
        return backend.numpy(getattr(xp, name)(*tensors))


def assert_value(backend: Any, name: str, operands: tuple[Any, Any], actual: Any) -> None:
    """Right at the operands, or, where these are flushed, at the ones that the framework sees."""
    dtype = operands[0].dtype
    seen = [operands]
    if flushes(backend.name, dtype):
        tiny = float(finfo(dtype).smallest_normal)
        zeroed = tuple(np.where(np.abs(widen(x)) < tiny, x * 0, x) for x in operands)
        seen += [zeroed, (operands[0], zeroed[1]), (zeroed[0], operands[1])]
    right: Any = False
    with np.errstate(all="ignore"):
        for values in seen:
            wide = tuple(widen(x) for x in values)
            expected = np.asarray(BINARY[name](*wide))
            scale = scale_of(name, expected, *wide)
            right |= is_right(
                name, actual, expected, scale, allowed(backend.name, name, "value", dtype)
            )
    assert actual.shape == operands[0].shape
    wrong = ~np.asarray(right)
    if kept(backend.name, "subnormals", name):
        wrong &= ~is_subnormal(operands[0])
    listed = [x[wrong][:6] for x in operands]
    assert not wrong.any(), f"{name}, {dtype}: {actual[wrong][:6]} at {listed}"


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_operands_at_subnormals(backend: Any, name: str) -> None:
    for dtype in DTYPES:
        values = np.concatenate([subnormals(dtype), np.array([0.0, 1.0, -1.0, 0.3, 20.0], dtype)])
        a, b = (grid.ravel() for grid in np.meshgrid(values, values))
        with backend.precision(dtype):
            actual = call(backend, name, backend.array(a), backend.array(b))
        assert_value(backend, name, (a, b), actual)


SHAPES = ((), (0,), (3,), (2, 3, 4))


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_operands_keep_every_shape_and_do_not_mind_the_strides(
    backend: Any, name: str, compiling: bool
) -> None:
    for dtype in (FLOAT32,) if compiling else DTYPES:
        for shape in (*SHAPES, (4, 6)):
            operands = tuple(np.asarray(spread(shape, dtype, seed=i)) for i in range(2))
            with backend.precision(dtype):
                tensors = [backend.array(x) for x in operands]
                if shape == (4, 6):
                    tensors = [strided(t) for t in tensors]
                    operands = tuple(strided(x) for x in operands)
                actual = call(backend, name, *tensors)
            assert_value(backend, name, operands, np.asarray(actual))


def test_powers_of_subnormal_numbers_are_right_or_declared(backend: Any) -> None:
    x = backend.array(subnormals(FLOAT32)[:1])
    power = float(call(backend, "pow", x, 0.3)[0])
    wrong = power != 0 and abs(power - 1.4e-45**0.3) > 1e-3 * power
    assert wrong == bool(kept(backend.name, "subnormals", "pow"))


def test_what_is_declared_of_values_is_needed_and_enough(backend: Any) -> None:
    for row in [row for row in kept(backend.name, "value") if row.ulps and row.what in BINARY]:
        values = np.concatenate([edge_values(FLOAT64), spread(12, FLOAT64)])
        a, b = (grid.ravel() for grid in np.meshgrid(np.abs(values), values[np.abs(values) < 100]))
        actual = call(backend, row.what, backend.array(a), backend.array(b))
        with np.errstate(all="ignore"):
            expected = BINARY[row.what](widen(a), widen(b))
            inside = (np.abs(expected) > 1e-300) & (np.abs(expected) < 1e300)
            error = np.abs(widen(actual) / expected - 1)[inside].max() / finfo(FLOAT64).eps
        assert row.ulps is not None
        assert DESIGNED < error <= row.ulps, (row.what, error)


# What test_ops_*.py leave out of the matrix of ops over whole arrays: shapes in every dtype,
# strides, huge and tiny. The exact values are those files' own, in float64 or wider. Tensors are
# cut from larger ones by the framework itself.


Function = Callable[..., Any]
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
                function, ulps = getattr(neutral, name), 4.0
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
        actual = run(backend, lambda t: function(neutral.getitem(t, (..., 1))), x)
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
        for function in (neutral.sum, neutral.prod, neutral.norm):
            assert run(backend, function, x) == np.inf
        assert widen(run(backend, neutral.max, x)) == widen(x).max()
        assert widen(run(backend, lambda t: neutral.norm(t, ord=np.inf), x)) == widen(x).max()
        expected = np.log(np.longdouble(2)) + widen(x).max()
        actual = run(backend, neutral.logsumexp, x)
        assert_close(actual, np.asarray(expected), dtype, "logsumexp")
