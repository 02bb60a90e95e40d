"""Ops on every backend, against NumPy in a wider precision; functions of one number are held to the
vectors (`matrix/test_matrix_vjps.py`), those of two are in `test_ops_elementwise.py`.

Each op is called as `xg.xp` offers it, on real arrays. Numbers must be within 4 eps of the exact
result, bools and what is not finite equal. Zeros compare equal whatever their sign: frameworks
differ on max(0, -0).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.ops.numerics import ignoring_warnings

from ..oracles import BFLOAT16, DTYPES, FLOAT16, FLOAT32, FLOAT64, edge_values, finfo, slack, spread

xp = xg.xp
Wide = Any  # float64 values, or the platform's long double where the input is float64


LOGIC: dict[str, Callable[..., Any]] = {
    "logical_and": lambda a, b: a & b,
    "logical_or": lambda a, b: a | b,
    "logical_xor": lambda a, b: a != b,
}


def widen(x: Any) -> Wide:
    with np.errstate(over="ignore"):  # a NaN or an infinity of ml_dtypes
        return x.astype(np.longdouble if x.dtype == FLOAT64 else np.float64)


def call(backend: Any, name: str, *arrays: Any, **attrs: Any) -> Any:
    """The neutral function on the backend's own tensors."""
    with backend.precision(max((a.dtype for a in arrays), key=lambda d: d.itemsize)):
        tensors = [backend.array(a) for a in arrays]
        with np.errstate(all="ignore"), ignoring_warnings():
            return backend.numpy(getattr(xp, name)(*tensors, **attrs))


def assert_close(
    actual: Any, expected: Any, dtype: Any, what: str, scale: Any = None, ulps: float = 4
) -> None:
    """Bools equal; numbers within `ulps` eps of the result, or of `scale`."""
    if expected.dtype == bool:
        assert actual.dtype == bool, what
        np.testing.assert_array_equal(actual, expected, err_msg=what)
        return
    assert actual.dtype == dtype, f"{what}: {actual.dtype}"
    got, info = widen(actual), finfo(dtype)
    with np.errstate(all="ignore"):
        limit = ulps * float(info.eps) * np.abs(expected if scale is None else scale) + slack(dtype)
        top = float(info.max)
        same = (got == expected) | (np.isnan(got) & np.isnan(expected))
        overflow = np.isinf(got) & (np.abs(expected) > top * (1 - 4 * float(info.eps)))
        overflow &= np.sign(got) == np.sign(expected)
        wrong = ~(same | overflow | (np.abs(got - expected) <= limit))
    assert not wrong.any(), f"{what}: {got[wrong][:5]}, expected {expected[wrong][:5]}"


def numbers(dtype: Any) -> Any:
    return np.concatenate([edge_values(dtype, 1.5, 2.5), spread(40, dtype, width=3.0)])


def test_ties_are_rounded_to_even(backend: Any) -> None:
    for dtype in DTYPES:
        x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5], dtype)
        np.testing.assert_array_equal(call(backend, "round", x), [0, 2, 2, 0, -2, -2])


@pytest.mark.parametrize("name", LOGIC)
def test_logic_of_two_masks(backend: Any, name: str) -> None:
    a, b = np.array([True, True, False, False]), np.array([True, False, True, False])
    np.testing.assert_array_equal(call(backend, name, a, b), LOGIC[name](a, b))


def test_logical_not(backend: Any) -> None:
    mask = np.array([True, False])
    np.testing.assert_array_equal(call(backend, "logical_not", mask), ~mask)


def test_where_chooses_by_the_mask_whatever_is_not_chosen(backend: Any) -> None:
    for dtype in DTYPES:
        x = numbers(dtype)
        mask, other = np.arange(x.size) % 3 == 0, spread(x.shape, dtype)
        actual = call(backend, "where", mask, x, other)
        assert_close(actual, widen(np.where(mask, x, other)), dtype, f"where, {dtype}")


def test_clip_propagates_nan_and_an_empty_window_gives_its_maximum(backend: Any) -> None:
    bounds = np.array([-np.inf, -1.0, 0.0, 2.0, np.nan, np.inf])
    for dtype in DTYPES:
        triples = itertools.product(bounds, repeat=3)
        x, low, high = (np.array(column, dtype) for column in zip(*triples, strict=True))
        with np.errstate(invalid="ignore"):  # ml_dtypes compares with NaN
            inside = np.where(x < low, low, np.where(x > high, high, x))
            expected = np.where(low > high, high, inside)
        expected[np.isnan(x) | np.isnan(low) | np.isnan(high)] = np.nan
        assert_close(call(backend, "clip", x, low, high), widen(expected), dtype, "clip")


def test_casts_round_to_nearest_and_masks_become_zeros_and_ones(backend: Any) -> None:
    names = ("float16", "bfloat16", "float32", "float64")
    for source, target in itertools.product(DTYPES, names):
        x = spread(20, source)
        with backend.precision(FLOAT64):
            cast = backend.numpy(xp.astype(backend.array(x), native_dtype(backend, target)))
        assert cast.dtype.name == target
        np.testing.assert_array_equal(cast, x.astype(cast.dtype))


def native_dtype(backend: Any, name: str) -> Any:
    from multigrad.core.backend.discovery import load_backend

    return load_backend(backend.name).tensors.dtype(name)


def test_filled_tensors_have_the_shape_and_dtype_of_their_model(backend: Any) -> None:
    for dtype in DTYPES:
        x = spread((2, 3), dtype)
        for name, value in (("zeros_like", 0.0), ("ones_like", 1.0)):
            filled = call(backend, name, x)
            assert filled.dtype == dtype
            np.testing.assert_array_equal(filled, np.full((2, 3), value))
        np.testing.assert_array_equal(
            call(backend, "full_like", x, value=2.5), np.full((2, 3), 2.5)
        )


