"""A `tf.Variable` that a function reads gets its gradient, however it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import TraceError

pytestmark = pytest.mark.needs("tensorflow")
X = np.array([1.0, 2.0, 3.0], np.float32)


def readings() -> dict[str, Callable[[Any], Any]]:
    import tensorflow as tf

    return {
        "item": lambda w: w[1],
        "gather": lambda w: tf.gather(w, 1),
        "value": lambda w: w.value()[1],
        "identity": lambda w: tf.identity(w)[1],
        "product": lambda w: (w * 2)[1] / 2,
        "sum": lambda w: tf.reduce_sum(w) - w[0],
        "whole": lambda w: tf.reduce_max(w * tf.constant([0.0, 1.0])),
    }


def slopes(f: Callable[[Any], Any], w: Any, graph: bool) -> list[list[float]]:
    import tensorflow as tf

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(f(x))
        return tape.gradient(loss, [x, w])

    found = (tf.function(step) if graph else step)(tf.constant(X))
    return [tf.convert_to_tensor(each).numpy().tolist() for each in found]


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("decorated", [False, True])
@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize("way", ["item", "gather", "value", "identity", "product", "sum", "whole"])
def test_its_gradient_is_what_the_gradient_function_gives(
    way: str, default: bool, decorated: bool, graph: bool
) -> None:
    import tensorflow as tf

    w, read = tf.Variable([1.0, 3.0]), readings()[way]

    def poly(x: Any) -> Any:
        y = read(w) * x

        def both(dy: Any, variables: Any) -> Any:
            assert variables is not None and variables[0] is w
            return 5 * dy, [tf.constant([7.0, 8.0]) * tf.reduce_sum(dy)]

        def may(dy: Any, variables: Any = None) -> Any:
            return 5 * dy if variables is None else both(dy, variables)

        return y, may if default else both

    original = tf.custom_gradient(poly)
    ours = xg.from_tf_custom_gradient(original) if decorated else xg.custom_gradient(poly)
    expected = [[5.0] * 3, [21.0, 24.0]]
    assert slopes(original, w, graph) == expected
    assert slopes(ours, w, graph) == expected


def test_the_example_of_tensorflows_own_docstring() -> None:
    import tensorflow as tf

    weights = tf.Variable(tf.ones([2]))

    def linear_poly(x: Any) -> Any:
        poly = weights[1] * x + weights[0]

        def grad_fn(dpoly: Any, variables: Any) -> Any:
            assert len(variables) == 1
            dy_dw = dpoly * tf.stack([x**1, x**0])
            return dpoly * weights[1], [tf.reduce_sum(tf.reshape(dy_dw, [2, -1]), axis=1)]

        return poly, grad_fn

    assert slopes(xg.custom_gradient(linear_poly), weights, graph=False) == [[1.0] * 3, [6.0, 3.0]]


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("way", ["item", "gather", "sum"])
def test_the_true_derivative_reaches_it_too(way: str, graph: bool) -> None:
    import tensorflow as tf

    w, read = tf.Variable([1.0, 3.0]), readings()[way]
    assert slopes(xg.function(lambda x: read(w) * x), w, graph) == [[3.0] * 3, [0.0, 6.0]]


def test_no_graph_of_another_framework_holds_its_number() -> None:
    import tensorflow as tf

    w = tf.Variable([1.0, 3.0], name="weights")
    f = xg.function(lambda x: tf.gather(w, 1) * x)
    with pytest.raises(TraceError, match=r"reads the tf.Variable 'weights:0', which waits for"):
        f(X)


def test_one_that_waits_for_no_gradient_may_be_read() -> None:
    import tensorflow as tf

    w = tf.Variable([1.0, 3.0], trainable=False)
    np.testing.assert_array_equal(xg.function(lambda x: tf.gather(w, 1) * x)(X), 3 * X)
