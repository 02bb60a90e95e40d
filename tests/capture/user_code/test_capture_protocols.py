"""Python's protocols on symbols: the answer of the real value, or the rule runs as it is; never a
default branch.
"""

# ruff: noqa: RUF005, RUF015, UP031  (forms in which people write)

from __future__ import annotations

import copy
import functools
import json
import math
import numbers
import operator
import pickle
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import multigrad as xg

X = np.array([[-1.0, 0.5, 2.0], [3.0, -0.25, 0.0]], np.float32)
G = np.array([[1.0, -2.0, 3.0], [-1.0, 0.5, 4.0]], np.float32)
WIDTHS = (1.0, 2.5, 3.7)


# --- what Python takes of a number: the rule is captured, and follows it --------------------------


def by_class(ctx: Any, g: Any, x: Any, *, w: float = 1.0) -> Any:
    is_number = isinstance(w, numbers.Number) and type(w) is float and w.__class__ is float
    return g * (w if is_number and not isinstance(w, int) else 7.0)


def sorted_and_summed(ctx: Any, g: Any, x: Any, *, w: float = 1.0) -> Any:
    low, high = sorted([w, 2.0])
    return g * low + high + sum([w, 1.0]) + max(w, 2.0) - min([w, 2.0])


def by_operators(ctx: Any, g: Any, x: Any, *, w: float = 1.0) -> Any:
    total = functools.reduce(operator.mul, [w, 2.0, w])
    return operator.add(g * total, operator.neg(x)) + (operator.lt(w, 2.0) and 1.0)


def matched(ctx: Any, g: Any, x: Any, *, w: float = 1.0) -> Any:
    match w:
        case 2.5:
            return g * 2.0
        case float():
            return g * 3.0
        case _:
            return g * 7.0


@functools.singledispatch
def scaled(value: Any) -> Any:
    return 7.0


@scaled.register
def _(value: float) -> Any:
    return value * 2.0


@scaled.register
def _(value: np.ndarray) -> Any:
    return np.abs(value)


