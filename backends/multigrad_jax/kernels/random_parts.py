"""The draw of a shard: the generator at counters of 64 bits.

They are pairs of uint32 (high, low), because jax has wider integers in a mode of its own only.
"""

from __future__ import annotations

from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from multigrad.graph import random as core

from ..distributed.manual_axes import vary, varying

Tensor: TypeAlias = Any
Wide: TypeAlias = tuple[Tensor, Tensor]


def uniform(
    words: Tensor, start: Wide | int, whole: tuple[int, ...], shape: tuple[int, ...], dtype: Any
) -> Tensor:
    """Draw a part's uniforms in [0, 1); see `count`."""
    first = wide(start) if isinstance(start, int) else start
    return vary(draw_uniform(words, first, whole, shape, dtype), varying(first[1]))


def normal(
    words: Tensor, start: Wide | int, whole: tuple[int, ...], shape: tuple[int, ...], dtype: Any
) -> Tensor:
    """Draw a part's standard normals."""
    first = wide(start) if isinstance(start, int) else start
    return vary(draw_normal(words, first, whole, shape, dtype), varying(first[1]))


@partial(jax.jit, static_argnames=("whole", "shape", "dtype"))
def draw_uniform(
    words: Tensor, start: Wide, whole: tuple[int, ...], shape: tuple[int, ...], dtype: Any
) -> Tensor:
    from jax.extend.random import threefry2x32_p  # and Pallas (0.10): 18 ms that few need

    # The key as it is: as arrays like the counters it is carried along, for ten times the time. The
    # words of varying counters are said to be the same everywhere (jax 0.10).
    x, y = threefry2x32_p.bind(words[0], words[1], *count(start, whole, shape))
    if dtype == jnp.float64:
        bits = (x.astype(jnp.uint64) << 20) | (y >> 12).astype(jnp.uint64)
        return bits.astype(dtype) * 2.0**-core.WIDE_BITS
    dropped, kept = core.UNIFORM_FIELDS[jnp.dtype(dtype).name]
    field = ((x ^ y) >> np.uint32(dropped)) & np.uint32((1 << kept) - 1)
    return (field.astype(jnp.int32).astype(jnp.float32) * np.float32(2.0**-kept)).astype(dtype)


@partial(jax.jit, static_argnames=("whole", "shape", "dtype"))
def draw_normal(
    words: Tensor, start: Wide, whole: tuple[int, ...], shape: tuple[int, ...], dtype: Any
) -> Tensor:
    double = dtype == jnp.float64
    drawn = jnp.dtype(jnp.float64 if double else jnp.float32)
    uniforms = draw_uniform(words, start, whole, shape, drawn)
    return core.normal_from_uniform(uniforms, jnp, double).astype(dtype)


def count(start: Wide, whole: tuple[int, ...], shape: tuple[int, ...]) -> Wide:
    """Count the elements of a part as the whole array does.

    Args:
        start: the count of its first element.
        whole: the whole array's shape.
        shape: the part's.
    """
    core.split_axes(whole, shape)
    counters = jnp.broadcast_to(start[0], shape), jnp.broadcast_to(start[1], shape)
    for axis, stride in enumerate(core.strides(whole)):
        if shape[axis] > 1:
            steps = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
            counters = add(counters, multiply(steps, stride, shape[axis]))
    return counters


def wide(number: int) -> Wide:
    return np.uint32(number >> 32 & core.WORD_MASK), np.uint32(number & core.WORD_MASK)


def add(x: Wide, y: Wide) -> Wide:
    """Add modulo 2**64."""
    low = x[1] + y[1]
    return x[0] + y[0] + (low < x[1]).astype(jnp.uint32), low


def multiply(x: Tensor, number: int, bound: int) -> Wide:
    """Multiply uint32 below a bound by a number, modulo 2**64."""
    above, below = wide(number)
    low = x * below
    if (bound - 1) * number <= core.WORD_MASK:
        return jnp.zeros_like(low), low
    # Of halves: a product of two of them, or a sum of three, is below 2**32.
    half, mask = np.uint32(16), np.uint32(0xFFFF)
    x1, x0, y1, y0 = x >> half, x & mask, below >> half, below & mask
    cross, other = x0 * y1, x1 * y0
    middle = (x0 * y0 >> half) + (cross & mask) + (other & mask)
    high = x1 * y1 + (cross >> half) + (other >> half) + (middle >> half)
    return high + x * above, low
