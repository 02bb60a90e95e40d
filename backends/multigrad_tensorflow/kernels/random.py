"""Random draws on TensorFlow, by threefry in uint32 ops.

A draw in a graph is made of ops, so that the key may be a tensor and XLA can fuse it. In eager code
on a CPU, NumPy draws: 100 ops take 1 ms even for one element, NumPy 0.07 ms.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeAlias

import tensorflow as tf

from multigrad.core.backend.contract import Draws
from multigrad.core.ir.op import Op
from multigrad.engine import random as core
from multigrad.engine.ops import draws as ops
from multigrad.errors import RuleValueError

Tensor: TypeAlias = Any

NAMESPACE = SimpleNamespace(log=tf.math.log, log1p=tf.math.log1p, sqrt=tf.math.sqrt, where=tf.where)


def fold_in(key: Tensor, n: Tensor) -> Tensor:
    """Return the n-th key of a key: a pair of ints for a pair and an int, else two uint32 words."""
    if isinstance(key, core.PlacedKey):
        return core.PlacedKey(fold_in(key.key, n), key.start, key.whole)
    if isinstance(key, tuple) and isinstance(n, int):
        return core.fold_in(key, n)
    counter = tf.cast(n, tf.uint32)
    return tf.stack(encrypt(key, tf.zeros_like(counter), counter))


def uniform_like(key: Tensor, x: Tensor) -> Tensor:
    """Return uniforms in [0, 1) of x's shape, dtype and device, bit-equal to other backends'."""
    core.check_dtype(x.dtype.name)
    if is_eager_on_cpu(x):
        return draw_with_numpy(core.uniform, key, x)
    return shape_like(draw_uniform(core.words_of(key), counters(key, x), x.dtype), x)


def normal_like(key: Tensor, x: Tensor) -> Tensor:
    """Return standard normals of x's shape, dtype and device, from the uniforms of the key."""
    core.check_dtype(x.dtype.name)
    if is_eager_on_cpu(x):
        return draw_with_numpy(core.normal, key, x)
    is_double = x.dtype == tf.float64
    compute_dtype = tf.float64 if is_double else tf.float32
    uniform = draw_uniform(core.words_of(key), counters(key, x), compute_dtype)
    normal = core.normal_from_uniform(uniform, NAMESPACE, is_double)
    return shape_like(tf.cast(normal, x.dtype), x)


def draw_key() -> Tensor:
    """Draw a key from TensorFlow's global generator: a pair of ints, in a graph two uint32 words.

    `tf.random.set_seed` makes it repeat, as every random op. In a `tf.function` it draws at every
    call, from a seed fixed by the trace; under XLA TensorFlow ignores seeds.
    """
    words = tf.random.uniform([2], 0, 1 << 32, tf.int64)
    if tf.executing_eagerly():
        first, second = words.numpy().tolist()
        return first, second
    return tf.cast(words, tf.uint32)


def key_pair(key: Tensor) -> Tensor:
    """Return two uint32 words of an integer tensor of two words."""
    if not key.dtype.is_integer or not key.shape.is_compatible_with([2]):
        raise RuleValueError(
            f"key is {key.dtype.name} of shape {key.shape}; expected an integer tensor of two "
            "words: tf.constant([0, 7], tf.uint32)"
        )
    return tf.cast(tf.convert_to_tensor(key), tf.uint32)


def key_words(key: Tensor) -> Tensor:
    """Return a key as a tensor: a pair of ints becomes two uint32 words."""
    return tf.constant(key, tf.uint32) if isinstance(key, tuple) else key


def is_eager_on_cpu(x: Tensor) -> bool:
    # A DTensor, whose device is "CUSTOM", counts as on the CPU: `place_like` lays its draw out.
    return tf.executing_eagerly() and "GPU" not in x.device and "TPU" not in x.device


