"""Random draws that are the same on every backend: generator, normal transform, NumPy's draws.

The generator is Threefry-2x32 (Salmon et al., SC 2011). Element i of an array depends on the key
and on i alone, in the layout of jax's partitionable mode, so that uniforms equal those of
`jax.random.uniform` bit for bit. Normals are sqrt(2) erfinv(u) by one polynomial, because the
frameworks' own erfinv differ widely. Backends bring their arithmetic to `threefry_rounds` and
`normal_from_uniform`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeAlias

import numpy as np

from multigrad.errors import RuleTypeError, RuleValueError

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]
Key: TypeAlias = tuple[int, int]
Words: TypeAlias = tuple[Tensor, Tensor]

# The keys that draws on arrays take one after the other, where code runs beside its graph.
REPLAYED: ContextVar[Iterator[Any] | None] = ContextVar("multigrad_replayed", default=None)

WORD_MASK = 0xFFFFFFFF
PARITY = 0x1BD11BDA
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24), (13, 15, 26, 6), (17, 29, 16, 24), (13, 15, 26, 6))

# dtype: (bits dropped at the low end of the word, bits kept), as jax.random.uniform takes them.
UNIFORM_FIELDS = {"float16": (6, 10), "bfloat16": (1, 7), "float32": (9, 23)}
WIDE_BITS = 52

# Elements per pass: three buffers of this many words stay in a second-level cache (6.5 ms per 1e6,
# 12 ms unblocked). A power of two, so that within a block the high counter word is constant.
BLOCK = 1 << 16

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


# The generator, over any arithmetic.


def threefry_rounds(
    key: tuple[Tensor, Tensor],
    counters: Words,
    add: Callable[[Tensor, Tensor], Tensor],
    rotate_xor: Callable[[Tensor, int, Tensor], Tensor],
    as_word: Callable[[Tensor], Tensor],
) -> Words:
    """Run the 20 rounds of Threefry-2x32 on two counter words.

    Args:
        key: two words.
        counters: two words; consumed, where `add` or `rotate_xor` work in place.
        add: `x + y` modulo 2**32.
        rotate_xor: `rotate_left(x, bits) ^ y`, called as `rotate_xor(x, bits, y)`.
        as_word: reduces a sum of key words to what `add` takes.
    """
    first, second = key
    schedule = (first, second, first ^ second ^ PARITY)
    x, y = counters
    for group, rotations in enumerate(ROTATIONS):
        x = add(x, as_word(schedule[group % 3]))
        y = add(y, as_word(schedule[(group + 1) % 3] + group))
        for bits in rotations:
            x = add(x, y)
            y = rotate_xor(y, bits, x)
    return add(x, as_word(schedule[2])), add(y, as_word(schedule[0] + 5))


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


def evaluate_polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """Evaluate by Horner's scheme, highest power first."""
    first, second, *rest = coefficients
    total = x * first
    total += second
    for coefficient in rest:
        total *= x
        total += coefficient
    return total


# Keys.


def fold_in(key: Key, n: int) -> Key:
    """Derive the n-th key from a key: the key data of `jax.random.fold_in`."""
    n = operator.index(n)
    if not 0 <= n <= WORD_MASK:
        raise RuleValueError(f"fold_in takes a count from 0 to 2**32 - 1, got {n}")
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


# NumPy's draws.


def as_uint32(word: int) -> Array:
    return np.array(word & WORD_MASK, np.uint32)


# A call with an array of no dimensions takes 0.2 us, with a number 0.5 us; a block makes 110 calls.
SHIFTS = tuple(as_uint32(bits) for bits in range(32))
COUNTERS = np.arange(BLOCK, dtype=np.uint32)


def threefry2x32(key: Key, counters: tuple[Array, Array]) -> tuple[Array, Array]:
    """Encrypt two uint32 arrays of one shape with two key words: 64 random bits per element."""
    x, y = (np.array(counter, np.uint32, ndmin=1) for counter in counters)
    words = encrypt(key, x, y, np.empty((2, *x.shape), np.uint32))
    shape = np.shape(counters[0])
    return words[0].reshape(shape), words[1].reshape(shape)


