"""Random draws that are the same on every backend: generator, normal transform, NumPy's draws.

The generator is Threefry-2x32 (Salmon et al., SC 2011). Element i of an array depends on the key
and on i alone, in the layout of jax's partitionable mode, so that uniforms equal those of
`jax.random.uniform` bit for bit, and each shard can draw its part of a whole array. Normals are
sqrt(2) erfinv(u) by one polynomial, because the frameworks' own erfinv differ widely. Backends
pass their arithmetic to `threefry_rounds` and `normal_from_uniform`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..core.ops.numerics import evaluate_polynomial
from ..errors import RuleTypeError, RuleValueError

Tensor: TypeAlias = Any
Key: TypeAlias = tuple[int, int]
Words: TypeAlias = tuple[Tensor, Tensor]

# Keys for the draws on arrays, in order, while code runs to be compared with its graph: set by
# `functions/proof`, read by `trace/random_keys.py` and `trace/xp/arrays.py`.
REPLAYED: ContextVar[Iterator[Any] | None] = ContextVar("multigrad_replayed", default=None)

WORD_MASK = 0xFFFFFFFF
PARITY = 0x1BD11BDA
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24), (13, 15, 26, 6), (17, 29, 16, 24), (13, 15, 26, 6))


# --- parts of a whole array: a key that knows which elements its shard draws ---------------------
class PlacedKey(NamedTuple):
    """A key by which a shard draws its part of what the whole array would draw.

    Attributes:
        key: the whole array's.
        start: the number of the shard's first element among all, row by row.
        whole: the whole array's shape.
    """

    key: Any
    start: Any
    whole: tuple[Any, ...]


def words_of(key: Any) -> Any:
    """Return a key without its place in a whole array."""
    return key.key if isinstance(key, PlacedKey) else key


def with_words(key: Any, words: Any) -> Any:
    """Return words as the key of the same place, if a key has one."""
    return PlacedKey(words, key.start, key.whole) if isinstance(key, PlacedKey) else words


def place(key: Any, starts: Sequence[Any], whole: Sequence[Any]) -> PlacedKey:
    """Return the key of a shard that starts at `starts` in an array of shape `whole`."""
    start = sum(first * stride for first, stride in zip(starts, strides(whole), strict=True))
    return PlacedKey(key, start, tuple(whole))


def strides(shape: Sequence[Any]) -> list[Any]:
    """Return the number of elements from one neighbor to the next along each axis."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def split_axes(whole: Sequence[Any], shape: Sequence[Any]) -> int:
    """Return the last axis along which the part is shorter than the whole, 0 if none is.

    Elements from that axis on are contiguous in the whole array.
    """
    check_axes(whole, len(shape))
    shorter_axes = (axis for axis in reversed(range(len(shape))) if shape[axis] != whole[axis])
    return next(shorter_axes, 0)


def check_axes(whole: Sequence[Any], number: int) -> None:
    """Raise RuleValueError if a key was placed for an array with other axes."""
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
    as_word: Callable[[Tensor], Tensor] = lambda word: word,
) -> Words:
    """Run the 20 rounds of Threefry-2x32 on two counter words.

    Args:
        key: two words.
        counters: two words; consumed, where `add` or `rotate_xor` work in place.
        add: `x + y` modulo 2**32.
        rotate_xor: `rotate_left(x, bits) ^ y`, called as `rotate_xor(x, bits, y)`.
        as_word: reduces a sum of key words to what `add` takes, where that is less.
    """
    first, second = key
    schedule = (first, second, first ^ second ^ PARITY)
    x, y = counters
    # Key words are added before each four rounds; the third of them is a parity word.
    for group, rotations in enumerate(ROTATIONS):
        x = add(x, as_word(schedule[group % 3]))
        y = add(y, as_word(schedule[(group + 1) % 3] + group))
        for bits in rotations:
            x = add(x, y)
            y = rotate_xor(y, bits, x)
    return add(x, as_word(schedule[2])), add(y, as_word(schedule[0] + 5))


