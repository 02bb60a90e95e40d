"""TensorFlow's kernels by op, with those of reductions and shapes; an op with a symbol that is left
out is emitted infix.

Here are those of the core; those in `other_ops.py` load as one of them is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from multigrad.core import ops
from multigrad.core.backend.rows import composing, rows_of
from multigrad.core.ir.op import Op
from multigrad.core.support.lazy_modules import late_value

from . import elementwise

Tensor = Any
Axis = int | tuple[int, ...] | None


def over(x: Tensor, axis: Axis) -> Axis:
    # a scalar has no axes, whichever are named
    return () if x.shape.rank == 0 else axis


def over_axes(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def reduce(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
        return function(x, over(x, axis), keepdims)

    return reduce


def sum_to(x: Tensor, like: Tensor) -> Tensor:
    shape = tf.shape(like)
    # shapes may be open while tracing, so the axes are computed by an op
    axes, _ = tf.raw_ops.BroadcastGradientArgs(s0=shape, s1=tf.shape(x))
    return tf.reshape(tf.reduce_sum(x, axes, True), shape)


def broadcast_to(x: Tensor, like: Tensor) -> Tensor:
    return tf.broadcast_to(x, tf.shape(like))


def array(like: Tensor, *, dtype: Any, value: Any) -> Tensor:
    if not tf.executing_eagerly():
        return tf.constant(value.as_numpy(dtype.as_numpy_dtype), dtype)
    # eager code keeps one tensor for each device and dtype with the value
    key = "tensorflow", like.device, dtype
    tensor = value.native.get(key)
    if tensor is None:
        with tf.device(like.device):
            tensor = tf.constant(value.as_numpy(dtype.as_numpy_dtype), dtype)
        value.native[key] = tensor
    return tensor


def dim(x: Tensor, *, axis: int) -> Any:
    """Return a length: an int if known while tracing, else a tensor."""
    length = x.shape[axis] if x.shape.rank is not None else None
    return tf.shape(x)[axis] if length is None else length


def size(x: Tensor) -> Any:
    count = x.shape.num_elements()
    return tf.size(x) if count is None else count


REDUCTIONS = "sum mean max min any all"  # `tf.reduce_sum` and so on
OWN: dict[Op, Callable[..., Any]] = {
    **elementwise.OPS,
    **rows_of(vars(), ops.CORE_OPS),
    **rows_of({n: over_axes(getattr(tf, f"reduce_{n}")) for n in REDUCTIONS.split()}, ops.CORE_OPS),
    ops.EXPAND_DIMS: tf.expand_dims,
    ops.BROADCAST_TO_SHAPE: tf.broadcast_to,
}
# Computed in float32 for 16-bit floats and rounded once.
WIDE = (ops.FLOOR_DIVIDE, ops.REMAINDER, ops.SOFTPLUS, ops.SUM, ops.MEAN)
OWN |= {op: elementwise.widened(OWN[op]) for op in WIDE}
OPS = composing(
    OWN,
    late_value("multigrad_tensorflow.kernels.other_ops:OPS"),
    elementwise.widened,
    draws=late_value("multigrad_tensorflow.kernels.random:OPS"),
)
UNSUPPORTED: dict[Op, str] = {}
