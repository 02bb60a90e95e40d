"""Masks as bits, eight to a byte, the first in the highest bit."""

from __future__ import annotations

from typing import Any, TypeAlias

import tensorflow as tf

Tensor: TypeAlias = Any
WEIGHTS = (128, 64, 32, 16, 8, 4, 2, 1)


def pack(mask: Tensor) -> Tensor:
    """Return the bits of a mask."""
    flat = tf.reshape(mask, (-1,))
    missing: Any = tf.math.floormod(-tf.size(flat), 8)
    flat = tf.pad(flat, [[0, missing]])
    columns = tf.cast(tf.reshape(flat, (-1, 8)), tf.int32)
    return tf.cast(tf.reduce_sum(columns * tf.constant(WEIGHTS), -1), tf.uint8)


def unpack(bits: Tensor, like: Tensor) -> Tensor:
    """Return the mask that was packed, of the shape of a tensor."""
    places = tf.constant(WEIGHTS, tf.uint8)
    flat = tf.reshape(tf.bitwise.bitwise_and(bits[:, None], places) != 0, (-1,))
    shape = tf.shape(like)
    return tf.ensure_shape(tf.reshape(flat[: tf.reduce_prod(shape)], shape), like.shape)