def encrypt(key: Key, x: Array, y: Array, space: Array) -> tuple[Array, Array]:
    """Run the rounds, in place on y.

    Args:
        key: two words.
        x: uint32 of y's shape, which is consumed, or one for all.
        y: uint32.
        space: two arrays of y's shape: what one x for all becomes, and one to work in.
    """
    high, scratch = space

    def add(x: Array, y: Array) -> Array:
        if x.ndim:
            return np.add(x, y, x)
        return np.add(x, y, high) if y.ndim else np.asarray(x + y)

    def rotate_xor(x: Array, bits: int, y: Array) -> Array:
        np.left_shift(x, SHIFTS[bits], scratch)
        np.right_shift(x, SHIFTS[32 - bits], x)
        np.bitwise_or(x, scratch, x)
        return np.bitwise_xor(x, y, x)

    first, second = key
    return threefry_rounds((int(first), int(second)), (x, y), add, rotate_xor, as_uint32)


def random_words(key: Key, start: int, space: Array) -> tuple[Array, Array]:
    """Give both words of the elements from `start` on, not across a multiple of 2**32: as many as
    the three rows of `space` have, whose first two they become.
    """
    low = space[1]
    np.add(COUNTERS[: low.size], as_uint32(start), low)
    return encrypt(key, as_uint32(start >> 32), low, space[::2])


def uniform(key: Key, shape: tuple[int, ...], dtype: Any) -> Array:
    """Draw uniforms in [0, 1): `jax.random.uniform(key, shape, dtype)` bit for bit."""
    dtype = np.dtype(dtype)
    check_dtype(dtype.name)
    draw = np.empty(shape, dtype)
    fill_uniform(draw.reshape(-1), key, dtype.name)
    return draw


def normal(key: Key, shape: tuple[int, ...], dtype: Any) -> Array:
    """Draw standard normals; float16 and bfloat16 are the rounded float32 draw."""
    dtype = np.dtype(dtype)
    check_dtype(dtype.name)
    double = dtype.name == "float64"
    wide = "float64" if double else "float32"
    draw = np.empty(shape, dtype)
    flat = draw.reshape(-1)
    uniforms = np.empty(min(flat.size, BLOCK), wide)
    space = make_space(flat.size)
    for start, stop in blocks(flat.size, BLOCK):
        block = uniforms[: stop - start]
        fill_block(block, key, start, wide, space[:, : stop - start])
        flat[start:stop] = normal_from_uniform(block, np, double)
    return draw


def make_space(size: int) -> Array:
    """Make what the blocks of one draw share: were each given memory of its own, the system would
    give and take it back block by block, for a third of the time.
    """
    return np.empty((3, min(size, BLOCK)), np.uint32)


def fill_uniform(draw: Array, key: Key, dtype: str) -> None:
    """Fill an array of one dimension with the uniforms of a dtype; its own may be a wider one."""
    space = make_space(draw.size)
    for start, stop in blocks(draw.size, BLOCK):
        fill_block(draw[start:stop], key, start, dtype, space[:, : stop - start])


def fill_block(draw: Array, key: Key, start: int, dtype: str, space: Array) -> None:
    """Fill one block, which begins with element `start`."""
    x, y = random_words(key, start, space)
    if dtype == "float64":
        wide = x.astype(np.uint64)
        wide <<= 20
        wide |= y >> 12
        np.multiply(wide.astype(np.float64), 2.0**-WIDE_BITS, draw)
        return
    dropped, kept = UNIFORM_FIELDS[dtype]
    np.bitwise_xor(x, y, x)
    np.right_shift(x, SHIFTS[dropped], x)
    if dropped + kept < 32:
        np.bitwise_and(x, as_uint32((1 << kept) - 1), x)
    # Through int32, whose conversion to float32 is vectorized on every processor; exact in float32,
    # and in the 16-bit dtype it is meant for.
    scale = np.float32(2.0**-kept)
    np.multiply(x.view(np.int32), scale, draw, dtype=np.float32, casting="unsafe")


def uniform_like(key: Key, x: Array) -> Array:
    """Draw uniforms in [0, 1) of x's shape and dtype."""
    return uniform(key, np.shape(x), x.dtype)


def normal_like(key: Key, x: Array) -> Array:
    """Draw standard normals of x's shape and dtype."""
    return normal(key, np.shape(x), x.dtype)


def blocks(size: int, block: int) -> Iterator[tuple[int, int]]:
    """Cut range(size) into (start, stop) of at most `block` elements."""
    for start in range(0, size, block):
        yield start, min(start + block, size)


def check_dtype(name: str) -> None:
    """Raise for a dtype that has no random draws."""
    if name != "float64" and name not in UNIFORM_FIELDS:
        raise RuleTypeError(
            f"random draws need float16, bfloat16, float32 or float64, got {name}; cast it first"
        )
