"""NumPy's draws in plain code, block by block: the definition of every backend's draws."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from ...errors import RuleTypeError
from .keys import (
    WORD_MASK,
    Key,
    PlacedKey,
    normal_from_uniform,
    split_axes,
    strides,
    threefry_rounds,
)

Array: TypeAlias = np.ndarray[Any, Any]
# (start, stop, counters) of each block; an int is the first of consecutive counters.
Counted: TypeAlias = Iterator[tuple[int, int, int | Array]]

# dtype: (bits dropped at the low end of the word, bits kept), as jax.random.uniform takes them.
UNIFORM_FIELDS = {"float16": (6, 10), "bfloat16": (1, 7), "float32": (9, 23)}
WIDE_BITS = 52

# Elements per pass: three buffers of this many words stay in a second-level cache (6.5 ms per 1e6,
# 12 ms unblocked). A power of two, so that within a block the high counter word is constant.
BLOCK = 1 << 16


def as_uint32(word: int) -> Array:
    return np.array(word & WORD_MASK, np.uint32)


# A call with an array of no dimensions takes 0.2 us, with a number 0.5 us; a block makes 110 calls.
SHIFTS = tuple(as_uint32(bits) for bits in range(32))
COUNTERS = np.arange(BLOCK, dtype=np.uint32)


def threefry2x32(key: Key, counters: tuple[Array, Array]) -> tuple[Array, Array]:
    """Encrypt two uint32 arrays of one shape with two key words: 64 random bits per element."""
    x, y = (np.array(counter, np.uint32, ndmin=1) for counter in counters)
    words = encrypt(key, x, y, (np.empty_like(x), np.empty_like(x)))
    shape = np.shape(counters[0])
    return words[0].reshape(shape), words[1].reshape(shape)


def encrypt(key: Key, x: Array, y: Array, space: tuple[Array, Array]) -> tuple[Array, Array]:
    """Run the rounds, in place on y.

    Args:
        key: two words.
        x: uint32 of y's shape, which is consumed, or one for all.
        y: uint32.
        space: two arrays of y's shape: the first holds x if it was one for all, the second is
            scratch.
    """
    high, scratch = space

    def add(word: Array, other: Array) -> Array:
        if word.ndim:
            return np.add(word, other, word)
        return np.add(word, other, high) if other.ndim else np.asarray(word + other)

    def rotate_xor(word: Array, bits: int, other: Array) -> Array:
        np.left_shift(word, SHIFTS[bits], scratch)
        np.right_shift(word, SHIFTS[32 - bits], word)
        np.bitwise_or(word, scratch, word)
        return np.bitwise_xor(word, other, word)

    first, second = key
    return threefry_rounds((int(first), int(second)), (x, y), add, rotate_xor, as_uint32)


def random_words(key: Key, counter: int | Array, space: Array) -> tuple[Array, Array]:
    """Return two random words for each column of `space`, in its first two rows.

    The counters are those from an int on, not across a multiple of 2**32, or an array.
    """
    high, low, scratch = space
    if isinstance(counter, int):
        np.add(COUNTERS[: low.size], as_uint32(counter), low)
        # One high word serves the block; the first `add` spreads it into `high`.
        return encrypt(key, as_uint32(counter >> 32), low, (high, scratch))
    np.copyto(low, counter, casting="unsafe")
    return encrypt(key, (counter >> 32).astype(np.uint32), low, (high, scratch))


def uniform(key: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    """Draw uniforms in [0, 1), `jax.random.uniform` bit for bit; by a placed key, its part."""
    dtype = np.dtype(dtype)
    check_dtype(dtype.name)
    draw = np.empty(shape, dtype)
    fill_uniform(draw, key, dtype.name)
    return draw


def normal(key: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    """Draw standard normals; float16 and bfloat16 are the rounded float32 draw."""
    dtype = np.dtype(dtype)
    check_dtype(dtype.name)
    double = dtype.name == "float64"
    wide = "float64" if double else "float32"
    draw = np.empty(shape, dtype)
    flat = draw.reshape(-1)
    uniforms = np.empty(min(flat.size, BLOCK), wide)
    space = make_space(flat.size)
    words, counted = lay_out(key, draw.shape)
    for start, stop, counter in counted:
        block = uniforms[: stop - start]
        fill_block(block, words, counter, wide, space[:, : stop - start])
        flat[start:stop] = normal_from_uniform(block, np, double)
    return draw


def make_space(size: int) -> Array:
    """Return memory that all blocks of one draw share; its rows: high word, low word, scratch."""
    # If each block had its own, the system would give and take it back, for a third of the time.
    return np.empty((3, min(size, BLOCK)), np.uint32)


def fill_uniform(draw: Array, key: Any, dtype: str) -> None:
    """Fill a contiguous array with the uniforms of `dtype`.

    `dtype` says how many bits are drawn; `draw` may have a wider one.
    """
    flat = draw.reshape(-1)
    space = make_space(flat.size)
    words, counted = lay_out(key, draw.shape)
    for start, stop, counter in counted:
        fill_block(flat[start:stop], words, counter, dtype, space[:, : stop - start])


def fill_block(draw: Array, key: Key, counter: int | Array, dtype: str, space: Array) -> None:
    """Fill one block, given its first counter or all its counters."""
    x, y = random_words(key, counter, space)
    if dtype == "float64":
        # 52 bits: the first word and the upper 20 of the second.
        wide = x.astype(np.uint64)
        wide <<= 20
        wide |= y >> 12
        np.multiply(wide.astype(np.float64), 2.0**-WIDE_BITS, draw)
        return
    dropped, kept = UNIFORM_FIELDS[dtype]
    # As in jax, narrower draws take the bits of both words' xor.
    np.bitwise_xor(x, y, x)
    np.right_shift(x, SHIFTS[dropped], x)
    if dropped + kept < 32:
        np.bitwise_and(x, as_uint32((1 << kept) - 1), x)
    # Through int32, whose conversion to float32 is vectorized on every processor; exact in float32,
    # and in the 16-bit dtype it is meant for.
    scale = np.float32(2.0**-kept)
    np.multiply(x.view(np.int32), scale, draw, dtype=np.float32, casting="unsafe")


def lay_out(key: Any, shape: tuple[int, ...]) -> tuple[Key, Counted]:
    """Return a key's words, and its draw cut into (start, stop, counters)."""
    if isinstance(key, PlacedKey):
        return key.key, blocks_of_part(key, shape)
    return key, whole_blocks(shape)


