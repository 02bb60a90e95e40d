"""Rules written in TensorFlow: captured as they stand, they give TensorFlow's numbers on every
backend.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.capturing import find_rule, inputs
from ...harness.own_library import assert_as_in
from ...harness.traced import taped

tf: Any = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.needs("tensorflow")


def as_written(function: Callable[..., Any], grad_out: Any, tin: Any) -> Any:
    """Run the user's function in TensorFlow, without us."""
    return function(None, tf.constant(grad_out), tf.constant(tin)).numpy()


def test_show_says_that_a_rule_is_written_in_tensorflow(captured: Any) -> None:
    assert "# written in tf; captured by substitution" in xg.show(
        captured(find_rule("rules_in_tensorflow", "operators"))
    )


def test_functions_that_a_foreign_object_holds_come_through_tensorflows_dispatcher(
    backend: Any, captured: Any
) -> None:
    held = types.SimpleNamespace(
        soften=tf.nn.softplus,
        mean=tf.reduce_mean,
        where=tf.where,
        norm=tf.norm,
        turn=tf.transpose,
        scale=tf.constant(0.5),
        join=tf.concat,
    )

    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        mean = held.mean(tin, axis=-1, keepdims=True) * held.scale * held.norm(tensor=tin)
        soft = held.soften(held.turn(held.turn(tin))) * mean
        return grad_out * held.where(tin > 0, soft, 1.0) + held.join([tin[1:], tin[:1]], axis=0)

    tin, grad_out = inputs(np.float32)
    wanted = as_written(rule, grad_out, tin)
    made = captured(rule)
    given = backend.numpy(made(None, backend.array(grad_out), backend.array(tin)))
    np.testing.assert_allclose(given, wanted, rtol=3e-6, atol=3e-6 * np.abs(wanted).max())


def test_first_capture_inside_a_tf_function_takes_constants_as_they_are(captured: Any) -> None:
    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        weights = tf.constant([0.5, 1.0, 1.5, 2.0]) * tf.cast(tf.range(4), tf.float32)
        return grad_out * weights

    act = xg.activation("ReLU", captured(rule))

    given = tf.function(taped(act))(tf.ones((2, 4))).numpy()
    np.testing.assert_array_equal(given, [[0.0, 1.0, 3.0, 6.0]] * 2)


def test_compiled_function_is_a_rule(backend: Any, captured: Any) -> None:
    @tf.function
    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return tf.nn.relu(tin) * grad_out

    tin, grad_out = inputs(np.float32)
    given = backend.numpy(captured(rule)(None, backend.array(grad_out), backend.array(tin)))
    np.testing.assert_array_equal(given, np.maximum(tin, 0) * grad_out)


REFUSED = {
    "case": "branches on a tensor. Use tf.where",
    "vectorized_map": "in a loop of TensorFlow's",
    "py_function": "hides what it computes. Call the function itself",
    "boolean_mask": "Use tf.where.mask, tensor, 0.0",
    "debugging.assert_positive": "Check them outside the rule",
    "random.stateless_normal": "follow the key of xg.use",
    "signal.dct": "not captured. Write it with xg.xp, or register the rule with native=True",
    "math.bessel_i0": "not captured. Write it with xg.xp, or register the rule with native=True",
}


@pytest.mark.parametrize("name", REFUSED)
def test_name_without_an_op_is_refused_by_its_name_with_the_line_and_what_to_do(
    name: str, captured: Any
) -> None:
    arguments = {
        "case": lambda x: ([(tf.reduce_sum(x) > 0, lambda: x)],),
        "vectorized_map": lambda x: (abs, x),
        "py_function": lambda x: (abs, [x], tf.float32),
        "boolean_mask": lambda x: (x, x > 0),
        "random.stateless_normal": lambda x: (tf.shape(x), [1, 2]),
    }.get(name, lambda x: (x,))
    first, _, second = name.partition(".")

    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        holder = getattr(tf, first)
        return (getattr(holder, second) if second else holder)(*arguments(tin))

    tin, grad_out = inputs(np.float32)
    with pytest.raises(
        xg.TraceError,
        match=rf"test_capture_tensorflow.py:\d+\) calls tensorflow.{name}.*{REFUSED[name]}",
    ):
        captured(rule)(None, grad_out, tin)


