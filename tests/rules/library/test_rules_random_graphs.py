"""Rules nobody wrote: random expressions, on every installed backend, against float64 with a bound
on rounding.

An expression is a nested tuple, evaluated once with `xg.xp` inside a rule, and once with `Exact`
numbers. Where rounding decides a comparison or an infinity, the oracle knows, and the element is
not compared.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import special

import multigrad as xg
from multigrad_conformance.oracles import (
    FLOAT32,
    FLOAT64,
    Exact,
    assert_same_numbers,
    exact,
    maximum,
    minimum,
    where,
)

xp = xg.xp
Expression = Any
Algebra = Mapping[str, Callable[..., Any]]

INFIX: Algebra = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "&": operator.and_, "|": operator.or_, "~": operator.invert, "neg": operator.neg, "abs": abs,
}  # fmt: skip
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], float]] = {  # in float64, and the ulps allowed
    "exp": (np.exp, 4), "expm1": (np.expm1, 4), "log": (np.log, 4), "log1p": (np.log1p, 200),
    "sin": (np.sin, 4), "cos": (np.cos, 4), "tanh": (np.tanh, 4), "atan": (np.arctan, 4),
    "erf": (special.erf, 4), "sigmoid": (special.expit, 4), "sqrt": (np.sqrt, 1),
    "floor": (np.floor, 0), "ceil": (np.ceil, 0), "round": (np.rint, 0), "trunc": (np.trunc, 0),
    "sign": (np.sign, 0), "stop_gradient": (np.positive, 0),
}  # fmt: skip
COMPARISONS = ("<", "<=", ">", ">=")


def exact_mean(x: Exact) -> Exact:
    return x.sum(axis=-1, keepdims=True) / x.value.shape[-1]


def exact_max(x: Exact) -> Exact:
    rows = [np.max(part, axis=-1, keepdims=True) for part in (x.value, x.error, x.largest)]
    return Exact(*rows, x.dtype)


EXACT: Algebra = {
    **INFIX,
    **{
        name: lambda x, function=function, ulps=ulps: x.apply(function, ulps)
        for name, (function, ulps) in FUNCTIONS.items()
    },
    "maximum": maximum, "minimum": minimum, "where": where, "square": lambda x: x * x,
    "reciprocal": lambda x: 1.0 / x, "relu": lambda x: maximum(x, 0.0),
    "heaviside": lambda x: where(x > 0, 1.0, 0.0), "clip": lambda x: minimum(maximum(x, -0.7), 0.7),
    "mean": exact_mean, "sum": lambda x: x.sum(axis=-1, keepdims=True), "max": exact_max,
    "norm": lambda x: (x * x).sum(axis=-1, keepdims=True).apply(np.sqrt, 1),
    "number": lambda mask: mask * 1.0, "larger": max, "if": lambda test, a, b: a if test else b,
}  # fmt: skip
RECORDED: Algebra = {
    **INFIX,
    **{name: getattr(xp, name) for name in FUNCTIONS},
    "maximum": xp.maximum, "minimum": xp.minimum, "where": xp.where, "square": xp.square,
    "reciprocal": xp.reciprocal, "relu": xp.relu, "heaviside": xp.heaviside,
    "clip": lambda x: xp.clip(x, -0.7, 0.7),
    "mean": lambda x: xp.mean(x, axis=-1, keepdims=True),
    "sum": lambda x: xp.sum(x, axis=-1, keepdims=True),
    "max": lambda x: xp.max(x, axis=-1, keepdims=True),
    "norm": lambda x: xp.norm(x, axis=-1, keepdims=True),
    "number": lambda mask: mask * 1.0, "larger": xp.maximum, "if": xp.where,
}  # fmt: skip


def evaluate(expression: Expression, algebra: Algebra, names: Mapping[str, Any]) -> Any:
    if isinstance(expression, str):
        return names[expression]
    if isinstance(expression, float):
        return expression
    name, *operands = expression
    return algebra[name](*(evaluate(operand, algebra, names) for operand in operands))


# --- expressions ----------------------------------------------------------------------------------

NUMBERS = st.sampled_from([0.0, 0.1, 0.5, 1.0, -1.0, 2.0, 3.0, -0.3])
SCALARS = st.one_of(
    NUMBERS,
    st.just("width"),
    st.tuples(st.sampled_from("+-*"), st.just("width"), NUMBERS),
    st.tuples(st.just("larger"), st.just("width"), NUMBERS),
)
UNARY = st.sampled_from(
    [*FUNCTIONS, "neg", "abs", "square", "reciprocal", "relu", "heaviside", "clip"]
)
REDUCTIONS = st.sampled_from(["mean", "sum", "max", "norm"])


def grow(tensors: Any) -> Any:
    """One level more: functions, operators with a tensor or a number on either side, masks,
    choices.
    """
    either = st.one_of(tensors, SCALARS)
    masks = st.tuples(st.sampled_from(COMPARISONS), tensors, either)
    masks = st.one_of(
        masks, st.tuples(st.sampled_from("&|"), masks, masks), st.tuples(st.just("~"), masks)
    )
    tests = st.tuples(st.sampled_from(COMPARISONS), st.just("width"), NUMBERS)
    return st.one_of(
        st.tuples(UNARY, tensors),
        st.tuples(st.sampled_from("+-*/"), tensors, either),
        st.tuples(st.sampled_from("+-*/"), SCALARS, tensors),
        st.tuples(st.sampled_from(["maximum", "minimum"]), tensors, either),
        st.tuples(st.just("where"), masks, tensors, either),
        st.tuples(st.just("where"), masks, SCALARS, tensors),
        st.tuples(st.just("number"), masks),
        st.tuples(st.just("*"), tensors, masks),
        st.tuples(st.just("if"), tests, tensors, tensors),
        st.tuples(REDUCTIONS, tensors),
    )


EXPRESSIONS = st.recursive(st.sampled_from(["g", "x"]), grow, max_leaves=8)
X = np.array([[-2.5, -0.7, -0.0, 0.3, 1.0, 7.0], [0.0, -1.0, 0.7, 1e-3, -20.0, 3.0]])
G = np.array([[1.0, -0.5, 2.0, 0.25, -3.0, 0.1], [-1.0, 0.0, 1.5, -0.2, 4.0, 1.0]])


@pytest.fixture(scope="module")
def installed(request: pytest.FixtureRequest) -> list[Any]:
    from ...conftest import BACKENDS, is_installed, split_names

    asked = split_names(request.config.getoption("--backends")) or list(BACKENDS)
    return [BACKENDS[name] for name in asked if is_installed(name)]


@pytest.mark.anywhere
@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    expression=EXPRESSIONS,
    width=st.sampled_from([0.3, 1.0, -2.0]),
    dtype=st.sampled_from([FLOAT32, FLOAT64]),
)
def test_random_rules_give_the_same_numbers_everywhere(
    installed: list[Any], expression: Expression, width: float, dtype: Any
) -> None:
    def rule(ctx: Any, grad_out: Any, tin: Any, width: float = width) -> Any:
        return grad_out * evaluate(expression, RECORDED, {"g": grad_out, "x": tin, "width": width})

    g, x = G.astype(dtype), X.astype(dtype)
    with np.errstate(all="ignore"):
        names = {"g": exact(g), "x": exact(x), "width": width}
        expected = exact(g) * evaluate(expression, EXACT, names)
    for backend in installed:
        _, grad_in = backend.vjp(xg.lower(rule, backend.name), x, g)
        assert_same_numbers(grad_in, expected, f"{backend.name}: {expression}", within_design=False)
