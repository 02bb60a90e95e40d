"""Functions of TensorFlow that no row knows are captured by the graph that it makes of the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

tf: Any = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.needs("tensorflow")


def with_gradient(function: Callable[[Any], Any]) -> Any:
    """Return what computes a function, and its gradient by a tape of TensorFlow's."""

    @tf.custom_gradient
    def called(x: Any) -> Any:
        def grad(upstream: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                again = function(x)
            return tape.gradient(again, x, upstream)

        return function(x), grad

    return called


def calls() -> dict[str, Callable[[Any], Any]]:
    return {
        "logaddexp": lambda x: tf.experimental.numpy.logaddexp(x, x[::-1]),
        "kron": lambda x: tf.experimental.numpy.kron(x, x),
        "lstsq": lambda x: tf.linalg.lstsq(x[:, :2], x, l2_regularizer=1.0),
        "total_variation": lambda x: tf.image.total_variation(x[None, :, :, None]),
        "separable_conv2d": lambda x: tf.nn.separable_conv2d(
            x[None, :, :, None], tf.ones((1, 2, 1, 1)), tf.ones((1, 1, 1, 2)), [1] * 4, "SAME"
        ),
        "unsorted_segment_mean": lambda x: tf.math.unsorted_segment_mean(x, [0, 0], 2),
        "unsorted_segment_sqrt_n": lambda x: tf.math.unsorted_segment_sqrt_n(x, 0, 1),
        "local_response_normalization": lambda x: tf.nn.local_response_normalization(
            x[None, None], 1, 0.5, 2.0, 0.75
        ),
        "tensor_diag": lambda x: tf.linalg.tensor_diag_part(tf.linalg.tensor_diag(x) * 2.0),
        "sinc": lambda x: tf.experimental.numpy.sinc(x),
        "TopKV2": lambda x: tf.raw_ops.TopKV2(input=x, k=2).values,
        "ties": lambda x: tf.experimental.numpy.maximum(x, x + tf.nn.relu6(-x)),
    }


NAMES = "logaddexp kron lstsq total_variation separable_conv2d unsorted_segment_mean TopKV2 ties"
MORE = "unsorted_segment_sqrt_n local_response_normalization tensor_diag sinc"


@pytest.mark.parametrize("name", [*NAMES.split(), *MORE.split()])
def test_a_function_without_a_row_has_its_numbers_and_gradient(name: str, backend: Any) -> None:
    x = np.array([[1.5, 0.25, 0.7], [0.5, 2.0, 1.1]], "float32")
    own = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(own)
        wanted = calls()[name](own)
    shape = tuple(wanted.shape)
    cotangent = np.linspace(0.5, 1.5, int(np.prod(shape)), dtype="float32").reshape(shape)
    gradient = tf.convert_to_tensor(tape.gradient(wanted, own, tf.constant(cotangent)))
    function = xg.from_tf_custom_gradient(with_gradient(calls()[name]))
    y, pull = xg.vjp(function, backend.array(x))
    (found,) = pull(backend.array(cotangent))
    np.testing.assert_allclose(backend.numpy(y), wanted, rtol=3e-6, atol=1e-6)
    np.testing.assert_allclose(backend.numpy(found), gradient, rtol=2e-5, atol=1e-6)
    assert "by tensorflow's own trace of" in str(xg.show(function))


def test_what_tensorflow_cannot_trace_is_refused_with_the_reason() -> None:
    x = np.array([[1.5, -0.25], [0.5, 2.0]], "float32")
    variable = tf.Variable([[2.0]])
    refused = {
        "RandomUniform, which has a state": lambda x: tf.image.random_brightness(x, 0.3),
        "Igamma, which has no row": lambda x: tf.math.igamma(x, x),
        "shape follows from values": lambda x: tf.math.segment_sum(x, tf.constant([0, 1])),
        "which is no tensor": lambda x: tf.nn.sufficient_statistics(x, [0])[1],
        "ReadVariableOp, which has a state": lambda x: tf.experimental.numpy.kron(x, variable),
    }
    for reason, call in refused.items():
        with pytest.raises(xg.errors.TraceError, match=reason):
            xg.vjp(xg.from_tf_custom_gradient(with_gradient(call)), x)
