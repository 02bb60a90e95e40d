"""Quantizers of TensorFlow that go through int8, uint8 or int16 are the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import multigrad as xg

from ..harness.few_bits import COTANGENT, X, assert_equals

tf: Any = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.needs("tensorflow")
Tensor = Any


@tf.custom_gradient
def fake_int8(x: Tensor) -> Any:
    scale = tf.reduce_max(tf.abs(x)) / 127.0
    q = tf.cast(tf.clip_by_value(tf.round(x / scale), -128, 127), tf.int8)

    def grad(upstream: Tensor) -> Tensor:
        return upstream * tf.cast(tf.abs(q) < 100, upstream.dtype)

    return tf.cast(q, x.dtype) * scale, grad


@tf.custom_gradient
def saturated(x: Tensor) -> Any:
    q = tf.saturate_cast(tf.cast(x * 200.0, tf.int32), tf.uint8)
    p = tf.saturate_cast(x * 1000.0, tf.int16)
    return tf.cast(q, tf.float32) + tf.cast(p - 5, tf.float32), lambda upstream: upstream * 0.5


def by_stop_gradient(x: Tensor) -> Tensor:
    q = tf.cast(tf.clip_by_value(tf.round(x * 10.0) + 8.0, 0.0, 15.0), tf.uint8)
    return x + tf.stop_gradient((tf.cast(q, x.dtype) - 8.0) / 10.0 - x)


CASES: dict[str, tuple[Callable[..., Any], Tensor]] = {
    "int8": (xg.from_tf_custom_gradient, fake_int8),
    "saturated": (xg.from_tf_custom_gradient, saturated),
    "stop_gradient": (xg.function, by_stop_gradient),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_quantizer_of_tensorflow_is_the_same_everywhere(name: str, backend: Any) -> None:
    convert, function = CASES[name]
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        expected = function(x)
    gradient = tape.gradient(expected, x, tf.constant(COTANGENT))
    graph = convert(function)
    assert_equals(graph, expected.numpy(), gradient.numpy(), backend)