def draw_with_numpy(draw: Any, key: Tensor, x: Tensor) -> Tensor:
    words = core.words_of(key)
    pair = words if isinstance(words, tuple) else tuple(words.numpy().tolist())
    if isinstance(key, core.PlacedKey):
        pair = core.PlacedKey(pair, int(key.start), tuple(map(int, key.whole)))
    return place_like(tf.convert_to_tensor(draw(pair, tuple(x.shape), x.dtype.as_numpy_dtype)), x)


def counters(key: Tensor, x: Tensor) -> Tensor:
    """Return the flat int64 counters of x's elements, in the whole array if the key is placed."""
    if not isinstance(key, core.PlacedKey):
        return tf.range(tf.size(x, tf.int64))
    counter = tf.cast(key.start, tf.int64)
    is_known = all(isinstance(length, int) for length in (*key.whole, *x.shape))
    if is_known and core.split_axes(key.whole, x.shape) == 0:
        return counter + tf.range(x.shape.num_elements(), dtype=tf.int64)
    core.check_axes(key.whole, x.shape.rank)
    lengths = tf.shape(x, tf.int64)
    for axis, stride in enumerate(core.strides(key.whole)):
        counter = counter[..., None] + tf.range(lengths[axis]) * tf.cast(stride, tf.int64)
    return tf.reshape(counter, [-1])


def draw_uniform(key: Tensor, index: Tensor, dtype: Any) -> Tensor:
    high = tf.bitwise.right_shift(index, tf.constant(32, tf.int64))
    x, y = encrypt(key, tf.cast(high, tf.uint32), tf.cast(index, tf.uint32))
    if dtype == tf.float64:
        bits_53 = tf.cast(x, tf.int64) * (1 << 20) + tf.cast(shift_right(y, 12), tf.int64)
        return tf.cast(bits_53, tf.float64) * 2.0**-core.WIDE_BITS
    shift, width = core.UNIFORM_FIELDS[dtype.name]
    field = shift_right(x ^ y, shift) & tf.constant((1 << width) - 1, tf.uint32)
    # A fraction of so few bits is exact in float32, and in its own 16-bit dtype.
    return tf.cast(tf.cast(tf.cast(field, tf.int32), tf.float32) * 2.0**-width, dtype)


def encrypt(key: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    words = key_words(key)
    return core.threefry_rounds((words[0], words[1]), (x, y), operator.add, rotate_xor)


def rotate_xor(x: Tensor, bits: int, y: Tensor) -> Tensor:
    left = tf.bitwise.left_shift(x, tf.constant(bits, tf.uint32))
    return (left | shift_right(x, 32 - bits)) ^ y


def shift_right(x: Tensor, bits: int) -> Tensor:
    return tf.bitwise.right_shift(x, tf.constant(bits, tf.uint32))


def shape_like(flat: Tensor, x: Tensor) -> Tensor:
    """Return a flat draw in x's shape, with x's static shape while tracing."""
    draw = tf.reshape(flat, tf.shape(x))
    return tf.ensure_shape(draw, x.shape)


# --- DTensors: one array over the devices of a mesh, on which an op acts as on the whole ----------
# TensorFlow knows their layouts only in eager code.
DEVICE = "CUSTOM"  # the device that a DTensor reports


def is_dtensor(x: Tensor) -> bool:
    """Return whether an eager tensor is one array over a mesh; False in a graph."""
    return DEVICE in getattr(x, "device", "")


def place_like(value: Tensor, x: Tensor) -> Tensor:
    """Return a tensor, laid out over a mesh like x if that is a DTensor."""
    if not is_dtensor(x):
        return value
    dtensor = tf.experimental.dtensor
    layout = dtensor.fetch_layout(x)
    full_layout = dtensor.Layout.replicated(layout.mesh, layout.rank)
    return dtensor.relayout(dtensor.copy_to_mesh(value, full_layout), layout)


DRAWS = Draws(draw_key=draw_key, fold_in=fold_in, key_pair=key_pair)
OPS: dict[Op, Callable[..., Any]] = {
    ops.FOLD_IN: fold_in,
    ops.UNIFORM_LIKE: uniform_like,
    ops.NORMAL_LIKE: normal_like,
}
