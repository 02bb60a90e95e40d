"""Random draws on MLX: Threefry in uint32 ops, so that a key may be an array and draws are lazy.

`mlx.core.random` runs Threefry, too, but counts in another order, so its draws differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import mlx.core as mx

from multigrad.backend import RuleValueError, dtype_name, random

from .. import compile

Tensor: TypeAlias = Any
WORDS: tuple[Any, ...] = (mx.uint32, mx.int32, mx.uint64, mx.int64)


def draw_key() -> Tensor:
    """Draw a key from `mlx.core.random`'s global state, which `mx.random.seed` seeds."""
    compile.refuse_kept_draw()
    return mx.random.randint(0, 1 << 32, (2,), mx.uint64).astype(mx.uint32)


def key_pair(key: Tensor) -> Tensor:
    """Return a key of `mx.random.key`, or another array of two words, as two uint32 words."""
    if key.shape != (2,) or key.dtype not in WORDS:
        raise RuleValueError(
            f"key is {dtype_name(key.dtype)} of shape {key.shape}; expected one key: "
            "mx.random.key(0), or two uint32"
        )
    return key.astype(mx.uint32)


def fold_in(key: Tensor, n: Tensor) -> Tensor:
    """Return the n-th derived key: a pair of ints from a pair and an int, else two uint32 words."""
    if isinstance(key, random.PlacedKey):
        return key._replace(key=fold_in(key.key, n))
    if isinstance(key, tuple) and not isinstance(n, mx.array):
        return random.fold_in(key, n)
    count = mx.array(n, mx.uint32)
    return mx.stack(encrypt(key, mx.zeros_like(count), count))


def uniform_like(key: Tensor, x: Tensor) -> Tensor:
    """Return uniforms in [0, 1) of x's shape and dtype, bit-equal to those of other backends."""
    random.check_dtype(dtype_name(x.dtype))
    return draw_uniform(key, x.shape, x.dtype)


def normal_like(key: Tensor, x: Tensor) -> Tensor:
    random.check_dtype(dtype_name(x.dtype))
    double = x.dtype == mx.float64
    uniform = draw_uniform(key, x.shape, mx.float64 if double else mx.float32)
    return random.normal_from_uniform(uniform, mx, double).astype(x.dtype)


def draw_uniform(key: Tensor, shape: tuple[int, ...], dtype: Any) -> Tensor:
    if isinstance(key, random.PlacedKey):
        key, count = key.key, place_counters(key, shape)
    else:
        count = counters(math.prod(shape))
    words = encrypt(key, *count)
    x, y = (word.reshape(shape) for word in words)
    if dtype == mx.float64:
        wide = (x.astype(mx.uint64) << 20) | (y >> 12).astype(mx.uint64)
        return wide.astype(mx.float64) * 2.0**-random.WIDE_BITS
    # A float32 is drawn exactly and rounded once, to the dtype.
    dropped, kept = random.UNIFORM_FIELDS[dtype_name(dtype)]
    field = ((x ^ y) >> dropped) & ((1 << kept) - 1)
    return (field.astype(mx.float32) * 2.0**-kept).astype(dtype)


def counters(size: int) -> tuple[Tensor, Tensor]:
    if size <= random.WORD_MASK:
        low = mx.arange(size, dtype=mx.uint32)
        return mx.zeros_like(low), low
    return split(mx.arange(size, dtype=mx.uint64))


def place_counters(key: Any, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the counters of a part's elements, which are those in the whole array."""
    random.check_axes(key.whole, len(shape))
    count = mx.array(key.start, mx.uint64)
    for length, stride in zip(shape, random.strides(key.whole), strict=True):
        count = count[..., None] + mx.arange(length, dtype=mx.uint64) * mx.array(stride, mx.uint64)
    return split(mx.flatten(count))


def split(count: Tensor) -> tuple[Tensor, Tensor]:
    return (count >> 32).astype(mx.uint32), count.astype(mx.uint32)


def encrypt(key: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    words = (as_word(key[0]), as_word(key[1]))
    return random.threefry_rounds(words, (x, y), add, rotate_xor, as_word)


def as_word(word: Any) -> Tensor:
    return word.astype(mx.uint32) if isinstance(word, mx.array) else mx.array(word, mx.uint32)


def add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def rotate_xor(x: Tensor, bits: int, y: Tensor) -> Tensor:
    return ((x << bits) | (x >> (32 - bits))) ^ y


@dataclass(frozen=True, slots=True, eq=False)
class KeyState:
    """The key from which the next draw is made; each draw replaces it by another array."""

    key: Tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyState) and other.key is self.key

    __hash__ = None  # type: ignore[assignment]


class GlobalGenerator:
    """The global generator of mlx.core.random, whose state may be an array of a trace."""

    def get_state(self) -> KeyState:
        return KeyState(mx.random.state[0])

    def set_state(self, state: KeyState) -> None:
        """Restore a state that has values; the state of a trace stays."""
        if mx.random.state[0] is not state.key and not compile.is_traced(state.key):
            # `mx.random.seed` makes the key of a seed out of its two words.
            high, low = state.key.tolist()
            mx.random.seed(high << 32 | low)


GENERATOR = GlobalGenerator()
