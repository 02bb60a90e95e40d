"""The VJPs of the ops over whole arrays, as test_vjps.py does: against slopes, twice, and on every backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multigrad.ir import arrays, neutral, ordering, shapes
from multigrad.ir.derivatives import pullback
from multigrad.ir.graph import Graph
from multigrad.ir.linearity import is_linear, tangent_map
from multigrad.ir.op import Op
from multigrad.ir.passes import simplify
from multigrad.lowering.backend import load_backend
from multigrad.lowering.lower import emit_rule
from multigrad.registry import resolve

from ..oracles import FLOAT64
from .test_vjps import (
    OTHER,
    X,
    check_slopes,
    evaluate,
    gradient_of_the_sum,
    other,
    record_function,
)

xp: Any = neutral  # `xg.xp`, and the functions that only VJPs call
Tensor = Any


def back(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """`x * y` reshaped to x's shape, so that a linear op has a second derivative too."""
    return lambda x: xp.reshape_like(function(x) * function(other(x)), x)


def total(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """`x` times a weighted sum of whatever shape."""
    return lambda x: x * xp.sum(xp.sin(function(x)))


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "prod": lambda x: x * xp.prod(x, axis=1, keepdims=True),
    "prod over all": lambda x: x * xp.prod(x),
    "count_nonzero": lambda x: x * xp.count_nonzero(x > 0, axis=0, keepdims=True),
    "norm of order 1": lambda x: x / xp.norm(x, axis=-1, keepdims=True, ord=1),
    "norm": lambda x: x / xp.norm(x),
    "norm of order 3": lambda x: x / xp.norm(x, ord=3),
    "norm of order 0.5": lambda x: x / xp.norm(x, axis=0, keepdims=True, ord=0.5),
    "norm of order inf": lambda x: x / xp.norm(x, axis=1, keepdims=True, ord=np.inf),
    "logsumexp": lambda x: x * xp.logsumexp(x, axis=0, keepdims=True),
    "logsumexp over all": lambda x: x * xp.logsumexp(x),
    "softmax": xp.softmax,
    "softmax over both": lambda x: xp.softmax(x, axis=(0, 1)),
    "log_softmax": lambda x: xp.log_softmax(x, axis=0),
    "glu": total(lambda x: xp.glu(x, axis=0)),
    "cumsum": lambda x: x * xp.cumsum(x * x, axis=1),
    "cumsum reversed": lambda x: x * xp.cumsum(x * x, axis=-2, reverse=True),
    "cumprod": lambda x: xp.cumprod(x, axis=1),
    "cummax": lambda x: x * xp.cummax(x, axis=1),
    "cummin": lambda x: x * xp.cummin(x, axis=0),
    "hold": lambda x: x * xp.hold(x * x, x > -1.0, 1),
    "unhold": lambda x: x * xp.unhold(x * x, x > -1.0, 1),
    "sort": lambda x: x * xp.sort(x, axis=1),
    "sort descending": lambda x: x * xp.sort(x, axis=0, descending=True),
    "sort_like": lambda x: x * xp.sort_like(x * x, x, 1, False),
    "unsort": lambda x: x * xp.unsort(x * x, x, 1, True),
    "argmax_mask": lambda x: x * x * xp.argmax_mask(x, axis=1),
    "argmin_mask": lambda x: x * x * xp.argmin_mask(x),
    "top_k_mask": lambda x: x * x * xp.top_k_mask(x, 2),
    "median": lambda x: x * xp.median(x),
    "median over an axis": lambda x: x * xp.median(x, axis=1, keepdims=True),
    "quantile": lambda x: x * xp.quantile(x, 0.3, axis=0, keepdims=True),
    "quantile_weights": lambda x: x * xp.quantile_weights(x, 0.3, None),
    "reshape": back(lambda x: xp.reshape(x, (3, 2))),
    "reshape_like": lambda x: x * xp.reshape_like(xp.swapaxes(x, 0, 1), x),
    "squeeze": back(lambda x: xp.squeeze(xp.expand_dims(x, 1), 1)),
    "permute_dims": back(lambda x: xp.permute_dims(x, (1, 0))),
    "permute_dims, reversed": back(xp.permute_dims),
    "swapaxes": back(lambda x: xp.swapaxes(x, 0, -1)),
    "moveaxis": back(lambda x: xp.moveaxis(xp.expand_dims(x, 0), (0, 1), (2, 0))),
    "flip": lambda x: x * xp.flip(x, 1),
    "roll": lambda x: x * xp.roll(x, (1, -1), (0, 1)),
    "roll flat": lambda x: x * xp.roll(x, 2),
    "tril": lambda x: x * xp.tril(x),
    "triu": lambda x: x * xp.triu(x, 1),
    "broadcast_to_shape": total(lambda x: xp.broadcast_to(x, (4, 2, 3))),
    "getitem": total(lambda x: xp.getitem(x, (slice(None, None, -1), slice(1, None)))),
    "getitem of a row": total(lambda x: xp.getitem(x, (0, None))),
    "setitem": lambda x: x * xp.setitem(xp.getitem(x, (..., 0)), x, ("...", 1)),
    "take": total(lambda x: xp.take(x, (2, 2, 0), axis=1)),
    "untake": lambda x: x * xp.untake(xp.take(x * x, (2, 2, 0), axis=1), x, (2, 2, 1), 1),
    "half": total(lambda x: xp.half(x, 1, 0)),
    "tile": total(lambda x: xp.tile(x, (2, 1))),
    "untile": lambda x: x * xp.untile(xp.tile(x * x, (2, 1, 2)), x, (2, 1, 2)),
    "repeat": total(lambda x: xp.repeat(x, 2, axis=0)),
    "unrepeat": lambda x: x * xp.unrepeat(xp.repeat(x * x, 3, 1), x, 3, 1),
    "pad": total(lambda x: xp.pad(x, ((1, 0), (0, 2)), 0.5)),
    "concatenate": total(lambda x: xp.concatenate([x, x * x, xp.exp(x)], axis=1)),
    "stack": total(lambda x: xp.stack([x, x * x], axis=1)),
    "part": total(lambda x: xp.part(xp.concatenate([x, x * x]), x, 1, 0)),
    "unpart": lambda x: x * xp.unpart(xp.getitem(x, (slice(None), slice(1, None))), x, 0, 1),
    "matmul": total(lambda x: x @ xp.swapaxes(other(x), 0, 1)),
    "matmul with a vector": total(lambda x: x @ xp.getitem(other(x), 0)),
    "matmul of a vector": total(lambda x: xp.getitem(x, (slice(None), 0)) @ other(x)),
    "matmul of batches": total(lambda x: xp.expand_dims(x, 0) @ xp.stack([xp.swapaxes(x, 0, 1)] * 3)),
    "matmul_left": lambda x: x * xp.matmul_left(x @ xp.swapaxes(x, 0, 1), xp.swapaxes(x, 0, 1), x),
    "matmul_right": lambda x: x * xp.matmul_right(x @ xp.swapaxes(x, 0, 1), x, x),
    "einsum": total(lambda x: xp.einsum("ij,kj->ik", x, other(x))),
    "einsum of three": total(lambda x: xp.einsum("ij,kj,kl->i", x, other(x), x)),
    "einsum with batches": total(lambda x: xp.einsum("...i,...i->...", x, other(x))),
}  # fmt: skip
ELSEWHERE = {"fold_in", "uniform_like", "normal_like", "bernoulli_like", "rademacher_like",
             "exponential_like", "gumbel_like", "array"}  # fmt: skip
