"""The VJP of every op against central differences, on NumPy in float64; and lowered, the same on every backend.

Points are away from kinks and poles. A second row of tests differentiates the VJPs again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.ir import ops
from multigrad.ir.derivatives import pullback
from multigrad.ir.graph import Graph
from multigrad.ir.passes import simplify, substitute
from multigrad.ir.record import Trace
from multigrad.ir.types import INPUT
from multigrad.ir.verify import verify
from multigrad.lowering.backend import load_backend
from multigrad.lowering.lower import emit_rule

from ..oracles import FLOAT64

xp = xg.xp
Tensor = Any
# (2, 3) numbers of both signs, none within 0.1 of 0, 0.5, 1, 6 or of another.
X = np.array([[-1.7, 0.8, 2.3], [-0.35, 0.15, -2.6]])
OTHER = np.array([[0.9, -1.3, 0.65], [1.8, -0.7, -2.2]])


# Each is a function of `tin`, made of the op under test; the other operands are made of `tin` too, so that
# the shares of all operands are summed.
def other(x: Tensor) -> Tensor:
    return 0.3 * x * x - 1.05


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "add": lambda x: x + other(x),
    "sub": lambda x: other(x) - x,
    "mul": lambda x: x * other(x),
    "div": lambda x: other(x) / x,
    "pow": lambda x: xp.pow(x * x + 0.1, 0.5 * x),
    "pow of a number": lambda x: xp.pow(1.7, x),
    "pow to a number": lambda x: xp.pow(abs(x), 2.3),
    "maximum": lambda x: xp.maximum(x, other(x)),
    "minimum": lambda x: xp.minimum(other(x), x),
    "neg": lambda x: -x,
    "abs": lambda x: abs(x),
    "sign": lambda x: x * xp.sign(x),
    "square": xp.square,
    "sqrt": lambda x: xp.sqrt(abs(x)),
    "rsqrt": lambda x: xp.rsqrt(abs(x)),
    "reciprocal": xp.reciprocal,
    "floor": lambda x: x * xp.floor(x),
    "ceil": lambda x: x * xp.ceil(x),
    "round": lambda x: x * xp.round(x),
    "trunc": lambda x: x * xp.trunc(x),
    "exp": xp.exp,
    "expm1": xp.expm1,
    "log": lambda x: xp.log(abs(x)),
    "log1p": lambda x: xp.log1p(abs(x)),
    "sin": xp.sin,
    "cos": xp.cos,
    "atan": xp.atan,
    "tanh": xp.tanh,
    "erf": xp.erf,
    "lt": lambda x: x * (x < 0.5),
    "le": lambda x: x * (x <= 0.5),
    "gt": lambda x: x * (x > 0.5),
    "ge": lambda x: x * (x >= 0.5),
    "eq": lambda x: x * xp.equal(xp.sign(x), 1),
    "ne": lambda x: x * xp.not_equal(xp.sign(x), 1),
    "and": lambda x: x * ((x > -1) & (x < 1)),
    "or": lambda x: x * ((x < -1) | (x > 1)),
    "xor": lambda x: x * ((x > -1) ^ (x > 1)),
    "not": lambda x: x * ~(x > 0),
    "isnan": lambda x: x * ~xp.isnan(x),
    "isinf": lambda x: x * ~xp.isinf(x),
    "isfinite": lambda x: x * xp.isfinite(x),
    "clip": lambda x: xp.clip(x, -1.0, 1.0),
    "clip between tensors": lambda x: xp.clip(x, xp.sin(x) - 1.0, xp.cos(x)),
    "where": lambda x: xp.where(x > 0, x * x, xp.exp(x)),
    "full_like": lambda x: x * xp.full_like(x, 2.0),
    "full_like of a sum": lambda x: x * xp.full_like(x, 1.0) * xp.size(x),
    "sum": lambda x: x * xp.sum(x, axis=0, keepdims=True),
    "sum over all": lambda x: x * xp.sum(x * x),
    "sum, axis dropped": lambda x: x * xp.broadcast_to(xp.sum(x * x, axis=0), x),
    "mean": lambda x: x * xp.mean(x * x, axis=-1, keepdims=True),
    "mean over all": lambda x: x * xp.mean(x * x),
    "mean over both": lambda x: x * xp.mean(x * x, axis=(0, 1), keepdims=True),
    "max": lambda x: x * xp.max(x, axis=1, keepdims=True),
    "max over all": lambda x: x * xp.max(x),
    "min": lambda x: x * xp.min(x, axis=0, keepdims=True),
    "min, axis dropped": lambda x: x * xp.broadcast_to(xp.min(x, axis=0), x),
    "any": lambda x: x * xp.any(x > 2, axis=1, keepdims=True),
    "all": lambda x: x * xp.all(x < 2, axis=1, keepdims=True),
    "norm": lambda x: x / xp.norm(x),
    "norm along one axis": lambda x: x / xp.norm(x, axis=-1, keepdims=True),
    "var": lambda x: x * xp.var(x, axis=1, keepdims=True),
    "var over all": lambda x: x * xp.var(x, correction=1),
    "std": lambda x: x / xp.std(x, axis=0, keepdims=True),
    "std over all": lambda x: x * xp.std(x),
    "sum_to": lambda x: x * xp.sum_to(x * x, xp.sum(x, axis=1, keepdims=True)),
    "broadcast_to": lambda x: x * xp.broadcast_to(xp.sum(x, axis=1, keepdims=True), x),
    "expand_dims": lambda x: x * xp.expand_dims(xp.mean(x * x, axis=1), 1),
    "dim": lambda x: x * xp.dim(x, 0),
    "size": lambda x: x / xp.size(x),
    "sigmoid": xp.sigmoid,
    "relu": xp.relu,
    "relu6": lambda x: xp.relu6(3 * x),
    "silu": xp.silu,
    "softplus": xp.softplus,
    "heaviside": lambda x: x * xp.heaviside(x),
    "leaky_relu": lambda x: xp.leaky_relu(x, slope=0.2),
    "elu": lambda x: xp.elu(x, alpha=1.5),
    "gelu": xp.gelu,
    "gelu, approximate": lambda x: xp.gelu(x, approximate=True),
}
# Ops without a slope to compare with.
ELSEWHERE = {"cast", "stop_gradient", "fold_in", "uniform_like", "normal_like"}
each_function = pytest.mark.parametrize("name", FUNCTIONS)


def record(name: str) -> Graph:
    """The graph of one of the functions above."""
    return record_function(FUNCTIONS[name])


def record_function(function: Callable[[Tensor], Tensor]) -> Graph:
    trace = Trace("function")
    tin = trace.input("tin", INPUT)
    graph = Graph("function", (tin.node,), (function(tin).node,))
    verify(graph)
    return graph


def gradient_of_the_sum(graph: Graph) -> Graph:
    """`tin -> gradient of the sum of f(tin)`, simplified."""
    grad = pullback(graph)
    ones = xp.ones_like(Trace(grad.name).value(graph.inputs[0]))
    whole = substitute(grad, {grad.inputs[0]: ones.node})
    return simplify(Graph(grad.name, graph.inputs, whole.outputs))


def evaluate(graph: Graph, backend: Any, *arrays: Any) -> Any:
    function = emit_rule(graph, load_backend(backend.name))[0]
    with backend.precision(arrays[0].dtype):
        return backend.numpy(function(*(backend.array(array) for array in arrays)))


def slopes(f: Callable[[Any], Any], x: Any, weights: Any) -> Any:
    """Central differences of `sum(weights * f(x))` in each element of x."""
    step, slopes = 1e-5, np.empty_like(x)
    for index in np.ndindex(x.shape):
        shift = np.zeros_like(x)
        shift[index] = step
        slopes[index] = np.sum(weights * (f(x + shift) - f(x - shift))) / (2 * step)
    return slopes


def check_slopes(graph: Graph, tolerance: float) -> None:
    """Compare a graph's VJP, itself a legal graph, with finite differences on the shared input."""
    grad = simplify(pullback(graph))
    verify(grad)
    function = emit_rule(graph, load_backend("numpy"))[0]
    derivative = emit_rule(grad, load_backend("numpy"))[0]
    expected = slopes(function, X, OTHER)
    np.testing.assert_allclose(derivative(OTHER, X), expected, rtol=tolerance, atol=tolerance)


