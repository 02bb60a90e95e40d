"""TensorFlow's higher orders, Jacobians, loops and mixed precision, over rules of every kind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

from ..harness.traced import taped
from .formulas import PAIRS, Case, V, W, X, close, formulas

tf: Any = pytest.importorskip("tensorflow")

pytestmark = [pytest.mark.needs("tensorflow"), pytest.mark.usefixtures("own_rules")]

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

every_rule = pytest.mark.parametrize(("rule", "forward"), PAIRS)
modes = pytest.mark.parametrize("mode", ["eager", "graph", "xla"])


def compiled(f: Callable[..., Any], mode: str) -> Callable[..., Any]:
    if mode == "eager":
        return f
    return tf.function(f, jit_compile=mode == "xla", autograph=False)


grad = partial(taped, unconnected_gradients="zero")


def directional(f: Callable[[Tensor], Tensor], v: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the derivative of `v f(x)`."""
    return grad(lambda x: f(x) * v)


def jacobian(
    f: Callable[[Tensor], Tensor], vectorized: bool, batch: bool = False
) -> Callable[[Tensor], Tensor]:
    """Return what `tape.jacobian`, or `tape.batch_jacobian`, gives of `f`."""

    def compute(x: Tensor) -> Tensor:
        with tf.GradientTape(persistent=not vectorized) as tape:
            tape.watch(x)
            y = f(x)
        take = tape.batch_jacobian if batch else tape.jacobian
        return take(y, x, experimental_use_pfor=vectorized)

    return compute


@every_rule
@modes
def test_first_three_orders_are_those_of_the_formula(rule: str, forward: str, mode: str) -> None:
    case = Case("tensorflow", rule, forward)
    got, expected = grad(case.loss), case.expected
    for _ in range(3):
        with xg.use(case.rule):
            close(compiled(got, mode)(case.x), expected(case.x))
        got, expected = directional(got, case.v), directional(expected, case.v)


@every_rule
@pytest.mark.parametrize(
    ("mode", "vectorized"), [("eager", False), ("eager", True), ("graph", True), ("xla", True)]
)
def test_jacobian_of_a_tape_is_the_rules(
    rule: str, forward: str, mode: str, vectorized: bool
) -> None:
    case = Case("tensorflow", rule, forward)
    with xg.use(case.rule):
        close(compiled(jacobian(case.act, vectorized), mode)(case.x), case.jacobian())


@pytest.mark.parametrize("rule", ["triangular", "rectangular", "test mean"])
@pytest.mark.parametrize("vectorized", [False, True])
def test_batch_jacobian_of_a_tape_is_the_rules_for_each_example(
    rule: str, vectorized: bool
) -> None:
    case = Case("tensorflow", rule, "Tanh")
    batch = tf.stack([case.x, 0.5 * case.x])
    with xg.use(case.rule):
        got = compiled(jacobian(case.act, vectorized, batch=True), "graph")(batch)
    for row, x in zip(got, batch, strict=True):
        close(row, np.stack([case.formula(each, x) for each in np.eye(7)]))


def run_mapped(case: Case, x: Tensor) -> Tensor:
    return tf.map_fn(case.act, x[None])[0] * case.w


def run_loop(case: Case, x: Tensor) -> Tensor:
    def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, case.act(y) * case.w

    return tf.while_loop(lambda i, y: i < 1, body, (tf.constant(0), x), maximum_iterations=1)[1]


def run_branch(case: Case, x: Tensor) -> Tensor:
    return tf.cond(tf.reduce_sum(x) < 100.0, lambda: case.act(x) * case.w, lambda: x)


def run_again(case: Case, x: Tensor) -> Tensor:
    return tf.recompute_grad(lambda x: case.act(x) * case.w)(x)