each_function = pytest.mark.parametrize("name", FUNCTIONS)


@each_function
def test_the_vjp_is_the_slope(name: str) -> None:
    check_slopes(record_function(FUNCTIONS[name]), 1e-8)


@each_function
def test_the_vjp_can_be_differentiated_again(name: str) -> None:
    check_slopes(gradient_of_the_sum(record_function(FUNCTIONS[name])), 1e-7)


@pytest.mark.beside_numpy
@each_function
def test_every_backend_computes_the_vjps_that_numpy_does(backend: Any, name: str) -> None:
    grad = simplify(pullback(record_function(FUNCTIONS[name])))
    expected = emit_rule(grad, load_backend("numpy"))[0](OTHER, X)
    actual = evaluate(grad, backend, OTHER, X)
    assert actual.dtype == FLOAT64
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-13)


# --- edges ---------------------------------------------------------------------------------------------


def gradient(backend: Any, function: Callable[[Tensor], Tensor], x: Any) -> Any:
    """The gradient of the sum of a function, at x."""
    return evaluate(gradient_of_the_sum(record_function(function)), backend, x)


def test_products_have_their_gradient_at_zeros(backend: Any) -> None:
    for x, of_prod, of_cumprod in (
        ([2.0, 3.0, 4.0], [12, 8, 6], [1 + 3 + 12, 2 + 8, 6]),
        ([2.0, 0.0, 4.0], [0, 8, 0], [1, 2 + 8, 0]),
        ([0.0, 3.0, 0.0], [0, 0, 0], [1 + 3, 0, 0]),
        ([0.0, 3.0, 4.0], [12, 0, 0], [1 + 3 + 12, 0, 0]),
    ):
        at = np.array(x)
        whole = gradient(backend, lambda t: xp.prod(t) + 0 * t, at) / len(x)
        np.testing.assert_allclose(whole, of_prod, rtol=1e-14)
        np.testing.assert_allclose(gradient(backend, xp.cumprod, at), of_cumprod, rtol=1e-14)


def test_norms_of_zero_have_gradient_zero(backend: Any) -> None:
    for order in (0.5, 1, 2, 3, np.inf):
        at = np.zeros(3)
        actual = gradient(backend, lambda t, p=order: xp.norm(t, ord=p) + 0 * t, at)
        np.testing.assert_array_equal(actual, 0)


