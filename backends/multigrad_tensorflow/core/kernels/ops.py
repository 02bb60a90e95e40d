"""TensorFlow's kernels by op; an op with a symbol that is left out is emitted infix.

Here are those of the core; those in `other_ops.py` load as one of them is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from multigrad.core import ops
from multigrad.core.backend.rows import composing
from multigrad.core.ir.op import Op
from multigrad.core.support.lazy_modules import late_value

from . import elementwise, reductions

Tensor: TypeAlias = tf.Tensor

OWN: dict[Op, Callable[..., Any]] = {
    **elementwise.OPS,
    **reductions.OPS,
}
# Computed in float32 for 16-bit floats and rounded once.
WIDE = (
    *(ops.ATAN2, ops.FMOD, ops.FLOOR_DIVIDE, ops.REMAINDER, ops.EXP2, ops.LOG2, ops.LOG10),
    *(ops.LOGADDEXP, ops.LOG_SIGMOID, ops.SOFTPLUS, ops.SUM, ops.MEAN, ops.PROD),
    *(ops.LOGSUMEXP, ops.SOFTMAX, ops.LOG_SOFTMAX),
)
OWN |= {op: elementwise.widened(OWN[op]) for op in WIDE}
OPS = composing(
    OWN,
    late_value("multigrad_tensorflow.kernels.other_ops:OPS"),
    elementwise.widened,
    draws=late_value("multigrad_tensorflow.kernels.random:OPS"),
)
UNSUPPORTED: dict[Op, str] = {}


# --- masks as bits, eight to a byte, the first in the highest bit ---------------------------------
WEIGHTS = (128, 64, 32, 16, 8, 4, 2, 1)


def pack(mask: Tensor) -> Tensor:
    flat = tf.reshape(mask, (-1,))
    # TensorFlow has no packbits: the bits are summed by their weights
    n_missing: Any = tf.math.floormod(-tf.size(flat), 8)
    flat = tf.pad(flat, [[0, n_missing]])
    columns = tf.cast(tf.reshape(flat, (-1, 8)), tf.int32)
    return tf.cast(tf.reduce_sum(columns * tf.constant(WEIGHTS), -1), tf.uint8)


def unpack(bits: Tensor, like: Tensor) -> Tensor:
    weights = tf.constant(WEIGHTS, tf.uint8)
    flat = tf.reshape(tf.bitwise.bitwise_and(bits[:, None], weights) != 0, (-1,))
    shape = tf.shape(like)
    return tf.ensure_shape(tf.reshape(flat[: tf.reduce_prod(shape)], shape), like.shape)