@each_function
def test_the_vjp_is_the_slope(name: str) -> None:
    check_slopes(record(name), 1e-8)


@each_function
def test_the_vjp_can_be_differentiated_again(name: str) -> None:
    check_slopes(gradient_of_the_sum(record(name)), 1e-7)


@pytest.mark.beside_numpy
@each_function
def test_every_backend_computes_the_vjps_that_numpy_does(backend: Any, name: str) -> None:
    grad = simplify(pullback(record(name)))
    expected = emit_rule(grad, load_backend("numpy"))[0](OTHER, X)
    actual = evaluate(grad, backend, OTHER, X)
    assert actual.dtype == FLOAT64
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-13)


def test_a_stopped_gradient_is_zero_and_its_value_is_kept() -> None:
    graph = record_function(lambda x: x * xp.stop_gradient(x))
    grad = emit_rule(simplify(pullback(graph)), load_backend("numpy"))[0]
    np.testing.assert_array_equal(grad(OTHER, X), OTHER * X)


def test_the_gradient_of_a_cast_is_cast_back(backend: Any) -> None:
    graph = record_function(lambda x: xp.cast_like(xp.astype(x, "float32"), x))
    grad = simplify(pullback(graph))
    verify(grad)
    actual = evaluate(grad, backend, OTHER, X)
    assert actual.dtype == FLOAT64
    np.testing.assert_array_equal(actual, OTHER.astype(np.float32).astype(np.float64))


