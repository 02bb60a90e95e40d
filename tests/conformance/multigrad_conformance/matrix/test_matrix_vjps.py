"""Every elementwise op and its VJP at every edge, in every dtype, on every backend, against the
exact value and derivative.

They are those of the vectors that are kept (`expected/exact.py`), and slopes of several operands at
infinities and zeros those of calculus (`expected/slopes.py`). A number must be within 4 eps of the
exact one, or of the largest value met on the way to it; what is not finite must be equal.
Where a framework takes subnormal numbers for zero, the derivative at zero is right too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.backend.discovery import load_backend
from multigrad.core.ir.graph import Graph
from multigrad.core.ir.op import INPUT, Op
from multigrad.core.lowering.derivatives import pullback
from multigrad.core.lowering.lower import emit_rule
from multigrad.core.ops import CALLABLE_OPS
from multigrad.core.ops.numerics import ignoring_warnings
from multigrad.core.passes.simplify import simplify
from multigrad.core.trace.trace import Trace

from ..declared import domain_of
from ..differences import DESIGNED, allowed, flushes, kept, unsettled
from ..expected.exact import exact, names_of, operands_of
from ..expected.slopes import (
    BINARY,
    BINARY_PEAKS,
    LENGTHS,
    PEAKS,
    PROMISED,
    PROMISED_VALUES,
    TERNARY,
)
from ..ops.test_ops import widen
from ..oracles import DTYPES, FLOAT32, finfo, slack, spread
from ..oracles import edge_values as ends
from ..under_test import strided
from .test_matrix_ops import is_subnormal, scale_of

xp = xg.xp
Wide = Any
UNARY = names_of(1)
OF_AN_OP = (
    "the op and its VJP are in multigrad/core/ops, what they are compared with in "
    "tools/vectors/elementwise.py and expected/slopes.py; where terms cancel, the largest is in "
    "SCALES there for a value, PEAKS for a slope, BINARY_PEAKS for the slopes of two operands"
)
CALLS: dict[str, Callable[..., Any]] = {
    "polygamma": lambda x: xp.polygamma(1, x),
    "celu": lambda x: xp.celu(x, alpha=1.5),
    "threshold": lambda x: xp.threshold(x, 0.5, 20.0),
    "gelu, approximate": lambda x: xp.gelu(x, approximate=True),
    "where": lambda condition, a, b: xp.where(condition > 0.5, a, b),
}
NOT_FAR: dict[str, float] = {
    **dict.fromkeys(("sin", "cos", "tan", "sinc"), 100),
    **dict.fromkeys(("digamma", "polygamma"), 1e17),  # polygamma underflows: docs/differences.md
}

# At subnormal numbers SciPy 1.17 is 6e-5 off, and TensorFlow 2.21 takes all of them for one.
NOT_TINY = {"lgamma"}


@cache
def derivative_of(name: str, backend: str) -> Callable[..., Any]:
    """`(grad_out, x) -> gradient`, emitted for a backend."""
    trace = Trace(name)
    tin = trace.input("tin", INPUT)
    result = CALLS[name](tin) if name in CALLS else getattr(xp, name)(tin)
    grad = simplify(pullback(Graph(name, (tin.node,), (result.node,))))
    return emit_rule(grad, load_backend(backend))[0]


@cache
def slopes_of(name: str, dtype: Any) -> tuple[Any, Wide]:
    """Where vectors have the slope of an op, and it; and what its row promises elsewhere."""
    known = exact(name, dtype)
    return completed(name, known.operands[0], known.slopes[0], PROMISED)


@cache
def values_of(name: str, dtype: Any) -> tuple[Any, Wide]:
    """The same of an op itself."""
    known = exact(name, dtype)
    return completed(name, known.operands[0], known.result, PROMISED_VALUES)


def completed(name: str, x: Any, numbers: Wide, promises: Mapping[str, Any]) -> tuple[Any, Wide]:
    promised = np.reshape(promises.get(name, ()), (-1, 2))
    own = promised[:, 0].astype(x.dtype)
    is_other = ~np.array([any(map(functools.partial(is_same, each), own)) for each in x], bool)
    if name in NOT_FAR:
        is_other &= ~(np.abs(x.astype(np.float64)) > NOT_FAR[name])
    return np.concatenate([x[is_other], own]), np.concatenate([numbers[is_other], promised[:, 1]])


def is_same(a: Any, b: Any) -> bool:
    """Whether numbers are the same, zeros of both signs apart."""
    return bool(np.isnan(a) and np.isnan(b)) or (a == b and np.signbit(a) == np.signbit(b))


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


def worst(
    backend: Any,
    name: str,
    which: Any,
    g: Any,
    actual: Any,
    x: Any,
    slope: Wide,
    peak_of: Callable[[str, Any, Wide], Wide],
) -> Any:
    """The error at each point; where x is a subnormal number that the backend flushes, the smaller
    one of it and of a zero of its sign.

    Args:
        which: the places of the points among all of the vectors.
        peak_of: gives the largest value on the way.
    """
    assert actual.dtype == x.dtype
    assert actual.shape == which.shape
    whole = slope[which]
    with np.errstate(all="ignore"):
        errors = [error_in_eps(actual, g, whole, peak_of(name, x[which], whole))]
        if flushes(backend.name, x.dtype):
            zeros = [slope[[is_same(each, zero) for each in x]] for zero in (0.0, -0.0)]
            at = [own[0] if len(own) else np.nan for own in zeros]
            small = np.abs(x.astype(np.float64)) < float(finfo(x.dtype).smallest_normal)
            seen = np.where(small, np.where(np.signbit(x), at[1], at[0]), slope)[which]
            errors.append(error_in_eps(actual, g, seen, peak_of(name, x[which] * 0, seen)))
    return np.minimum.reduce(errors)


def peak_of(name: str, x: Any, slope: Wide) -> Wide:
    return PEAKS[name](widen(x), slope) if name in PEAKS else np.zeros_like(slope)


def size_of(name: str, x: Any, value: Wide) -> Wide:
    return np.abs(scale_of(name.partition(",")[0], value, widen(x)))


def evaluate(backend: Any, function: Callable[..., Any], *arrays: Any) -> Any:
    with backend.precision(arrays[0].dtype), np.errstate(all="ignore"):
        return backend.numpy(function(*(backend.array(a) for a in arrays)))


class Errors(NamedTuple):
    """How many eps numbers are off, the numbers found, and those expected."""

    eps: Any
    found: Any
    expected: Any


def assert_right(what: str, errors: Errors, wrong: Any, operands: Sequence[Any]) -> None:
    columns = zip(*(x[wrong][:6] for x in (*errors, *operands)), strict=True)
    rows = [
        f"{found:.9g}, expected {expected:.9g} ({eps:.4g} eps off), at {tuple(map(float, at))}"
        for eps, found, expected, *at in columns
    ]
    assert not wrong.any(), "\n".join([f"{what}: {'; '.join(rows)}", OF_AN_OP])


def test_a_wrong_number_is_named_with_the_right_one() -> None:
    errors, at = Errors(*np.array([[0.0, np.inf], [1.0, np.nan], [1.0, -np.inf]])), np.arange(2.0)
    with pytest.raises(AssertionError, match=r"f: nan, expected -inf \(inf eps off\), at \(1.0,\)"):
        assert_right("f", errors, errors.eps > 4, (at,))


@pytest.mark.parametrize("row", [op for op in CALLABLE_OPS if op.name in UNARY], ids=str)
def test_the_slope_at_each_end_of_a_domain_is_known(row: Op) -> None:
    ends = [end for end in domain_of(row, 0)[:2] if np.isfinite(end)]
    missing = [end for end in ends if end not in slopes_of(row.name, FLOAT32)[0]]
    what = f"the slope of {row.name} at {missing}, the end of its domain, is in no vector"
    assert not missing, f"{what}: add its row (x, slope) to PROMISED of expected/slopes.py"


def slope_errors(backend: Any, name: str, dtype: Any) -> tuple[Any, Errors]:
    """The points, and the error at each."""
    x, slope = slopes_of(name, dtype)
    g = cotangents(x)
    actual = evaluate(backend, derivative_of(name, backend.name), g, x)
    eps = worst(backend, name, np.arange(x.size), g, actual, x, slope, peak_of)
    return x, Errors(eps, widen(actual), widen(g) * slope)


@pytest.mark.parametrize("name", UNARY)
def test_the_vjp_of_every_function_is_right_at_every_edge(backend: Any, name: str) -> None:
    for dtype in DTYPES:
        x, errors = slope_errors(backend, name, dtype)
        wrong = errors.eps > allowed(backend.name, name, "slope", dtype)
        assert_right(f"{name}, slope, {dtype}", errors, wrong, (x,))


@pytest.mark.parametrize("name", UNARY)
def test_every_function_of_one_operand_gives_the_exact_numbers_at_every_edge(
    backend: Any, name: str
) -> None:
    for dtype in DTYPES:
        x, value = values_of(name, dtype)
        with ignoring_warnings():
            actual = evaluate(backend, CALLS.get(name) or getattr(xp, name), x)
        places, ones = np.arange(x.size), np.ones_like(x)
        errors = worst(backend, name, places, ones, actual, x, value, size_of)
        wrong = errors > allowed(backend.name, name, "value", dtype)
        wrong &= ~unsettled(backend.name, name, x)
        if name in NOT_TINY or kept(backend.name, "subnormals", name):
            wrong &= ~is_subnormal(x)
        numbers = Errors(errors, widen(actual), value)
        assert_right(f"{name}, value, {dtype}", numbers, wrong, (x,))


@pytest.mark.parametrize("name", names_of(2))
def test_every_function_of_two_gives_the_exact_numbers_at_every_edge(
    backend: Any, name: str
) -> None:
    function = CALLS[name] if name in CALLS else getattr(xp, name)
    for dtype in DTYPES:
        known = exact(name, dtype)
        first = widen(known.operands[0])
        left_out = np.any([is_subnormal(x) for x in known.operands], axis=0)
        with ignoring_warnings():
            actual = evaluate(backend, function, *known.operands)
        with np.errstate(all="ignore"):
            scale = np.abs(scale_of(name, known.result, first))
            errors = error_in_eps(actual, np.ones_like(actual), known.result, scale)
        wrong = (errors > allowed(backend.name, name, "value", dtype)) & ~left_out
        numbers = Errors(errors, widen(actual), known.result)
        assert_right(f"{name}, {dtype}", numbers, wrong, known.operands)


@cache
def derivatives_of(name: str, backend: str) -> list[Callable[..., Any]]:
    """A function `(grad_out, *operands) -> gradient` for each operand that is a number."""
    trace, count = Trace(name), len(exact(name, DTYPES[0]).operands)
    inputs = [trace.input(word, INPUT) for word in "abc"[:count]]
    result = (CALLS[name] if name in CALLS else getattr(xp, name))(*inputs)
    graph = Graph(name, tuple(each.node for each in inputs), (result.node,))
    wanted = "bc" if name == "where" else "abc"[:count]
    native = load_backend(backend)
    return [emit_rule(simplify(pullback(graph, wrt)), native)[0] for wrt in wanted]


def triples(name: str, dtype: Any) -> tuple[list[Any], list[Wide]]:
    """The rows of the vectors and then all triples of edges; the value and the slopes there."""
    known, root = exact(name, dtype), float(finfo(dtype).max) ** 0.5
    edges = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -2.6, 0.3, root * 64, -root * root / 4)
    values = np.array([*edges, 1 / root / 64]).astype(dtype)
    grids = [grid.ravel() for grid in np.meshgrid(*[values] * 3)]
    with np.errstate(all="ignore"):
        by_hand = TERNARY[name](*map(widen, grids))
    exact_ = (known.result, *known.slopes[1 - len(by_hand) :])
    pairs = zip(exact_, by_hand, strict=True)
    operands = [np.concatenate(pair) for pair in zip(known.operands, grids, strict=True)]
    return operands, [np.concatenate(pair) for pair in pairs]


@pytest.mark.parametrize("name", names_of(3))
def test_every_function_of_three_and_its_vjps_are_right_at_every_edge(
    backend: Any, name: str
) -> None:
    assert name in TERNARY, f"write {name}'s value and slopes into TERNARY of expected/slopes.py"
    function = CALLS.get(name) or getattr(xp, name)
    functions = [lambda g, *operands: function(*operands), *derivatives_of(name, backend.name)]
    wanted = operands_of(name)[1 - len(functions) :]
    wanted = ["value", *(f"slope in {each}" for each in wanted)]
    for dtype in DTYPES:
        operands, expected = triples(name, dtype)
        first = widen(operands[0])
        for what, own, exact_ in zip(wanted, functions, expected, strict=True):
            is_value = own is functions[0]
            g = np.ones_like(operands[0]) if is_value else cotangents(operands[0])
            with ignoring_warnings():
                actual = evaluate(backend, own, g, *operands)
            with np.errstate(all="ignore"):
                scale = scale_of(name, exact_, first) if is_value else exact_
                errors = error_in_eps(actual, g, exact_, np.abs(scale))
            wrong = errors > allowed(backend.name, name, "value" if is_value else "slope", dtype)
            numbers = Errors(errors, widen(actual), widen(g) * exact_)
            assert_right(f"{name}, {what}, {dtype}", numbers, wrong, operands)


@pytest.mark.parametrize("name", sorted({*names_of(2)} - {"full_like"}))  # it fills with one number
def test_slopes_by_hand_are_those_of_the_witness_where_it_has_them(name: str) -> None:
    assert name in BINARY, f"write {name}'s two slopes into BINARY of expected/slopes.py"
    for dtype in DTYPES:
        known = exact(name, dtype)
        a, b = map(widen, known.operands)
        with np.errstate(all="ignore"):
            for mine, slope in zip(BINARY[name](a, b), known.slopes, strict=True):
                fits = np.isfinite(slope)  # beyond the range of the dtype it is an infinity
                limit = 4 * float(finfo(dtype).eps) * np.abs(slope) + slack(dtype)
                assert (np.abs(mine - slope) <= limit)[fits].all(), (name, dtype)


def pair_errors(backend: Any, name: str, dtype: Any) -> tuple[Any, Any, list[Errors]]:
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
            errors.append(Errors(np.where(left_out, 0, error), widen(actual), widen(g) * slope))
    return a, b, errors


@pytest.mark.parametrize("name", BINARY)
def test_the_vjps_of_two_operands_are_right_wherever_both_are_edges(
    backend: Any, name: str
) -> None:
    for dtype in DTYPES:
        a, b, pair = pair_errors(backend, name, dtype)
        for operand, errors in zip(operands_of(name), pair, strict=True):
            wrong = errors.eps > allowed(backend.name, name, "slope", dtype)
            assert_right(f"{name}, slope in {operand}, {dtype}", errors, wrong, (a, b))


def test_what_is_declared_of_slopes_is_needed_and_enough(backend: Any) -> None:
    for row in kept(backend.name, "slope"):
        for dtype in (d for d in DTYPES if d.name in row.dtypes):
            if row.what in BINARY:
                errors = pair_errors(backend, row.what, dtype)[2]
            else:
                errors = [slope_errors(backend, row.what, dtype)[1]]
            most = max(each.eps.max() for each in errors)
            assert row.ulps is not None
            assert DESIGNED < most <= row.ulps, (row.what, most)


SHAPES = ((), (0,), (3,), (2, 3, 4))


@pytest.mark.parametrize("kind", ["value", "slope"])
@pytest.mark.parametrize("name", UNARY)
def test_the_value_and_the_vjp_have_the_shape_of_the_input_and_do_not_mind_the_strides(
    backend: Any, name: str, kind: str, compiling: bool
) -> None:
    function, points_of, peak = derivative_of(name, backend.name), slopes_of, peak_of
    if kind == "value":
        own = CALLS.get(name) or getattr(xp, name)
        function, points_of, peak = lambda g, x: own(x) * g, values_of, size_of
    for dtype in DTYPES[:1] if compiling else DTYPES:
        limit = allowed(backend.name, name, kind, dtype)
        points, known = points_of(name, dtype)
        size = np.abs(points.astype(np.float64))
        ordinary = np.flatnonzero((size > 0.05) & (size < 8) & np.isfinite(known))
        for shape in (*SHAPES, (4, 6)):
            which = np.resize(ordinary, shape)
            x, g = points[which], spread(shape, dtype, seed=1)
            x, g = np.asarray(x, dtype), np.asarray(g, dtype)
            g = np.ones_like(g) if kind == "value" else g
            if shape == (4, 6):
                actual = evaluate(backend, lambda g, x: function(strided(g), strided(x)), g, x)
                which, g = strided(which), strided(g)
            else:
                actual = evaluate(backend, function, g, x)
            errors = worst(backend, name, which, g, actual, points, known, peak)
            assert (errors <= limit).all(), f"{name}, {dtype}, {shape}: {errors.max()} eps"
