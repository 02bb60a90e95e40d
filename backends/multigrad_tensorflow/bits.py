"""TensorFlow's rows of the elementwise family that look at bits."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from multigrad import ops

Tensor = Any


def nextafter(a: Any, b: Any) -> Tensor:
    """Among the numbers of its own dtype; TensorFlow (2.21) has no kernel for 16-bit floats."""
    dtype = next(value.dtype for value in (a, b) if tf.is_tensor(value))
    a, b = (tf.convert_to_tensor(x, dtype) for x in (a, b))
    if dtype.size != 2:
        return tf.math.nextafter(a, b)
    a, b = a + tf.zeros_like(b), b + tf.zeros_like(a)
    bits = tf.bitcast(a, tf.int16)
    stepped = tf.where((a < b) == (a > 0), bits + 1, bits - 1)
    least = tf.where(b > 0, tf.ones_like(bits), tf.constant(-32767, tf.int16))
    moved = tf.bitcast(tf.where(a == 0, least, stepped), dtype)
    moved = tf.where(a == b, b, moved)
    return tf.where(tf.math.is_nan(a) | tf.math.is_nan(b), a + b, moved)


def left_shift(a: Any, b: Any) -> Tensor:
    # The kernel takes 31 for what is out of range.
    shifted = tf.bitwise.left_shift(tf.cast(a, tf.int32), tf.cast(b, tf.int32))
    return tf.where((b < 0) | (b > 31), 0, shifted)


def right_shift(a: Any, b: Any) -> Tensor:
    places = tf.where((b < 0) | (b > 31), 31, b)
    return tf.bitwise.right_shift(tf.cast(a, tf.int32), tf.cast(places, tf.int32))


OPS = {
    ops.NEXTAFTER: nextafter,
    ops.BITWISE_LEFT_SHIFT: left_shift,
    ops.BITWISE_RIGHT_SHIFT: right_shift,
}
