"""TensorFlow's rows of the elementwise family that look at bits."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from multigrad.graph import ops

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
    # The kernel takes the last bit's number for what is out of range.
    a, b, last = as_integers(a, b)
    shifted = tf.bitwise.left_shift(a, b)
    return tf.where((b < 0) | (b > last), tf.zeros_like(shifted), shifted)


def right_shift(a: Any, b: Any) -> Tensor:
    a, b, last = as_integers(a, b)
    return tf.bitwise.right_shift(a, tf.where((b < 0) | (b > last), last, b))


def as_integers(a: Any, b: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return two integers in the wider dtype of theirs, and the number of its last bit."""
    is_wide = any(tf.is_tensor(x) and x.dtype == tf.int64 for x in (a, b))
    dtype = tf.int64 if is_wide else tf.int32
    return tf.cast(a, dtype), tf.cast(b, dtype), tf.constant(8 * dtype.size - 1, dtype)


OPS = {
    ops.NEXTAFTER: nextafter,
    ops.BITWISE_LEFT_SHIFT: left_shift,
    ops.BITWISE_RIGHT_SHIFT: right_shift,
}
