"""`xg.override` on TensorFlow: rules on the ops that a function makes, however they are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.errors import RuleTypeError, RuleValueError

pytestmark = pytest.mark.needs("tensorflow")
pytest.importorskip("tensorflow")

import tensorflow as tf

from ...harness.models.overridden import scaled_by, tenfold  # noqa: F401
from ...harness.own_library import in_tensorflow
from ...harness.traced import taped

X = tf.constant([-1.0, 0.5, 2.0])
WEIGHTS = tf.constant([1.0, 2.0, 3.0])
VARIABLE = tf.Variable([1.0, 2.0, 3.0])
EXPECTED = np.array([0.0, 20.0, 30.0])  # ten times relu's


def plain(x):
    return tf.reduce_sum(tf.nn.relu(x) * WEIGHTS)


TRACED = tf.function(plain)
COMPILED = tf.function(plain, jit_compile=True)


def through_a_function(x):
    return TRACED(x)


def in_a_loop(x):
    for _ in tf.range(1):
        x = tf.nn.relu(x) * WEIGHTS
    return tf.reduce_sum(x)


def in_a_while_loop(x):
    turn = lambda i, a: (i + 1, tf.nn.relu(a) * WEIGHTS)
    loop = tf.while_loop(lambda i, _: i < 1, turn, (0, x), maximum_iterations=1)
    return tf.reduce_sum(loop[1])


PLACES = [
    plain,
    through_a_function,
    pytest.param(lambda x: COMPILED(x), id="through a compiled one"),
    in_a_loop,
    in_a_while_loop,
    pytest.param(lambda x: tf.cond(x[0] < 0, lambda: plain(x), lambda: 0.0), id="in a branch"),
    pytest.param(lambda x: tf.reduce_sum(tf.map_fn(tf.nn.relu, x) * WEIGHTS), id="mapped"),
    pytest.param(lambda x: tf.reduce_sum(tf.raw_ops.Relu(features=x) * VARIABLE), id="of a raw op"),
]


def gradient(function: Callable[..., Any]) -> Any:
    return taped(function)(X)


@pytest.mark.parametrize("way", ["eager", "graph", "xla"])
@pytest.mark.parametrize("function", PLACES, ids=lambda function: function.__name__)
def test_the_rule_acts_wherever_the_op_is_made(function: Callable[..., Any], way: str) -> None:
    TRACED(X)  # traced before, without the rule
    overridden = xg.override(function, {"relu": "tenfold"})
    run = lambda: gradient(overridden)
    found = run() if way == "eager" else tf.function(run, jit_compile=way == "xla")()
    np.testing.assert_array_equal(found, EXPECTED)
    assert overridden(X).numpy() == function(X).numpy()
    np.testing.assert_array_equal(gradient(function), [0.0, 2.0, 3.0])


SELECTORS = {
    tf.nn.relu: lambda x: tf.nn.relu(x),
    tf.math.sign: lambda x: tf.sign(x),
    "leaky_relu": lambda x: tf.nn.leaky_relu(x),
    "gelu": lambda x: tf.nn.gelu(x, approximate=True),
    tf.nn.silu: tf.function(lambda x: tf.nn.silu(x)),
    "maximum": lambda x: tf.maximum(x * VARIABLE / VARIABLE, 0.0),
    ("tanh", "relu"): lambda x: tf.nn.relu(x) + 0 * tf.tanh(x),
}


@pytest.mark.parametrize("selector", SELECTORS)
def test_an_operation_is_selected_by_name_or_function(selector: Any) -> None:
    function = SELECTORS[selector]
    overridden = xg.override(lambda x: tf.reduce_sum(function(x)), {selector: "tenfold"})
    np.testing.assert_array_equal(overridden(X), tf.reduce_sum(function(X)))
    np.testing.assert_array_equal(gradient(overridden), [0.0, 10.0, 10.0])
    np.testing.assert_array_equal(tf.function(lambda: gradient(overridden))(), [0.0, 10.0, 10.0])


def test_variables_and_other_inputs_of_a_tf_function_keep_their_gradients() -> None:
    overridden = xg.override(lambda x: tf.reduce_sum(tf.nn.relu(x * VARIABLE)), {"relu": "tenfold"})
    with tf.GradientTape() as tape:
        y = overridden(X)
    np.testing.assert_array_equal(tape.gradient(y, VARIABLE), [0.0, 5.0, 20.0])
    clipped = xg.override(lambda x, top: tf.reduce_sum(tf.minimum(x, top)), {tf.minimum: "tenfold"})
    in_x, in_top = in_tensorflow(tf.function(clipped), X, 1.0)[1](1.0)
    np.testing.assert_array_equal(in_x, [0.0, 10.0, 10.0])
    assert in_top == 1.0


def test_an_op_of_integers_keeps_its_own_gradient_beside_one_of_floats() -> None:
    def halves(x):
        return tf.reduce_sum(tf.cast(tf.range(3), tf.float16) * tf.cast(x, tf.float16))

    overridden = xg.override(halves, {tf.cast: "tenfold"})
    np.testing.assert_array_equal(gradient(overridden), [0.0, 10.0, 20.0])
    np.testing.assert_array_equal(tf.function(lambda: gradient(overridden))(), [0.0, 10.0, 20.0])


def test_a_gradient_that_the_function_takes_is_the_rules() -> None:
    overridden = xg.override(taped(plain), {"relu": "tenfold"})
    np.testing.assert_array_equal(overridden(X), EXPECTED)


def test_arrays_and_lists_among_the_inputs_of_ops() -> None:
    overridden = xg.override(
        lambda x: plain(x) + tf.reduce_sum(tf.nn.relu([1.0, 2.0])), {"relu": "tenfold"}
    )
    np.testing.assert_array_equal(gradient(overridden), EXPECTED)


REFUSED = {
    "rellu": (plain, "no operation 'rellu'; did you mean 'relu'"),
    "tanh": (plain, "calls no operation 'tanh'.*it calls: Mul, Relu, Sum"),
    tf.add: (lambda x: x + x, "2 inputs of shape"),
    tf.nn.relu: (TRACED.get_concrete_function(X), "traced before"),
    tf.nn.gelu: (plain, "calls no operation 'gelu'"),
}


@pytest.mark.parametrize("selector", REFUSED)
def test_what_cannot_be_changed_is_refused_with_its_reason(selector: Any) -> None:
    function, words = REFUSED[selector]
    with pytest.raises(RuleValueError, match=words):
        xg.override(lambda x: function(x), {selector: "tenfold"})(X)


def test_what_runs_again_in_backward_is_refused_and_the_way_out_works() -> None:
    with pytest.raises(RuleValueError, match="runs it again in backward"):
        xg.override(tf.recompute_grad(plain), {"relu": "tenfold"})(X)
    inside = tf.recompute_grad(xg.override(plain, {"relu": "tenfold"}))
    outside = xg.override(lambda x: inside(x) + plain(x), {"relu": "tenfold"})
    for function, times in ((inside, 1.0), (outside, 2.0)):
        assert np.array_equal(gradient(function), times * EXPECTED)


def test_after_a_call_nothing_of_tensorflow_is_changed() -> None:
    from tensorflow.python.eager import execute

    before = tf.nn.gelu(X), execute.record_gradient
    xg.override(lambda x: tf.nn.gelu(x), {"gelu": "tenfold"})(X)
    with pytest.raises(RuleValueError):
        xg.override(plain, {"gelu": "tenfold"})(X)
    assert execute.record_gradient is before[1]
    np.testing.assert_array_equal(gradient(plain), [0.0, 2.0, 3.0])
    np.testing.assert_array_equal(tf.nn.gelu(X), before[0])
    with pytest.raises(RuleTypeError, match="expected a function"):
        xg.override(None, {"gelu": "tenfold"})


def test_a_schedule_and_a_variable_are_read_at_each_call_of_a_tf_function() -> None:
    schedule, variable = xg.schedule.linear(1.0, 2.0, steps=1), tf.Variable(1.0)
    for number, step in ((schedule, schedule.step), (variable, lambda: variable.assign(2.0))):
        rule = xg.get("triangular").with_params(width=number)
        slope = tf.function(taped(xg.override(tf.nn.relu, {"relu": rule})))
        x = tf.constant([0.5])
        assert slope(x).numpy() == [0.5]
        step()
        assert slope(x).numpy() == [0.75]
        assert slope.experimental_get_tracing_count() == 1
