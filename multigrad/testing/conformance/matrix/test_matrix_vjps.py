"""The VJP of every elementwise op at every edge, in every dtype, on every backend, against its
derivative in float64.

The derivatives are those of `testing/slopes.py`, from calculus. A number must be within 4 eps of
the exact one, or of the largest value met on the way to it (PEAKS); what is not finite must be
equal. Where a framework takes subnormal numbers for zero, the derivative at zero is right too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.backend.finding.discovery import load_backend
from multigrad.graph.ir.graph import Graph
from multigrad.graph.ir.types import INPUT
from multigrad.graph.passes.simplify import simplify
from multigrad.lowering.lower import emit_rule
from multigrad.trace.derived.derivatives import pullback
from multigrad.trace.trace import Trace

from ...differences import DESIGNED, allowed, flushes, kept
from ...oracles import DTYPES, finfo, slack, spread, subnormals
from ...oracles import edge_values as ends
from ...slopes import BINARY, BINARY_PEAKS, LENGTHS, PEAKS, UNARY
from ...under_test import strided
from ..ops.test_ops import widen

xp = xg.xp
Wide = Any
# Thresholds that `edge_values` has not: where an op has a kink, a pole or an end.
THRESHOLDS = (0.25, 3.0, 8.0, 10.0, 20.0)
CALLS: dict[str, Callable[[Any], Any]] = {
    "polygamma": lambda x: xp.polygamma(1, x),
    "celu": lambda x: xp.celu(x, alpha=1.5),
    "threshold": lambda x: xp.threshold(x, 0.5, 20.0),
    "gelu, approximate": lambda x: xp.gelu(x, approximate=True),
}
NOT_FAR: dict[str, float] = {"sin": 100, "cos": 100, "tan": 100, "sinc": 100}


@cache
def derivative_of(name: str, backend: str) -> Callable[..., Any]:
    """`(grad_out, x) -> gradient`, emitted for a backend."""
    trace = Trace(name)
    tin = trace.input("tin", INPUT)
    result = CALLS[name](tin) if name in CALLS else getattr(xp, name)(tin)
    grad = simplify(pullback(Graph(name, (tin.node,), (result.node,))))
    return emit_rule(grad, load_backend(backend))[0]


def points(dtype: Any) -> Any:
    """Edges, subnormal numbers, thresholds with both neighbors, integers and ordinary numbers."""
    narrow = np.random.default_rng(1).uniform(-1, 1, 60).astype(dtype)
    whole = np.arange(-30, 31).astype(dtype)
    parts = [ends(dtype, *THRESHOLDS), subnormals(dtype), narrow, whole, spread(30, dtype, width=3)]
    return np.concatenate(parts)


def cotangents(x: Any) -> Any:
    """Numbers near one, of both signs: how they are multiplied in does not matter."""
    g = np.random.default_rng(2).uniform(0.5, 2.0, x.shape)
    return (g * np.where(np.arange(x.size).reshape(x.shape) % 3 == 0, -1, 1)).astype(x.dtype)


def error_in_eps(actual: Any, g: Any, slope: Wide, peak: Wide, gain: Wide = 1.0) -> Any:
    """How far a gradient is from `g * slope`, in eps of the largest value on the way; inf where it
    is another infinity.
    """
    info = finfo(actual.dtype)
    got, factor = widen(actual), widen(g)
    expected = factor * slope
    met = np.abs(factor) * np.fmax(np.abs(slope), peak)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    biggest = np.fmax(met, np.fmax(np.abs(slope), peak))  # some multiply by grad_out at the end
    overflow = np.isinf(got) & (biggest > float(info.max) * (1 - 4 * float(info.eps)))
    overflow &= np.sign(got) == np.sign(expected)
    # A number that underflows on the way may still be multiplied: by grad_out, by two, by `gain`.
    off = np.maximum(np.abs(got - expected) - 4 * slack(actual.dtype) * gain, 0)
    error = np.where(off == 0, 0, off / (float(info.eps) * met))
    return np.where(same | overflow, 0, np.where(np.isnan(error), np.inf, error))


def flushed(x: Any, backend: str) -> Any:
    """x as the backend sees it: where subnormal numbers are taken for zero, with zeros."""
    small = np.abs(x.astype(np.float64)) < float(finfo(x.dtype).smallest_normal)
    return np.where(small & flushes(backend, x.dtype), x * 0, x)


def worst(backend: Any, name: str, x: Any, g: Any, actual: Any) -> Any:
    """The error at each point; the smaller one, where x is a subnormal number that the backend
    flushes.
    """
    assert actual.dtype == x.dtype
    assert actual.shape == x.shape
    errors = []
    with np.errstate(all="ignore"):
        for seen in (x, flushed(x, backend.name)):
            wide = widen(seen)
            slope = UNARY[name](wide)
            peak = PEAKS[name](wide, slope) if name in PEAKS else np.zeros_like(slope)
            errors.append(error_in_eps(actual, g, slope, peak))
    return np.minimum(*errors)


def evaluate(backend: Any, function: Callable[..., Any], *arrays: Any) -> Any:
    with backend.precision(arrays[0].dtype), np.errstate(all="ignore"):
        return backend.numpy(function(*(backend.array(a) for a in arrays)))


def slope_errors(backend: Any, name: str, dtype: Any) -> tuple[Any, Any]:
    """The points, and the error at each."""
    x = points(dtype)
    if name in NOT_FAR:
        x = x[~(np.abs(x.astype(np.float64)) > NOT_FAR[name])]
    g = cotangents(x)
    actual = evaluate(backend, derivative_of(name, backend.name), g, x)
    return x, worst(backend, name, x, g, actual)


@pytest.mark.parametrize("name", UNARY)
def test_the_vjp_of_every_function_is_right_at_every_edge(backend: Any, name: str) -> None:
    for dtype in DTYPES:
        x, errors = slope_errors(backend, name, dtype)
        wrong = errors > allowed(backend.name, name, "slope", dtype)
        assert not wrong.any(), f"{name}, {dtype}: {errors[wrong][:6]} eps at {x[wrong][:6]}"


@cache
def derivatives_of(name: str, backend: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Two functions `(grad_out, a, b) -> gradient`, one for each operand."""
    trace = Trace(name)
    a, b = trace.input("a", INPUT), trace.input("b", INPUT)
    graph = Graph(name, (a.node, b.node), (getattr(xp, name)(a, b).node,))
    native = load_backend(backend)
    first, second = (emit_rule(simplify(pullback(graph, wrt)), native)[0] for wrt in "ab")
    return first, second