def whole_blocks(shape: tuple[int, ...]) -> Counted:
    for start, stop in cut(math.prod(shape), BLOCK):
        yield start, stop, start


def blocks_of_part(key: PlacedKey, shape: tuple[int, ...]) -> Counted:
    """Cut the draw of a part into blocks: several short runs, or a piece of one run."""
    firsts, length = find_runs(key, shape)
    runs_per_block = BLOCK // max(length, 1)
    if runs_per_block > 1 and len(firsts) > 1:
        along = np.arange(length, dtype=np.uint64)
        for start, stop in cut(len(firsts), runs_per_block):
            counters = firsts[start:stop, None] + along
            yield start * length, stop * length, counters.reshape(-1)
        return
    for run, first in enumerate(firsts.tolist()):
        for start, stop in cut_run(first, length, BLOCK):
            yield run * length + start, run * length + stop, first + start


def find_runs(key: PlacedKey, shape: tuple[int, ...]) -> tuple[Array, int]:
    """Return the first counters of the runs in which a part lies in its array, and their length."""
    axes = split_axes(key.whole, shape)
    firsts = np.full(1, key.start, np.uint64)
    for length, stride in zip(shape[:axes], strides(key.whole), strict=False):
        steps = np.arange(length, dtype=np.uint64) * np.uint64(stride)
        firsts = (firsts[:, None] + steps).reshape(-1)
    return firsts, math.prod(shape[axes:])


def cut_run(first: int, length: int, block: int) -> Iterator[tuple[int, int]]:
    """Cut a run into (start, stop) of at most `block` elements that share their high word."""
    start = 0
    while start < length:
        # Up to the next multiple of 2**32.
        same = (1 << 32) - (first + start & WORD_MASK)
        stop = min(start + block, start + same, length)
        yield start, stop
        start = stop


def cut(size: int, block: int) -> Iterator[tuple[int, int]]:
    """Cut a length into (start, stop) of at most `block` each."""
    for start in range(0, size, block):
        yield start, min(start + block, size)


def check_dtype(name: str) -> None:
    """Raise RuleTypeError for a dtype that has no random draws."""
    if name != "float64" and name not in UNIFORM_FIELDS:
        raise RuleTypeError(
            f"random draws need float16, bfloat16, float32 or float64, got {name}; cast it first"
        )
