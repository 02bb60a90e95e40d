"""Gradients that TensorFlow's code takes itself mean in a graph what a tape gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.own_library import assert_as_in

tf: Any = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.needs("tensorflow")
Tensor = Any
X = np.array([[0.3, -1.2, 0.6], [1.5, 0.25, -0.75]], np.float32)


def slope(x: Tensor) -> Tensor:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(tf.sin(x) * x)
    return x * tape.gradient(y, x)


def slope_of_the_slope(x: Tensor) -> Tensor:
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.sin(x) * x
        first = inner.gradient(y, x, output_gradients=x)
    return outer.gradient(first, x)


def what_was_before_is_a_constant(x: Tensor) -> Tensor:
    before = x * x
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = before * x * tf.identity(x)
    return tape.gradient(y, x)


def what_is_not_recorded_is_a_constant(x: Tensor) -> Tensor:
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y, same = x * x, x * x
        with tape.stop_recording():
            tripled = x * 3
        z = y * same * tripled
    to_y, (to_x, to_same) = tape.gradient(z, y), tape.gradient(z, [x, same])
    return to_y + 2 * to_x + 3 * to_same


def of_several(x: Tensor) -> Tensor:
    given = {"a": x, "b": 2 * x}
    with tf.GradientTape() as tape:
        tape.watch(given)
        outputs = [given["a"] * given["b"], tf.cos(given["a"])]
    slopes = tape.gradient(outputs, given, output_gradients=[x, tf.ones_like(x)])
    return slopes["a"] - slopes["b"]


def of_nothing(x: Tensor) -> Tensor:
    other = x + 1
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(other)
        y = x * x
    assert tape.gradient(y, other) is None
    assert tape.gradient(y, x) is None
    return y + tape.gradient(y, other, unconnected_gradients=tf.UnconnectedGradients.ZERO)


def anew(x: Tensor) -> Tensor:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
        tape.reset()
        tape.watch(y)
        z = y * x
    return tape.gradient(z, y)


def in_compiled_code(x: Tensor) -> Tensor:
    return tf.function(lambda y: tf.gradients(tf.sin(y) * y, [y], grad_ys=[y])[0])(x)


CASES: list[Callable[[Tensor], Tensor]] = [
    slope, slope_of_the_slope, what_was_before_is_a_constant, what_is_not_recorded_is_a_constant,
    of_several, of_nothing, anew, in_compiled_code,
]  # fmt: skip


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_a_gradient_taken_inside_is_the_tape_s(function: Callable[[Tensor], Tensor]) -> None:
    assert_as_in("tensorflow", function, X)


@tf.custom_gradient
def square_with_a_slope(x: Tensor) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    slope = tape.gradient(y, x)
    return y, lambda upstream: upstream * slope / 2


def test_a_custom_gradient_may_differentiate(backend: Any) -> None:
    y, pull = xg.vjp(xg.from_tf_custom_gradient(square_with_a_slope), backend.array(X))
    np.testing.assert_allclose(backend.numpy(y), X * X, rtol=1e-6)
    (gradient,) = pull(backend.array(np.ones_like(X)))
    np.testing.assert_allclose(backend.numpy(gradient), X, rtol=1e-6)


def of_a_variable(x: Tensor) -> Tensor:
    variable = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        y = variable * x
    return tape.gradient(y, variable)


def of_constants(x: Tensor) -> Tensor:
    constant = tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(constant)
        y = constant**3
    return x * tape.gradient(y, constant)


def jacobian(x: Tensor) -> Tensor:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    return tape.jacobian(y, x)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (of_a_variable, "takes a gradient of a .*Variable"),
        (of_constants, "watches a tensor that is no value of a graph"),
        (jacobian, "takes a Jacobian"),
    ],
)
def test_what_a_graph_does_not_hold_is_refused(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(xg.TraceError, match=said):
        xg.function(function, native=False)(X)
