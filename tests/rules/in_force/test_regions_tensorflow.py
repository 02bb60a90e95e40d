"""Regions that TensorFlow runs again in backward: the second run has the numbers and names of the
first, whatever has changed since, and gradients that are taken outside of a tf.function are there.
"""

from __future__ import annotations

from typing import Any

import pytest

import multigrad as xg

from ...harness.traced import taped

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.needs("tensorflow")
MOVING = xg.get("triangular").with_params(width=xg.schedule.linear(1.0, 2.0, steps=1))


def in_eager_code(function: Any) -> Any:
    return function


def by_activation(rule: Any) -> Any:
    return xg.activation("ReLU", rule)


def by_override(rule: Any) -> Any:
    return xg.override(tf.nn.relu, {"relu": rule})


def gradient_after(function: Any, change: Any, x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    change()
    return tape.gradient(y, x)


@pytest.mark.parametrize(
    ("way", "outside", "inside"),
    [
        (by_activation, in_eager_code, in_eager_code),
        (by_activation, tf.function, in_eager_code),
        (by_activation, in_eager_code, tf.function),
        (by_override, in_eager_code, in_eager_code),
    ],
)
def test_a_schedule_that_is_stepped_before_backward_acts_at_the_next_forward(
    way: Any, outside: Any, inside: Any
) -> None:
    width = xg.schedule.linear(1.0, 2.0, steps=1)
    rule = xg.get("triangular").with_params(width=width)
    function = outside(tf.recompute_grad(inside(way(rule))))
    x = tf.constant([0.5])
    assert gradient_after(function, width.step, x).numpy() == [0.5]
    assert gradient_after(function, list, x).numpy() == [0.75]


@pytest.mark.parametrize("way", [by_activation, by_override])
def test_a_name_that_is_registered_anew_before_backward_acts_at_the_next_forward(way: Any) -> None:
    def times(factor: float) -> None:
        xg.register("replaced", override=True)(lambda ctx, grad_out, tin: factor * grad_out)

    times(10.0)
    function, x = tf.recompute_grad(way("replaced")), tf.constant([0.5])
    assert gradient_after(function, lambda: times(3.0), x).numpy() == [10.0]
    assert gradient_after(function, list, x).numpy() == [3.0]


@pytest.mark.parametrize("rule", [None, "triangular", MOVING])
def test_gradients_that_are_taken_outside_of_a_tf_function_are_all_there(rule: Any) -> None:
    moves = isinstance(rule, xg.schedule.Schedule)
    act = (
        xg.activation("ReLU", "triangular", {"width": rule})
        if moves
        else xg.activation("ReLU", rule)
    )
    x, weight = tf.constant([0.25]), tf.Variable([2.0])

    @tf.function
    @tf.recompute_grad
    def block(x: Any) -> Any:
        return act(x * weight)

    with tf.GradientTape() as tape:
        tape.watch(x)
        y = block(x)
    slope = 1.0 if rule is None else 0.5
    given = [each.numpy().tolist() for each in tape.gradient(y, [x, weight])]
    assert given == [[2.0 * slope], [0.25 * slope]]


def test_a_gradient_function_that_reads_a_rule_is_refused_where_it_could_not_follow() -> None:
    act = xg.activation("ReLU")

    @tf.custom_gradient
    def reads(x: Any) -> Any:
        return tf.identity(x), lambda grad: grad * act(x)

    x = tf.constant([2.0])
    with pytest.raises(xg.TraceError, match="take the gradient inside"):
        taped(tf.function(reads))(x)
    assert tf.function(taped(reads))(x).numpy() == [2.0]


@pytest.mark.parametrize("how", ["activation", "use", "override"])
def test_a_variable_is_read_at_forward(how: str) -> None:
    width, x = tf.Variable(1.0), tf.constant([0.5])
    rule = xg.get("triangular").with_params(width=width)
    act = {"activation": by_activation(rule), "override": by_override(rule)}.get(how)
    plain = xg.activation("ReLU")

    def called(x: Any) -> Any:
        if act is not None:
            return act(x)
        with xg.use("triangular", {"width": width}):
            return plain(x)

    for outside in (in_eager_code, tf.function):
        width.assign(1.0)
        function = outside(called)
        assert gradient_after(function, lambda: width.assign(2.0), x).numpy() == [0.5]
        assert gradient_after(function, list, x).numpy() == [0.75]