def test_call_in_a_way_that_is_not_captured_says_why(captured: Any) -> None:
    def taped(ctx: Any, grad_out: Any, tin: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(tin)
        return tape.gradient(tin * tin, tin)

    tin, grad_out = inputs(np.float32)
    for rule, message in (
        (lambda ctx, g, x: tf.where(x > 0), "tensorflow.where .*use tf.where.condition, x, y"),
        (
            lambda ctx, g, x: tf.random.normal(tf.shape(x), seed=3),
            "a draw with a seed; draws follow the key of xg.use",
        ),
        (
            lambda ctx, g, x: g / tf.norm(x, ord=2, axis=[0, 1]),
            "order 2 over two axes, a matrix norm",
        ),
        (taped, "uses tf.GradientTape, but a rule is the backward pass"),
    ):
        with pytest.raises(xg.TraceError, match=message):
            captured(rule)(None, grad_out, tin)


# TensorFlow's fake quantization, and custom gradients that apply themselves, as graphs.


Tensor = Any
X = np.random.default_rng(0).normal(scale=3, size=(8, 6)).astype(np.float32)
X[0] = 0.0, -0.0, 6.0, -6.0, 1.0, 2.5
X[1, 0] = 2.0  # half of a step, where it is a 255th of 4
COTANGENT = np.random.default_rng(1).normal(size=X.shape).astype(np.float32)
ENDS = np.array(-1.3, np.float32), np.array(2.7, np.float32)
CHANNELS = (
    np.array([-1.0, -0.3, 0.0, 0.0, -2.0, -0.7], np.float32),
    np.array([0.4, 1.3, 0.0, 1.0, 0.5, 2.0], np.float32),
)
fake = tf.quantization
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "args": (lambda x: fake.fake_quant_with_min_max_args(x, -1.5, 3.0, 4, True), ()),
    "args above zero": (lambda x: fake.fake_quant_with_min_max_args(x, 2.0, 6.0), ()),
    "vars": (fake.fake_quant_with_min_max_vars, ENDS),
    "vars between zeros": (fake.fake_quant_with_min_max_vars, (ENDS[0] * 0, ENDS[1] * 0)),
    "constants": (lambda x: fake.fake_quant_with_min_max_vars(x, -1.0, tf.constant(1.3), 3), ()),
    "channels": (
        lambda x, low, high: fake.fake_quant_with_min_max_vars_per_channel(x, low, high, 4),
        CHANNELS,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_fake_quantization_is_the_same_everywhere(name: str, backend: Any) -> None:
    function, more = CASES[name]
    arrays = (X, *more)
    assert_as_in("tensorflow", function, *arrays, backend=backend, cotangent=COTANGENT, atol=1e-6)
    found = xg.function(lambda *args: function(*args), native=False)(*map(backend.array, arrays))
    np.testing.assert_array_equal(backend.numpy(found), function(*arrays).numpy())


def test_gradients_of_fake_quantization_are_captured() -> None:
    def both(ct: Tensor, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        one = fake.fake_quant_with_min_max_vars_per_channel_gradient(ct, x, low, high)
        return one[0] + one[1] + one[2] + fake.fake_quant_with_min_max_args_gradient(ct, x, -1.0)

    expected = both(*map(tf.constant, (COTANGENT, X, *CHANNELS))).numpy()
    result = xg.function(both, native=False)(COTANGENT, X, *CHANNELS)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def decorated_at_every_call(x: Tensor) -> Tensor:
    """As TensorFlow Probability decorates its functions."""

    @tf.custom_gradient
    def wrapped(x: Tensor) -> Any:
        return tf.sin(x), lambda upstream: upstream * (1.0 + decorated_at_every_call(x))

    return wrapped(x)


def test_a_backward_may_apply_a_function_that_is_decorated_at_every_call(backend: Any) -> None:
    assert_as_in("tensorflow", decorated_at_every_call, X, backend=backend)
