"""Known silent faults of TensorFlow: see `multigrad.engine.backend.differences.Fault`."""

from __future__ import annotations

from multigrad.engine.backend.differences import Fault

SEVEN = """\
import tensorflow as tf
@tf.custom_gradient
def double(x):
    return x * 2, lambda grad_out: grad_out * 7
x = tf.ones([2])
"""
KNOWN_FAULTS = (
    Fault(
        "gradient through vectorized_map",
        "a gradient taken through tf.vectorized_map differentiates the forward of a "
        "tf.custom_gradient, and drops its own gradient",
        "take the gradient inside the mapped function, or use tf.map_fn",
        SEVEN + """\
def found(wrap):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.vectorized_map(wrap(double), x)
    return float(tape.gradient(y, x)[0]) != 7
""",
    ),
    Fault(
        "tangent of a custom gradient",
        "tf.autodiff.ForwardAccumulator differentiates the forward of a tf.custom_gradient",
        "put the accumulator around a tf.function that calls it",
        SEVEN + """\
def found(wrap):
    with tf.autodiff.ForwardAccumulator(x, tf.ones([2])) as accumulator:
        y = wrap(double)(x)
    return float(accumulator.jvp(y)[0]) != 7
""",
    ),
    Fault(
        "second derivative of moments",
        "the second derivative of tf.nn.moments holds the mean fixed: gradient penalties through "
        "batch normalization are wrong",
        "use tf.math.reduce_variance",
        """\
import tensorflow as tf
def found(wrap):
    x = tf.constant([1.0, 2.0, 4.0])
    variance = wrap(lambda x: tf.nn.moments(x, [0])[1])
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = variance(x)
        gradient = inner.gradient(y, x)
    return abs(float(outer.jacobian(gradient, x)[0, 1]) + 2 / 9) > 1e-3
""",
    ),
    Fault(
        "draws under recompute_grad",
        "tf.recompute_grad draws other random numbers when it runs the function again in backward",
        "draw outside, or by stateless_uniform with a seed",
        """\
import tensorflow as tf
def found(wrap):
    x = tf.ones([64])
    f = wrap(lambda x: x * tf.random.uniform([64]))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.recompute_grad(f)(x)
    return float(tf.reduce_max(abs(tape.gradient(y, x) * x - y))) > 1e-5
""",
    ),
    Fault(
        "cumprod at zero",
        "the gradient of tf.math.cumprod is 0 at a factor that is 0, where it is the product of "
        "the others",
        "multiply slices, or keep factors away from 0",
        """\
import tensorflow as tf
def found(wrap):
    x = tf.constant([2.0, 0.0, 3.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = wrap(tf.math.cumprod)(x)
    return float(tape.gradient(y, x)[1]) != 8
""",
    ),
)  # fmt: skip
