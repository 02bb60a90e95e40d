"""The VJP of every op against central differences, on NumPy in float64; and lowered, the same on
every backend.

The functions are those that the rows declare (`declared.py`), at points away from kinks and poles.
A second row of tests differentiates the VJPs again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.backend.discovery import load_backend
from multigrad.core.ir.graph import Graph
from multigrad.core.ir.op import INPUT
from multigrad.core.lowering.derivatives import pullback
from multigrad.core.lowering.lower import emit_rule
from multigrad.core.passes.simplify import simplify, substitute
from multigrad.core.trace.trace import Trace
from multigrad.engine.passes.verify import verify

from ..declared import cases
from ..oracles import FLOAT64

xp = xg.xp
Tensor = Any
# (2, 3) numbers of both signs, none within 0.1 of 0, 0.5, 1, 6 or of another.
X = np.array([[-1.7, 0.8, 2.3], [-0.35, 0.15, -2.6]])
OTHER = np.array([[0.9, -1.3, 0.65], [1.8, -0.7, -2.2]])

OF_A_VJP = "all operands are made of x: which slope is wrong is for matrix/test_matrix_vjps.py"


# Each is a function of `tin`, made of the op under test; the other operands are made of `tin` too,
# so that the shares of all operands are summed.
def total(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """`x` times a weighted sum of whatever shape."""
    return lambda x: x * xp.sum(xp.sin(function(x)))


def other(x: Tensor) -> Tensor:
    return 0.3 * x * x - 1.05


# Beside the cases that the rows declare: numbers among the operands, both sides of a kink, ranks.
SPECIAL: dict[str, Callable[[Tensor], Tensor]] = {
    "pow of a number": lambda x: xp.pow(1.7, x),
    "pow to a number": lambda x: xp.pow(abs(x), 2.3),
    "clip between numbers": lambda x: xp.clip(x, -1.0, 1.0),
    "clip between tensors": lambda x: xp.clip(x, xp.sin(x) - 1.0, xp.cos(x)),
    "full_like": lambda x: x * xp.full_like(x, 2.0),
    "full_like of a sum": lambda x: x * xp.full_like(x, 1.0) * xp.size(x),
    "sum of squares": lambda x: x * xp.sum(x * x),
    "relu6 beyond its ends": lambda x: xp.relu6(3 * x),
    "hard_sigmoid beyond its ends": lambda x: x * xp.hard_sigmoid(1.5 * x),
    "hard_silu beyond its ends": lambda x: xp.hard_silu(1.5 * x),
    "log_ndtr far out": lambda x: xp.log_ndtr(4.0 * x),
    "polygamma of order 3": lambda x: xp.polygamma(3, abs(x) + 0.5),
    "bitwise_or with a number": lambda x: x * (xp.cast(8.3 * x, "int32") | 1),
    "moveaxis of three": total(lambda x: xp.moveaxis(xp.expand_dims(x, 0), (0, 1), (2, 0))),
    "matmul with a vector": total(lambda x: x @ xp.getitem(other(x), 0)),
    "matmul of a vector": total(lambda x: xp.getitem(x, (slice(None), 0)) @ other(x)),
    "matmul of batches": total(
        lambda x: xp.expand_dims(x, 0) @ xp.stack([xp.swapaxes(x, 0, 1)] * 3)
    ),
    "einsum of three": total(lambda x: xp.einsum("ij,kj,kl->i", x, other(x), x)),
    "concatenate of three": total(lambda x: xp.concatenate([x, x * x, xp.exp(x)], axis=1)),
}
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: case.smooth for name, case in cases().items()},
    **SPECIAL,
}
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
    np.testing.assert_allclose(
        derivative(OTHER, X), expected, rtol=tolerance, atol=tolerance, err_msg=OF_A_VJP
    )


@each_function
def test_the_vjp_is_the_slope(name: str) -> None:
    check_slopes(record(name), 1e-8)


@each_function
def test_the_vjp_can_be_differentiated_again(name: str) -> None:
    check_slopes(gradient_of_the_sum(record(name)), 2e-7)


@pytest.mark.beside_numpy
@each_function
def test_every_backend_computes_the_vjps_that_numpy_does(backend: Any, name: str) -> None:
    grad = simplify(pullback(record(name)))
    expected = emit_rule(grad, load_backend("numpy"))[0](OTHER, X)
    actual = evaluate(grad, backend, OTHER, X)
    assert actual.dtype == FLOAT64
    np.testing.assert_allclose(actual, expected, rtol=4e-12, atol=1e-13)


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


def test_the_norm_of_zero_has_gradient_zero(backend: Any) -> None:
    graph = record_function(lambda x: x + xp.norm(x))
    grad = simplify(pullback(graph))
    zero = np.zeros(3, np.float32)
    np.testing.assert_array_equal(evaluate(grad, backend, zero + 1, zero), zero + 1)