def test_far_from_zero_gradients_are_finite(backend: Any) -> None:
    for dtype, far in ((np.float32, 1e30), (np.float64, 1e300)):
        x = np.array([far, -far, 80.0, -80.0], dtype)
        for function in (
            xp.softmax,
            xp.log_softmax,
            lambda t: xp.logsumexp(t) + 0 * t,
            xp.cumsum,
            xp.sort,
        ):
            assert np.isfinite(gradient(backend, function, x)).all()


def test_logsumexp_of_nothing_but_minus_infinity_has_gradient_zero(backend: Any) -> None:
    x = np.array([[-np.inf, -np.inf], [-np.inf, 0.0]])
    graph = record_function(lambda t: xp.zeros_like(t) + xp.logsumexp(t, axis=1, keepdims=True))
    actual = evaluate(simplify(pullback(graph)), backend, np.ones((2, 2)), x)
    np.testing.assert_array_equal(actual, [[0, 0], [0, 2]])


def test_of_equal_running_extremes_the_latest_takes_the_gradient(backend: Any) -> None:
    x = np.array([1.0, 3.0, 3.0, 2.0])
    np.testing.assert_array_equal(gradient(backend, xp.cummax, x), [1, 1, 2, 0])
    np.testing.assert_array_equal(gradient(backend, lambda t: xp.cummin(-t), x), [-1, -1, -2, 0])


def test_equal_values_keep_their_order_in_the_gradient_of_a_sort(backend: Any) -> None:
    x, weights = np.array([2.0, 1.0, 2.0, 1.0]), np.array([1.0, 2.0, 3.0, 4.0])
    for descending, expected in ((False, [3, 1, 4, 2]), (True, [1, 3, 2, 4])):
        graph = record_function(lambda t, d=descending: xp.sort(t, descending=d))
        actual = evaluate(simplify(pullback(graph)), backend, weights, x)
        np.testing.assert_array_equal(actual, expected)


# --- forward mode --------------------------------------------------------------------------------------

LINEAR: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cumsum": lambda g, x: xp.cumsum(g, axis=0) * x,
    "roll": lambda g, x: xp.roll(g, 1, 1) + x * g,
    "flip and halves": lambda g, x: xp.flip(xp.concatenate([xp.half(g, 1, 0), xp.half(g, 0, 0)]), 1),
    "matmul": lambda g, x: xp.reshape_like(g @ xp.swapaxes(x, 0, 1) @ x, x),
    "einsum": lambda g, x: xp.reshape_like(xp.einsum("ij,kj,kl->il", g, x, x), x),
    "unsort": lambda g, x: xp.unsort(g, x, 1, False) * x,
    "pad and cut": lambda g, x: xp.reshape_like(xp.getitem(xp.pad(g, 1), (slice(2, 4), slice(1, 4))), x),
}  # fmt: skip


def captured(function: Callable[[Tensor, Tensor], Tensor], **facts: Any) -> Graph:
    """The graph of a rule."""

    def rule(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return function(grad_out, tin)

    return resolve(rule).spec().family.graph(True, facts)


@pytest.mark.parametrize("name", LINEAR)
def test_rules_of_linear_ops_have_forward_mode(name: str) -> None:
    graph = captured(LINEAR[name], **({"ndim": 2} if name.startswith("pad") else {}))
    assert is_linear(graph)
    numpy = load_backend("numpy")
    forward, reverse = (emit_rule(g, numpy)[0] for g in (tangent_map(graph), graph))
    # <u, reverse(v)> == <forward(u), v>
    left, right = np.sum(OTHER * reverse(X**2, X)), np.sum(forward(OTHER, X) * X**2)
    np.testing.assert_allclose(left, right, rtol=1e-12)


def test_products_of_grad_out_with_itself_are_not_linear() -> None:
    for function in (
        lambda g, x: xp.reshape_like(g @ xp.swapaxes(g, 0, 1) @ x, x),
        lambda g, x: xp.sort(g),
        lambda g, x: xp.cumprod(g),
        lambda g, x: xp.softmax(g),
        lambda g, x: xp.reshape_like(xp.getitem(xp.pad(g, ((1, 1), (0, 0)), 1.0), slice(2)), x),
    ):
        assert not is_linear(captured(function))


def test_every_op_of_these_families_with_a_derivative_is_tested_here() -> None:
    tested = {name.split(",")[0].split(" ")[0] for name in FUNCTIONS}
    older = {"sum", "mean", "max", "min", "any", "all", "var", "std", "sum_to", "broadcast_to",
             "expand_dims", "dim", "size"}  # fmt: skip
    families = (arrays, ordering, shapes)
    rows = {op.name for family in families for op in vars(family).values() if isinstance(op, Op)}
    assert rows == tested | older | ELSEWHERE
