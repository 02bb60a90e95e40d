"""The generator over any framework's arithmetic, and keys: two words, or a placed one."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...errors import RuleValueError

Tensor: TypeAlias = Any
Key: TypeAlias = tuple[int, int]
Words: TypeAlias = tuple[Tensor, Tensor]

# The keys that draws on arrays take one after the other, where code runs beside its graph.
REPLAYED: ContextVar[Iterator[Any] | None] = ContextVar("multigrad_replayed", default=None)

WORD_MASK = 0xFFFFFFFF
PARITY = 0x1BD11BDA
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24), (13, 15, 26, 6), (17, 29, 16, 24), (13, 15, 26, 6))


# --- parts of a whole array: a key that knows which elements its shard draws ---------------------
class PlacedKey(NamedTuple):
    """A key by which a shard draws its part of what the whole array would draw.

    Attributes:
        key: the whole array's.
        start: where the shard's first element stands among all elements, row by row.
        whole: the whole array's shape.
    """

    key: Any
    start: Any
    whole: tuple[Any, ...]


def place(key: Any, starts: Sequence[Any], whole: Sequence[Any]) -> PlacedKey:
    """Place a key: a shard starts at `starts` of an array of shape `whole`."""
    start = sum(first * stride for first, stride in zip(starts, strides(whole), strict=True))
    return PlacedKey(key, start, tuple(whole))


def strides(shape: Sequence[Any]) -> list[Any]:
    """Give how many elements lie between neighbors along each axis of an array."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def split_axes(whole: Sequence[Any], shape: Sequence[Any]) -> int:
    """Return how many leading axes cut a part into runs of neighbors in the whole array."""
    check_axes(whole, len(shape))
    partial = (axis for axis in reversed(range(len(shape))) if shape[axis] != whole[axis])
    return next(partial, 0)


def check_axes(whole: Sequence[Any], number: int) -> None:
    """Raise where a key was placed for an array of other axes."""
    if len(whole) != number:
        raise RuleValueError(
            f"a key placed for a part of an array of shape {tuple(whole)} cannot draw for one of "
            f"{number} axes: place it for what is drawn"
        )


# --- words -------------------------------------------------------------------------------------
def threefry_rounds(
    key: tuple[Tensor, Tensor],
    counters: Words,
    add: Callable[[Tensor, Tensor], Tensor],
    rotate_xor: Callable[[Tensor, int, Tensor], Tensor],
    as_word: Callable[[Tensor], Tensor],
    parity: Any = None,
) -> Words:
    """Run the 20 rounds of Threefry-2x32 on two counter words.

    Args:
        key: two words.
        counters: two words; consumed, where `add` or `rotate_xor` work in place.
        add: `x + y` modulo 2**32.
        rotate_xor: `rotate_left(x, bits) ^ y`, called as `rotate_xor(x, bits, y)`.
        as_word: reduces a sum of key words to what `add` takes.
        parity: PARITY as the words' `^` takes it, where that takes no int.
    """
    first, second = key
    schedule = (first, second, first ^ second ^ (PARITY if parity is None else parity))
    x, y = counters
    for group, rotations in enumerate(ROTATIONS):
        x = add(x, as_word(schedule[group % 3]))
        y = add(y, as_word(schedule[(group + 1) % 3] + group))
        for bits in rotations:
            x = add(x, y)
            y = rotate_xor(y, bits, x)
    return add(x, as_word(schedule[2])), add(y, as_word(schedule[0] + 5))


def fold_in(key: Any, n: int) -> Any:
    """Derive the n-th key from a key: the key data of `jax.random.fold_in`; of a placed one, in the
    same place.
    """
    n = operator.index(n)
    if not 0 <= n <= WORD_MASK:
        raise RuleValueError(f"fold_in takes a count from 0 to 2**32 - 1, got {n}")
    if isinstance(key, PlacedKey):
        return key._replace(key=fold_in(key.key, n))
    first, second = key
    return threefry_rounds((int(first), int(second)), (0, n), add_ints, rotate_xor_ints, mask_int)


def add_ints(x: int, y: int) -> int:
    return (x + y) & WORD_MASK


def rotate_xor_ints(x: int, bits: int, y: int) -> int:
    return ((x << bits | x >> (32 - bits)) & WORD_MASK) ^ y


def mask_int(word: int) -> int:
    return word & WORD_MASK


def key_from_int(n: int) -> Key:
    """Give the key data of `jax.random.key(n)`; as in jax without x64, its low 32 bits count."""
    n = operator.index(n)
    if not 0 <= n < 1 << 63:
        raise RuleValueError(
            f"a key is an int from 0 to 2**63 - 1, got {n}; write key=0, key=1, ... or two uint32"
        )
    return 0, n & WORD_MASK


def key_pair(key: Any) -> Key:
    """Turn an int, or two words in a tuple, a list or an integer array, into a pair of ints."""
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
        return key_from_int(int(key))
    words = key.tolist() if isinstance(key, np.ndarray) and key.dtype.kind in "iu" else key
    if not isinstance(words, (tuple, list)) or len(words) != 2:
        raise refuse_key(key)
    try:
        first, second = (operator.index(word) for word in words)
    except TypeError:
        raise refuse_key(key) from None
    if not (0 <= first <= WORD_MASK and 0 <= second <= WORD_MASK):
        raise RuleValueError(
            f"the two words of a key are from 0 to 2**32 - 1, got {first} and {second}"
        )
    return first, second


def refuse_key(key: Any) -> RuleValueError:
    """Make the error for something that is no key."""
    return RuleValueError(
        f"no key: {key!r}; expected an int (key=7), two uint32 (key=(0, 7)), or a key of the "
        "framework in use (key=jax.random.key(7))"
    )


def draw_key() -> Key:
    """Draw a key from NumPy's global generator: `np.random.seed` makes it repeat."""
    first, second = np.random.randint(0, 1 << 32, size=2, dtype=np.uint32).tolist()
    return first, second