NUMBERS: dict[str, Callable[..., Any]] = {
    "as a key": lambda ctx, g, x, *, w=1.0: g * {2.5: 2.0, 1.0: 5.0}.get(w, 7.0),
    "in a set": lambda ctx, g, x, *, w=1.0: g * (2.0 if w in {2.5} else 3.0),
    "in a tuple": lambda ctx, g, x, *, w=1.0: g * (2.0 if w in (1.0, 2.5) else 3.0),
    "by its hash": lambda ctx, g, x, *, w=1.0: g * (hash(w) % 3),
    "as text": lambda ctx, g, x, *, w=1.0: g * {"2.5": 2.0, "1.0": 5.0}.get(str(w), 7.0),
    "as its repr": lambda ctx, g, x, *, w=1.0: g * len([w].__repr__()) * float(repr(w)),
    "formatted": lambda ctx, g, x, *, w=1.0: (
        g * float(f"{w:.1f}") + float(format(w, ".3f")) + float("%.2f" % w) + float(f"{w!r}")
    ),
    "by a method of floats": lambda ctx, g, x, *, w=1.0: (
        g * (2.0 if w.is_integer() else 3.0) + w.as_integer_ratio()[0] + w.real - w.imag
    ),
    "by conversion": lambda ctx, g, x, *, w=1.0: (
        g * float(w) + int(w) + complex(w).real + round(w, 1) + math.trunc(w)
    ),
    "by math": lambda ctx, g, x, *, w=1.0: (
        g * math.gamma(w) + math.hypot(w, 1.0) + math.log(w) + math.fmod(w, 2) + math.floor(w)
    ),
    "by class": by_class,
    "sorted and summed": sorted_and_summed,
    "by operators": by_operators,
    "matched": matched,
    "copied": lambda ctx, g, x, *, w=1.0: (
        g * copy.copy(w) + copy.deepcopy(w) + copy.deepcopy([x, w])[0]
    ),
    "dispatched": lambda ctx, g, x, *, w=1.0: np.multiply(g, scaled(w)),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_answers_as_python_s(registered: Any, name: str) -> None:
    function = NUMBERS[name]
    rule = registered(function, native=False)
    for w in WIDTHS:
        expected = function(None, G, X, w=w)
        np.testing.assert_allclose(rule(None, G, X, w=w), expected, rtol=1e-6)


# --- what a tensor is: its class, as Python tells it ----------------------------------------------


def by_type(tensor: Any) -> Callable[..., Any]:
    return lambda ctx, g, x: g * (2.0 if type(x) is tensor and x.__class__ is tensor else 3.0)


def by_isinstance(tensor: Any) -> Callable[..., Any]:
    return lambda ctx, g, x: (
        g * (2.0 if isinstance(x, tensor) and not isinstance(x, float | type) else 3.0)
    )


def by_match(tensor: Any) -> Callable[..., Any]:
    def asks(ctx: Any, g: Any, x: Any) -> Any:
        match x:
            case float():
                return g * 5.0
            case tensor():
                return g * 2.0
            case _:
                return g * 3.0

    return asks


def by_dispatch(tensor: Any) -> Callable[..., Any]:
    @functools.singledispatch
    def factor(value: Any) -> Any:
        return 3.0

    @factor.register(tensor)
    def _(value: Any) -> Any:
        return abs(value)

    return lambda ctx, g, x: g * factor(x)


@pytest.mark.parametrize("make", [by_type, by_isinstance, by_match, by_dispatch])
@pytest.mark.backends("numpy", "torch")
def test_a_tensor_is_of_its_library_s_class(backend: Any, registered: Any, make: Any) -> None:
    function = make(type(backend.array(X)))
    expected = backend.numpy(function(None, backend.array(G), backend.array(X)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", xg.NativeRuleWarning)
        rule = registered(function)
        given = rule(None, backend.array(G), backend.array(X))
    np.testing.assert_array_equal(backend.numpy(given), expected)


def test_what_numpy_gives_as_a_scalar_is_no_array(registered: Any) -> None:
    def asks(ctx: Any, g: Any, x: Any) -> Any:
        return np.multiply(g, 2.0 if isinstance(np.sum(x), np.ndarray) else 3.0)

    with pytest.warns(xg.NativeRuleWarning):
        given = registered(asks)(None, G, X)
    np.testing.assert_array_equal(given, G * 3)


def by_its_dtype_as_a_key_and_as_text(ctx: Any, g: Any, x: Any) -> Any:
    known = {np.dtype("float32"): 2.0, np.dtype("float64"): 3.0}
    return np.multiply(g, known.get(x.dtype, 7.0)) * (2 if str(x.dtype) == "float64" else 1)


def by_identity(ctx: Any, g: Any, x: Any) -> Any:
    return np.multiply(g, 2.0 if x.dtype is np.dtype("float64") else 3.0)


@pytest.mark.parametrize(
    ("asks", "single", "double"), [(by_its_dtype_as_a_key_and_as_text, 2, 6), (by_identity, 3, 2)]
)
def test_a_dtype_is_the_library_s(registered: Any, asks: Any, single: int, double: int) -> None:
    rule = registered(asks, native=False)
    np.testing.assert_array_equal(rule(None, G, X), G * single)
    np.testing.assert_array_equal(rule(None, G.astype(float), X.astype(float)), G * float(double))


def test_a_shape_is_a_tuple(registered: Any) -> None:
    def asks(ctx: Any, g: Any, x: Any) -> Any:
        table = {(2, 3): 2.0, (3,): 3.0}
        is_tuple = isinstance(x.shape, tuple) and x.shape + (1,) == (*x.shape, 1)
        return np.multiply(g, table.get(x.shape, 7.0) if is_tuple else 9.0) * len(f"{x.shape}")

    rule = registered(asks, native=False)
    for g, x in ((G, X), (G[0], X[0])):
        np.testing.assert_array_equal(rule(None, g, x), asks(None, g, x))


# --- what a tensor has no answer to: the rule runs as it is ---------------------------------------


def asks_rows(ctx: Any, g: Any, x: Any) -> Any:
    first = [a for a, _ in zip(g, x)][0]  # noqa: B905
    return g * sum(i * row.sum() for i, row in enumerate(x)) + first


def asks_a_shallow_copy(ctx: Any, g: Any, x: Any) -> Any:
    y = copy.copy(x)
    y += 1
    return g * x * y


TENSORS: dict[str, Callable[..., Any]] = {
    "text": lambda ctx, g, x: g * len(str(x.shape)) * (2.0 if "symbolic" in f"{x}" else 3.0),
    "repr": lambda ctx, g, x: g * (2.0 if "symbolic" in repr(x) else 3.0),
    "json": lambda ctx, g, x: g * json.loads(json.dumps({"sum": float(x.sum())}))["sum"],
    "pickle": lambda ctx, g, x: g * pickle.loads(pickle.dumps(x)),
    "identity": lambda ctx, g, x: g * (2.0 if id(x) == id(g) else 3.0),
    "rows": asks_rows,
    "rows backwards": lambda ctx, g, x: g * [row.sum() for row in reversed(list(x))][0],
    "membership": lambda ctx, g, x: g * (2.0 if 0.5 in x else 3.0),
    "all": lambda ctx, g, x: g * (2.0 if any((x > 1).flatten()) else 3.0),
    "a shallow copy": asks_a_shallow_copy,
}
IN_A_GRAPH = ("rows", "rows backwards", "all")


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.backends("numpy", "torch")
def test_a_question_to_a_tensor_gets_python_s_answer(
    backend: Any, registered: Any, name: str
) -> None:
    function = TENSORS[name]
    try:
        expected = function(None, backend.array(G), backend.array(X))
    except (TypeError, ValueError, AttributeError) as error:
        with pytest.raises((type(error), xg.TraceError)), warnings.catch_warnings():
            warnings.simplefilter("ignore", xg.NativeRuleWarning)
            registered(function)(None, backend.array(G), backend.array(X))
        return
    with nullcontext() if name in IN_A_GRAPH else pytest.warns(xg.NativeRuleWarning):
        given = registered(function)(None, backend.array(G), backend.array(X))
    np.testing.assert_array_equal(backend.numpy(given), backend.numpy(expected))


@pytest.mark.backends("numpy", "torch")
def test_none_equals_a_tensor_as_in_the_library_of_the_tensor(
    backend: Any, registered: Any
) -> None:
    def asks(ctx: Any, g: Any, x: Any) -> Any:
        return g * (3.0 if x is None else 2.0) + (x == None)

    expected = asks(None, backend.array(G), backend.array(X))
    with warnings.catch_warnings():  # NumPy compares each element: it runs as written
        warnings.simplefilter("ignore", xg.NativeRuleWarning)
        given = registered(asks)(None, backend.array(G), backend.array(X))
    np.testing.assert_array_equal(backend.numpy(given), backend.numpy(expected))


def test_text_that_no_sample_of_a_proof_shows_is_not_captured(registered: Any) -> None:
    def asks(ctx: Any, g: Any, x: Any) -> Any:
        return np.multiply(g, 2.0 if "e+30" in str(x) else 1.0)

    with pytest.raises(xg.TraceError, match="writes a tensor as text"):
        registered(asks, native=False)(None, G, X)
    with pytest.warns(xg.NativeRuleWarning, match="writes a tensor as text"):
        given = registered(asks)(None, G, X * np.float32(1e30))
    np.testing.assert_array_equal(given, 2.0 * G)


def test_a_message_of_a_library_shows_a_symbol(registered: Any) -> None:
    def orders(ctx: Any, g: Any, x: Any) -> Any:
        return g * xg.xp.norm(x, ord=x)

    with pytest.raises(xg.TraceError, match="norm has an order above 0, as 1, 2 or inf, not <symb"):
        registered(orders, native=False)(None, G, X)


def test_a_deep_copy_is_another_tensor(registered: Any) -> None:
    def copies(ctx: Any, g: Any, x: Any) -> Any:
        y = copy.deepcopy(g)
        y += x
        return np.multiply(g, y)

    np.testing.assert_array_equal(registered(copies, native=False)(None, G, X), G * (G + X))