def pair_errors(backend: Any, name: str, dtype: Any) -> tuple[Any, Any, list[Any]]:
    """All pairs of edges, and the errors of the slopes in the first and in the second."""
    values = np.concatenate([ends(dtype), spread(9, dtype)])
    a, b = (grid.ravel() for grid in np.meshgrid(values, values))
    g, first, second, errors = cotangents(a), widen(a), widen(b), []
    with np.errstate(all="ignore"):
        gain, left_out = 1.0, np.zeros(a.shape, bool)
        if name == "pow":  # b - 1 may be rounded to an integer, or from an odd to an even one
            gain = np.nan_to_num(1 + np.abs(second) + np.abs(np.log(np.abs(first))))
            left_out = widen((b - b.dtype.type(1)).astype(dtype)) != second - 1
            left_out = (first <= 0) & (left_out | (second != np.rint(second)))
        functions = derivatives_of(name, backend.name)
        for function, slope in zip(functions, BINARY[name](first, second), strict=True):
            if name in LENGTHS:
                top = float(finfo(dtype).max) * (1 + float(finfo(dtype).eps) / 4)
                beyond = LENGTHS[name](first, second) > top
                slope = np.where(beyond & np.isfinite(first) & np.isfinite(second), 0, slope)
            peak = BINARY_PEAKS[name](first, second, slope) if name in BINARY_PEAKS else slope
            actual = evaluate(backend, function, g, a, b)
            error = error_in_eps(actual, g, slope, np.abs(peak), gain)
            errors.append(np.where(left_out, 0, error))
    return a, b, errors


@pytest.mark.parametrize("name", BINARY)
def test_the_vjps_of_two_operands_are_right_wherever_both_are_edges(
    backend: Any, name: str
) -> None:
    for dtype in DTYPES:
        a, b, pair = pair_errors(backend, name, dtype)
        for errors in pair:
            wrong = errors > allowed(backend.name, name, "slope", dtype)
            pairs = list(zip(a[wrong], b[wrong], strict=True))[:6]
            assert not wrong.any(), f"{name}, {dtype}: {errors[wrong][:6]} eps at {pairs}"


def test_what_is_declared_of_slopes_is_needed_and_enough(backend: Any) -> None:
    for row in kept(backend.name, "slope"):
        for dtype in (d for d in DTYPES if d.name in row.dtypes):
            if row.what in BINARY:
                errors = np.array(pair_errors(backend, row.what, dtype)[2])
            else:
                _, errors = slope_errors(backend, row.what, dtype)
            assert row.ulps is not None
            assert DESIGNED < errors.max() <= row.ulps, (row.what, errors.max())


SHAPES = ((), (0,), (3,), (2, 3, 4))


@pytest.mark.parametrize("name", UNARY)
def test_the_vjp_has_the_shape_of_its_input_and_does_not_mind_the_strides(
    backend: Any, name: str, compiling: bool
) -> None:
    function = derivative_of(name, backend.name)
    for dtype in DTYPES[:1] if compiling else DTYPES:
        limit = allowed(backend.name, name, "slope", dtype)
        for shape in (*SHAPES, (4, 6)):
            x, g = np.abs(spread(shape, dtype)) / 4 + dtype.type(0.1), spread(shape, dtype, seed=1)
            x, g = np.asarray(x, dtype), np.asarray(g, dtype)
            if shape == (4, 6):
                actual = evaluate(backend, lambda g, x: function(strided(g), strided(x)), g, x)
                x, g = strided(x), strided(g)
            else:
                actual = evaluate(backend, function, g, x)
            errors = worst(backend, name, x, g, actual)
            assert (errors <= limit).all(), f"{name}, {dtype}, {shape}: {errors.max()} eps"