def test_at_kinks_the_derivative_is_one_of_the_one_sided_slopes_or_between() -> None:
    x = np.array([0.0, -0.0, 1.0, 6.0])
    for name, expected in {
        "abs": [0.0, 0.0, 1.0, 1.0],
        "relu": [0.0, 0.0, 1.0, 1.0],
        "clip": [1.0, 1.0, 1.0, 0.0],
        "leaky_relu": [0.2, 0.2, 1.0, 1.0],
    }.items():
        grad = emit_rule(simplify(pullback(record(name))), load_backend("numpy"))[0]
        np.testing.assert_array_equal(grad(np.ones(4), x), expected, err_msg=name)


def test_ties_share_the_gradient() -> None:
    x = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    for name, expected in {
        "max": [[0, 0.5, 0.5], [1 / 3] * 3],
        "min": [[1, 0, 0], [1 / 3] * 3],
    }.items():
        reduce = getattr(xp, name)
        graph = record_function(
            lambda x, reduce=reduce: xp.broadcast_to(reduce(x, axis=1, keepdims=True), x)
        )
        grad = emit_rule(simplify(pullback(graph)), load_backend("numpy"))[0]
        np.testing.assert_allclose(grad(np.full((2, 3), 1 / 3), x), expected, err_msg=name)


def test_far_from_zero_vjps_give_no_nan(backend: Any) -> None:
    far = np.array([1e30, -1e30, 80.0, -80.0], np.float32)
    for name in (
        "sigmoid",
        "tanh",
        "erf",
        "silu",
        "softplus",
        "gelu",
        "gelu, approximate",
        "elu",
        "atan",
    ):
        grad = simplify(pullback(record(name)))
        assert np.isfinite(evaluate(grad, backend, np.ones_like(far), far)).all(), name


def test_the_norm_of_zero_has_gradient_zero(backend: Any) -> None:
    graph = record_function(lambda x: x + xp.norm(x))
    grad = simplify(pullback(graph))
    zero = np.zeros(3, np.float32)
    np.testing.assert_array_equal(evaluate(grad, backend, zero + 1, zero), zero + 1)


def test_every_op_with_a_derivative_is_tested_here_or_beside() -> None:
    from . import test_vjps_arrays, test_vjps_elementwise

    names = {*FUNCTIONS, *test_vjps_elementwise.FUNCTIONS, *test_vjps_arrays.FUNCTIONS}
    tested = {name.split(",")[0].split(" ")[0] for name in names}
    elsewhere = ELSEWHERE | test_vjps_arrays.ELSEWHERE
    assert {op.name for op in ops.CALLABLE_OPS} == tested | elsewhere
