"""TensorFlow's transforms see the rule; where TensorFlow forgets a custom gradient, an error says
so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

from ..harness.models.surrogates import triangle
from ..harness.traced import taped

tf: Any = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.needs("tensorflow")

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

X = np.linspace(-2.0, 2.0, 9, dtype=np.float32)
eagerly_and_in_a_graph = pytest.mark.parametrize("graph", [False, True])


def compiled(f: Callable[..., Any], graph: bool) -> Callable[..., Any]:
    return tf.function(f) if graph else f


@pytest.fixture
def as_it_is() -> str:
    """Register triangular once more, as a rule that is not captured."""

    @xg.register("test as it is", native=True)
    def rule(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out * tf.maximum(1.0 - tf.abs(tin), 0.0)

    return "test as it is"


@eagerly_and_in_a_graph
@pytest.mark.parametrize("forward", ["Tanh", "Heaviside", "Linear"])
@pytest.mark.parametrize("native", [False, True])
def test_gradient_through_vectorized_map_is_refused_and_not_the_forwards_own(
    graph: bool, forward: str, native: bool, as_it_is: str
) -> None:
    act = xg.activation(forward)
    with xg.use(as_it_is if native else "triangular"):
        through = compiled(taped(lambda x: tf.vectorized_map(act, x)), graph)
        with pytest.raises(Exception, match="drops custom gradients"):
            through(tf.constant(X))
        slow = compiled(taped(lambda x: tf.map_fn(act, x)), graph)
        np.testing.assert_allclose(slow(tf.constant(X)), triangle(X), rtol=1e-6)


def test_forward_accumulator_within_a_graph_is_refused_and_not_the_forwards_own() -> None:
    act = xg.activation("Tanh")

    @tf.function
    def jvp(x: Tensor, v: Tensor) -> Tensor:
        with tf.autodiff.ForwardAccumulator(x, v) as accumulator:
            y = act(x)
        return accumulator.jvp(y)

    with xg.use("triangular"), pytest.raises(xg.GradientError, match=r"around the tf\.function"):
        jvp(tf.constant(X), tf.ones_like(X))
    np.testing.assert_allclose(jvp(tf.constant(X), tf.ones_like(X)), 1 - np.tanh(X) ** 2, rtol=1e-4)


@eagerly_and_in_a_graph
def test_forward_over_reverse_is_reverse_over_reverse(graph: bool) -> None:
    act = compiled(xg.activation("SiLU"), graph)
    x, v = tf.constant(X + 0.01), tf.ones_like(X)
    with xg.use("arctan", {"alpha": 1.5}):
        first = taped(lambda x: act(x) ** 2)
        with tf.autodiff.ForwardAccumulator(x, v) as accumulator:
            gradient = first(x)
        reverse = taped(first)(x)
    np.testing.assert_allclose(accumulator.jvp(gradient), reverse, rtol=1e-5)
    assert np.abs(reverse).max() > 0.1


@eagerly_and_in_a_graph
def test_variable_and_a_tensor_from_around_a_branch_get_the_rules_gradient(graph: bool) -> None:
    act = xg.activation("Heaviside")
    variable = tf.Variable(X)

    def step(branch: bool) -> Tensor:
        with tf.GradientTape() as tape:
            doubled = variable * 2.0
            if branch:
                y = tf.cond(tf.constant(True), lambda: act(doubled), lambda: tf.zeros([9]))
            else:
                y = act(variable)
        return tape.gradient(y, variable)

    with xg.use("triangular"):
        got = compiled(step, graph)(True)
        np.testing.assert_allclose(got, 2.0 * triangle(2.0 * X), rtol=1e-6)
        np.testing.assert_allclose(compiled(step, graph)(False), triangle(X), rtol=1e-6)


def test_param_that_is_a_tensor_of_the_trace_is_a_run_time_value() -> None:
    act = xg.activation("Heaviside")
    traces = []

    @tf.function
    def gradient(x: Tensor, width: Tensor) -> Tensor:
        traces.append(None)
        with xg.use("triangular", {"width": width}):
            return taped(act)(x)

    for width in (0.5, 1.5):
        got = gradient(tf.constant(X), tf.constant(width))
        np.testing.assert_allclose(got, triangle(X, width), rtol=1e-6)
    assert len(traces) == 1