@pytest.mark.parametrize("rule", ["rectangular", "test norm", "triangular then clip_norm"])
@pytest.mark.parametrize("route", [run_mapped, run_loop, run_branch, run_again])
@modes
def test_loops_branches_and_recomputation_keep_the_rule(
    rule: str, route: Callable[[Case, Tensor], Tensor], mode: str
) -> None:
    case = Case("tensorflow", rule, "Tanh")
    with xg.use(case.rule):
        got = compiled(grad(lambda x: route(case, x)), mode)(case.x)
    close(got, case.expected(case.x))


@pytest.mark.parametrize("rule", ["rectangular", "test norm", "clip_norm"])
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_gradients_inside_of_vectorized_map_are_of_each_example(rule: str, mode: str) -> None:
    case = Case("tensorflow", rule, "Tanh")
    batch = tf.stack([case.x, 0.5 * case.x])
    with xg.use(case.rule):
        got = compiled(lambda x: tf.vectorized_map(grad(case.loss), x), mode)(batch)
    close(got, np.stack([case.formula(case.w, x) for x in batch]))


@pytest.mark.parametrize("rule", ["triangular", "rectangular", "test norm", "test mean"])
def test_accumulated_tangent_is_the_rules_jacobian_times_the_vector(rule: str) -> None:
    case = Case("tensorflow", rule, "Tanh")
    with xg.use(case.rule):
        with tf.autodiff.ForwardAccumulator(case.x, case.v) as accumulator:
            y = case.act(case.x)
        close(accumulator.jvp(y), case.jacobian() @ V)
        with tf.autodiff.ForwardAccumulator(case.x, case.v) as accumulator:
            first = grad(case.loss)(case.x)
        product = accumulator.jvp(first, unconnected_gradients="zero")
    close(product, np.asarray(jacobian(case.expected, vectorized=True)(case.x)) @ V)


@pytest.mark.parametrize("rule", ["clip_norm", "noise", "triangular then clip_norm"])
def test_tangent_of_a_rule_that_is_not_linear_is_refused(rule: str) -> None:
    chosen = xg.compose("triangular", "clip_norm") if " then " in rule else rule
    act, x = xg.activation("Tanh"), tf.constant(X)
    with (
        xg.use(chosen),
        tf.autodiff.ForwardAccumulator(x, tf.constant(V)),
        pytest.raises(xg.GradientError, match="linear in grad_out"),
    ):
        act(x)


@pytest.mark.parametrize("rule", ["triangular", "rectangular", "clip_norm"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@modes
def test_sixteen_bits_keep_dtype_and_rule(rule: str, dtype: str, mode: str) -> None:
    act = xg.activation("Heaviside")
    x, w = (tf.cast(values, dtype) for values in (X, W))
    with xg.use(rule):
        got = compiled(grad(lambda x: act(x) * w), mode)(x)
    assert got.dtype == x.dtype
    expected = formulas("tensorflow")[rule](*(tf.cast(values, tf.float32) for values in (w, x)))
    np.testing.assert_allclose(tf.cast(got, tf.float32), expected, rtol=0.02, atol=0.01)


@pytest.mark.parametrize("rule", ["triangular", "rectangular", "clip_norm"])
def test_mixed_precision_chain_gives_float32_gradients_of_the_rule(rule: str) -> None:
    act = xg.activation("Tanh")
    kernel, scale = tf.Variable(tf.eye(7)), 1024.0

    @tf.function
    def step(x: Tensor) -> Tensor:
        with tf.GradientTape() as tape:
            hidden = tf.linalg.matvec(tf.cast(kernel, tf.float16), tf.cast(x, tf.float16))
            y = tf.cast(act(hidden), tf.float32)
            loss = tf.reduce_sum(y * tf.constant(W, tf.float32)) * scale
        return tape.gradient(loss, kernel)

    with xg.use(rule):
        got = step(tf.constant(X, tf.float32))
    assert got.dtype == tf.float32
    formula = formulas("tensorflow")[rule](*(tf.constant(v, tf.float32) for v in (W * scale, X)))
    expected = np.outer(formula, X)
    np.testing.assert_allclose(got, expected, rtol=0.02, atol=0.005 * np.abs(expected).max())