def fold_in(key: Any, n: int) -> Any:
    """Derive the n-th key from a key, as `jax.random.fold_in`; a placed key stays placed."""
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
    """Return the key data of `jax.random.key(n)`, for ints of which jax too takes every bit."""
    n = operator.index(n)
    if not 0 <= n <= WORD_MASK:
        advice = f"; write two uint32, key=({n >> 32}, {n & WORD_MASK})" if 0 < n < 1 << 64 else ""
        raise RuleValueError(f"a key is an int from 0 to 2**32 - 1, got {n}{advice}")
    return 0, n


def key_pair(key: Any) -> Key:
    """Return two ints, from an int or from two words in a tuple, a list or an integer array."""
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
    return RuleValueError(
        f"no key: {key!r}; expected an int (key=7), two uint32 (key=(0, 7)), or a key of the "
        "framework in use (key=jax.random.key(7))"
    )


def draw_key() -> Key:
    """Draw a key from NumPy's global generator: `np.random.seed` makes it repeat."""
    first, second = np.random.randint(0, 1 << 32, size=2, dtype=np.uint32).tolist()
    return first, second


# M. Giles, "Approximating the erfinv function", GPU Computing Gems (Jade), 2011. With
# w = -log(1 - x*x), a row is (from this w on, center, coefficients): the first is a polynomial in
# w, the others in sqrt(w).
# fmt: off
ERFINV_FLOAT32 = (
    (0.0, 2.5, (
        2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
        -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
    )),
    (5.0, 3.0, (
        -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
        -0.0076224613, 0.00943887047, 1.00167406, 2.83297682,
    )),
)
ERFINV_FLOAT64 = (
    (0.0, 3.125, (
        -3.6444120640178196996e-21, -1.685059138182016589e-19, 1.2858480715256400167e-18,
        1.115787767802518096e-17, -1.333171662854620906e-16, 2.0972767875968561637e-17,
        6.6376381343583238325e-15, -4.0545662729752068639e-14, -8.1519341976054721522e-14,
        2.6335093153082322977e-12, -1.2975133253453532498e-11, -5.4154120542946279317e-11,
        1.051212273321532285e-09, -4.1126339803469836976e-09, -2.9070369957882005086e-08,
        4.2347877827932403518e-07, -1.3654692000834678645e-06, -1.3882523362786468719e-05,
        0.0001867342080340571352, -0.00074070253416626697512, -0.0060336708714301490533,
        0.24015818242558961693, 1.6536545626831027356,
    )),
    (6.25, 3.25, (
        2.2137376921775787049e-09, 9.0756561938885390979e-08, -2.7517406297064545428e-07,
        1.8239629214389227755e-08, 1.5027403968909827627e-06, -4.013867526981545969e-06,
        2.9234449089955446044e-06, 1.2475304481671778723e-05, -4.7318229009055733981e-05,
        6.8284851459573175448e-05, 2.4031110387097893999e-05, -0.0003550375203628474796,
        0.00095328937973738049703, -0.0016882755560235047313, 0.0024914420961078508066,
        -0.0037512085075692412107, 0.005370914553590063617, 1.0052589676941592334,
        3.0838856104922207635,
    )),
    (16.0, 5.0, (
        -2.7109920616438573243e-11, -2.5556418169965252055e-10, 1.5076572693500548083e-09,
        -3.7894654401267369937e-09, 7.6157012080783393804e-09, -1.4960026627149240478e-08,
        2.9147953450901080826e-08, -6.7711997758452339498e-08, 2.2900482228026654717e-07,
        -9.9298272942317002539e-07, 4.5260625972231537039e-06, -1.9681778105531670567e-05,
        7.5995277030017761139e-05, -0.00021503011930044477347, -0.00013871931833623122026,
        1.0103004648645343977, 4.8499064014085844221,
    )),
)
# fmt: on


def normal_from_uniform(uniform: Tensor, namespace: Any, double: bool) -> Tensor:
    """Turn uniforms in [0, 1) into standard normals, as `jax.random.normal` does in float32.

    Args:
        uniform: float32, or float64 with `double`; consumed, where its `+=` works in place.
        namespace: an array library's `log`, `log1p`, `sqrt` and `where`.
        double: whether to compute in float64.
    """
    # 2u - 1 moved inward by half a step: symmetric about zero, and never -1.
    uniform += uniform
    uniform += -1.0 + 2.0 ** (-53 if double else -24)
    normal = erfinv(uniform, namespace, double)
    normal *= 2.0**0.5
    return normal


