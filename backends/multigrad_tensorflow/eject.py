"""TensorFlow's part of an ejected file: the function around `tf.custom_gradient`, keys and draws.

The guards against TensorFlow's two ways to drop a custom gradient go with it. Uniforms are always
drawn by ops. Normals are drawn by NumPy in eager code, whose last bits differ from those of ops.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from multigrad.backend import Ejection
from multigrad.engine import random as core

from .core.attach import render
from .core.kernels import ops as kernels
from .kernels import random

Tensor: TypeAlias = tf.Tensor


def array(like: Tensor, *, dtype: Any, value: Any) -> Tensor:
    """A constant array in a dtype."""
    return tf.constant(value.astype(dtype.as_numpy_dtype), dtype)


# --- keys and draws -------------------------------------------------------------------------------
def draw_key() -> Tensor:
    """Two words from TensorFlow's own generator, which `tf.random.set_seed` seeds."""
    return tf.cast(tf.random.uniform([2], 0, 1 << 32, tf.int64), tf.uint32)


def read_key(key: Any) -> Tensor:
    """Return the two words of a key: an int as in `jax.random.key(n)`, or two words."""
    if isinstance(key, int):
        key = (0, key & core.WORD_MASK)
    words = tf.cast(key, tf.uint32) if tf.is_tensor(key) else tf.constant(key, tf.uint32)
    if not words.shape.is_compatible_with([2]):
        raise ValueError(f"a key is an int, or two words of 32 bits, not {key!r}")
    return words


def fold_in(key: Tensor, n: int) -> Tensor:
    """Return the n-th key derived from a key."""
    return tf.stack(random.encrypt(key, tf.constant(0, tf.uint32), tf.constant(n, tf.uint32)))


def uniform_like(key: Tensor, x: Tensor) -> Tensor:
    """Uniforms in [0, 1) of x's shape and dtype, as `jax.random.uniform` has them, to the bit."""
    return random.shape_like(random.draw_uniform(key, tf.range(tf.size(x, tf.int64)), x.dtype), x)


def words_of(key: Tensor) -> Tensor:
    """The words of a key."""
    return key


def counters(key: Tensor, x: Tensor) -> Tensor:
    """The numbers of x's elements."""
    return tf.range(tf.size(x, tf.int64))


def draw_with_numpy(draw: Any, key: Tensor, x: Tensor) -> Tensor:
    """Draw with NumPy; the key is concrete, because there is no trace."""
    return tf.convert_to_tensor(draw(key.numpy().tolist(), x.shape, x.dtype.as_numpy_dtype))


def lay_out(key: Any, shape: Any) -> Any:
    """The key, and a draw cut into blocks: (start, stop, the first counter)."""
    return key, core.whole_blocks(shape)


EJECTION = Ejection(
    render=render.render_file,
    modules={
        "tf": tf,
        "tf.math": tf.math,
        "tf.nn": tf.nn,
        "tf.linalg": tf.linalg,
        "tf.bitwise": tf.bitwise,
        "tf.raw_ops": tf.raw_ops,
        "tf.autograph.experimental": tf.autograph.experimental,
        "np": np,
    },
    namespace={
        "do_not_convert": tf.autograph.experimental.do_not_convert,
        "read_key": read_key,
    },
    forms={
        kernels.array: array,
        random.draw_key: draw_key,
        random.counters: counters,
        random.draw_with_numpy: draw_with_numpy,
        core.lay_out: lay_out,
        core.normal: core.normal,
        core.uniform: core.uniform,
        random.fold_in: fold_in,
        random.uniform_like: uniform_like,
        core.words_of: words_of,
    },
)
