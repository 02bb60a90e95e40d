"""Random draws on Paddle: Threefry in int64, masked to 32 bits; eagerly on a CPU NumPy draws."""

from __future__ import annotations

from typing import Any

import paddle

from multigrad.backend import RuleValueError, UnsupportedOp, dtype_name
from multigrad.backend import random as core

from ..attach.bridge import from_numpy, to_numpy
from .special import Arithmetic
from .widening import FLOAT32, FLOAT64, INT64, Tensor, is_tensor, rounded


def draw_key() -> Any:
    """Draw a key from Paddle's global generator: `paddle.seed` makes it repeat."""
    words = paddle.randint(0, 1 << 16, [4], dtype=INT64)
    if paddle.in_dynamic_mode():
        a, b, c, d = words.tolist()
        return a << 16 | b, c << 16 | d
    return paddle.stack([words[0] * 65536 + words[1], words[2] * 65536 + words[3]])


def key_pair(key: Tensor) -> Any:
    """Turn an integer tensor of two words into two int64 words from 0 to 2**32 - 1."""
    if name_of(key) not in ("int32", "int64") or list(key.shape) != [2]:
        raise RuleValueError(
            f"key is {name_of(key)} of shape {tuple(key.shape)}; expected an integer tensor of two "
            "words: paddle.to_tensor([0, 7])"
        )
    words = key.astype(INT64) & paddle.full([], core.WORD_MASK, INT64)
    return tuple(words.tolist()) if isinstance(words, paddle.Tensor) else words


def fold_in(key: Any, n: Any) -> Any:
    """Derive the n-th key."""
    if isinstance(key, core.PlacedKey):
        return key._replace(key=fold_in(key.key, n))
    if isinstance(key, tuple) and not is_tensor(n):
        return core.fold_in(key, n)
    count = n.astype(INT64) if is_tensor(n) else paddle.full([], n, INT64)
    folded = encrypt(words_of(key), paddle.zeros_like(count), count)
    return paddle.reshape(paddle.stack(folded), [2])  # `//` makes one axis of none (3.3)


def uniform_like(key: Any, x: Tensor) -> Tensor:
    """Draw uniforms in [0, 1) of x's shape and dtype, bit-equal to the other backends'."""
    return draw(core.uniform, draw_uniform, key, x)


def normal_like(key: Any, x: Tensor) -> Tensor:
    """Draw standard normals of x's shape and dtype."""
    return draw(core.normal, draw_normal, key, x)


def draw(by_numpy: Any, by_paddle: Any, key: Any, x: Tensor) -> Tensor:
    core.check_dtype(name_of(x))
    if isinstance(x, paddle.Tensor) and x.place.is_cpu_place():
        array = by_numpy(concrete(key), tuple(x.shape), core_dtype(x))
        return from_numpy(array)
    if isinstance(key, core.PlacedKey):
        raise UnsupportedOp("draws of a part of a whole array, off the CPU, on Paddle")
    count = paddle.arange(x.size if isinstance(x, paddle.Tensor) else paddle.numel(x), dtype=INT64)
    return paddle.reshape(by_paddle(words_of(key), count, x), x.shape)


def name_of(x: Tensor) -> str:
    return dtype_name(x.dtype)


def core_dtype(x: Tensor) -> Any:
    return to_numpy(paddle.zeros([1], x.dtype)).dtype


def concrete(key: Any) -> Any:
    if isinstance(key, core.PlacedKey):
        return key._replace(key=concrete(key.key))
    return tuple(int(w) for w in (key.tolist() if is_tensor(key) else key))


def words_of(key: Any) -> tuple[Any, Any]:
    if is_tensor(key):
        return key[0], key[1]
    return tuple(paddle.full([], word, INT64) for word in key)


def draw_uniform(words: Any, count: Tensor, x: Tensor, dtype: str = "") -> Tensor:
    """Draw the uniforms at flat counters."""
    name = dtype or name_of(x)
    mask = paddle.full([], core.WORD_MASK, INT64)
    first, second = encrypt(words, count // 2**32, count & mask)
    if name == "float64":
        wide = first * (1 << 20) + second // 4096
        return wide.astype(FLOAT64) * 2.0**-core.WIDE_BITS
    dropped, kept = core.UNIFORM_FIELDS[name]
    field = ((first ^ second) // 2**dropped) & paddle.full([], (1 << kept) - 1, INT64)
    # A fraction of so few bits is exact in float32, and in the 16-bit dtype it is meant for.
    return (field.astype(FLOAT32) * 2.0**-kept).astype(name)


def draw_normal(words: Any, count: Tensor, x: Tensor) -> Tensor:
    double = name_of(x) == "float64"
    uniform = draw_uniform(words, count, x, "float64" if double else "float32")
    return rounded(core.normal_from_uniform(uniform, Arithmetic, double), x.dtype)


def encrypt(words: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Run the Threefry rounds on words in int64."""
    mask, parity = (paddle.full([], n, INT64) for n in (core.WORD_MASK, core.PARITY))

    def add(x: Tensor, y: Tensor) -> Tensor:
        return (x + y) & mask

    def rotate_xor(x: Tensor, bits: int, y: Tensor) -> Tensor:
        return (((x * 2**bits) & mask) | (x // 2 ** (32 - bits))) ^ y

    def as_word(word: Tensor) -> Tensor:
        return word & mask

    return core.threefry_rounds(words, (x, y), add, rotate_xor, as_word, parity=parity)