def erfinv(x: Tensor, namespace: Any, double: bool) -> Tensor:
    """Evaluate the inverse error function for -1 < x < 1; at the ends it is wrong, not infinite."""
    # float32 does as jax.random.normal does. float64 does not: XLA's log1p (jax 0.10, CPU) is off
    # by 128 ulp at x = 0.64, and rounding x * x costs the tails thousands.
    w = -(namespace.log((1.0 - x) * (1.0 + x)) if double else namespace.log1p(-(x * x)))
    root = namespace.sqrt(w)
    (_, center, coefficients), *tails = ERFINV_FLOAT64 if double else ERFINV_FLOAT32
    ratio = evaluate_polynomial(coefficients, w - center)
    for start, center, coefficients in tails:
        tail = evaluate_polynomial(coefficients, root - center)
        ratio = namespace.where(w < start, ratio, tail)
    ratio *= x
    return ratio


# --- NumPy's draws, block by block ---------------------------------------------------------------
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
    """Run the rounds, in place on y; x is consumed, or one for all.

    `space` are two arrays of y's shape: the first holds x if it was one for all, the second is
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
    work_dtype = "float64" if double else "float32"
    draw = np.empty(shape, dtype)
    flat = draw.reshape(-1)
    uniforms = np.empty(min(flat.size, BLOCK), work_dtype)
    space = make_space(flat.size)
    words, blocks = lay_out(key, draw.shape)
    for start, stop, counter in blocks:
        block = uniforms[: stop - start]
        fill_block(block, words, counter, work_dtype, space[:, : stop - start])
        flat[start:stop] = normal_from_uniform(block, np, double)
    return draw


def uniform_like(key: Any, x: Any) -> np.ndarray[Any, Any]:
    return uniform(key, np.shape(x), np.asarray(x).dtype)


def normal_like(key: Any, x: Any) -> np.ndarray[Any, Any]:
    return normal(key, np.shape(x), np.asarray(x).dtype)


def make_space(size: int) -> Array:
    """Return memory that all blocks of one draw share; its rows: high word, low word, scratch."""
    # If each block had its own, the system would give and take it back, for a third of the time.
    return np.empty((3, min(size, BLOCK)), np.uint32)


def fill_uniform(draw: Array, key: Any, dtype: str) -> None:
    """Fill a contiguous array with the uniforms of `dtype`, which may be narrower than its own."""
    flat = draw.reshape(-1)
    space = make_space(flat.size)
    words, blocks = lay_out(key, draw.shape)
    for start, stop, counter in blocks:
        fill_block(flat[start:stop], words, counter, dtype, space[:, : stop - start])


def fill_block(draw: Array, key: Key, counter: int | Array, dtype: str, space: Array) -> None:
    """Fill one block, given its first counter or all its counters."""
    x, y = random_words(key, counter, space)
    if dtype == "float64":
        # 52 bits: the first word and the upper 20 of the second.
        bits = x.astype(np.uint64)
        bits <<= 20
        bits |= y >> 12
        np.multiply(bits.astype(np.float64), 2.0**-WIDE_BITS, draw)
        return
    shift, width = UNIFORM_FIELDS[dtype]
    # As in jax, narrower draws take the bits of both words' xor.
    np.bitwise_xor(x, y, x)
    np.right_shift(x, SHIFTS[shift], x)
    if shift + width < 32:
        np.bitwise_and(x, as_uint32((1 << width) - 1), x)
    # Through int32, whose conversion to float32 is vectorized on every processor; exact in float32,
    # and in the 16-bit dtype it is meant for.
    scale = np.float32(2.0**-width)
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
        offsets = np.arange(length, dtype=np.uint64)
        for start, stop in cut(len(firsts), runs_per_block):
            counters = firsts[start:stop, None] + offsets
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
        until_wrap = (1 << 32) - (first + start & WORD_MASK)
        stop = min(start + block, start + until_wrap, length)
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