# --- reductions and shapes ------------------------------------------------------------------------


def euclid(x: Wide, axis: Any, keepdims: bool) -> Wide:
    return np.sqrt(np.sum(x * x, axis=axis, keepdims=keepdims))


REDUCTIONS: dict[str, Callable[..., Wide]] = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "norm": euclid,
    "var": np.var,
    "std": np.std,
}
AXES: dict[tuple[int, ...], tuple[Any, ...]] = {
    (): (None, -1),
    (2, 3, 4): (None, None, 1, -1, -1, (0, 2), (-1, -2)),  # with and without keepdims in turn
    (2, 0, 3): (1,),
}


def special_rows(dtype: Any) -> Any:
    """Rows with a NaN, infinities, ties and signed zeros."""
    rows = spread((5, 4), dtype)
    rows[0, 1], rows[1, 2], rows[2, 3] = np.nan, np.inf, -np.inf
    rows[3], rows[4, :2] = 1.0, (0.0, -0.0)
    return rows


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_over_any_axes(backend: Any, name: str) -> None:
    for dtype in DTYPES:
        cases = [(spread(shape, dtype), axis) for shape in AXES for axis in AXES[shape]]
        cases += [(special_rows(dtype), -1)]
        for (x, axis), keepdims in zip(cases, itertools.cycle((False, True)), strict=False):
            if x.size == 0 and name in ("max", "min"):
                continue  # NumPy, torch and jax raise their own error, TensorFlow gives -inf
            actual = call(backend, name, x, axis=axis, keepdims=keepdims)
            axis = () if x.ndim == 0 else axis
            expected, largest = reduce_exactly(name, x, axis, keepdims)
            what = f"{name}, {x.shape}, {axis}, {keepdims}, {dtype}"
            assert np.shape(actual) == expected.shape, what
            assert_close(actual, expected, dtype, what, largest)


def reduce_exactly(name: str, x: Any, axis: Any, keepdims: bool) -> tuple[Wide, Wide]:
    """The result, and the largest value met on the way to each element of it."""
    axis = () if x.ndim == 0 else axis  # a scalar has nothing to reduce
    with np.errstate(all="ignore"), ignoring_warnings():
        result = np.asarray(REDUCTIONS[name](widen(x), axis=axis, keepdims=keepdims))
        peak = np.max(np.abs(widen(x)), axis=axis, keepdims=keepdims, initial=0.0)
    met = peak**2 if name == "var" else peak
    return result, np.fmax(np.abs(result), met)


@pytest.mark.parametrize("name", ["var", "std"])
def test_variance_can_divide_by_one_less(backend: Any, name: str) -> None:
    x = spread((3, 5), FLOAT32)
    actual = call(backend, name, x, axis=1, correction=1)
    expected = getattr(np, name)(widen(x), axis=1, ddof=1)
    assert_close(actual, expected, FLOAT32, name)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
def test_sixteen_bit_reductions_round_once(backend: Any, dtype: Any) -> None:
    x = spread(3001, dtype)
    for name in ("sum", "mean", "norm", "var", "std"):
        expected, _ = reduce_exactly(name, x, None, False)
        actual = call(backend, name, x)
        # float32 sums of 3001 terms are right to a millionth of their absolute sum
        loose = 2e-6 * np.abs(widen(x)).sum() / (1 if name == "sum" else 3001)
        error = np.abs(widen(actual) - expected)
        assert error <= 0.51 * float(finfo(dtype).eps) * np.abs(expected) + loose, name


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1)])
def test_any_and_all_of_masks(backend: Any, axis: Any) -> None:
    mask = np.array([[True, False, True], [True, True, True]])
    for name, keepdims in itertools.product(("any", "all"), (False, True)):
        actual = call(backend, name, mask, axis=axis, keepdims=keepdims)
        expected = getattr(np, name)(mask, axis=axis, keepdims=keepdims)
        assert np.shape(actual) == np.shape(expected)
        np.testing.assert_array_equal(actual, expected)


def test_sum_to_undoes_broadcast_to(backend: Any) -> None:
    big = spread((2, 3, 4), FLOAT32)
    for shape in ((2, 3, 4), (3, 4), (1, 4), (3, 1), (2, 1, 1), (4,), (1,), ()):
        like = spread(shape, FLOAT32)
        spread_out = call(backend, "broadcast_to", like, big)
        np.testing.assert_array_equal(spread_out, np.broadcast_to(like, big.shape))
        axes = tuple(i for i, n in enumerate((1,) * (3 - len(shape)) + shape) if n == 1)
        expected = widen(big).sum(axis=axes).reshape(shape)
        actual = call(backend, "sum_to", big, like)
        assert actual.shape == shape
        assert_close(actual, expected, FLOAT32, f"sum_to {shape}", np.full(shape, 24.0))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_expand_dims_adds_an_axis_of_length_one(backend: Any, axis: int) -> None:
    x = spread((2, 3), FLOAT32)
    actual = call(backend, "expand_dims", x, axis=axis)
    np.testing.assert_array_equal(actual, np.expand_dims(x, axis))


def test_lengths_and_sizes_are_integers(backend: Any) -> None:
    x = backend.array(np.zeros((2, 3), np.float32))
    assert [int(xp.dim(x, i)) for i in (0, 1, -1)] == [2, 3, 3]
    assert int(xp.size(x)) == 6
