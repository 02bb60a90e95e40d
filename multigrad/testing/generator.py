"""The generator of random numbers once more, in Python integers."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def threefry(key: tuple[int, int], x: int, y: int) -> tuple[int, int]:
    """Threefry-2x32, 20 rounds (Salmon et al., 2011): a rotation after each, a key injection after
    four.
    """
    mask = 0xFFFFFFFF
    words = (*key, 0x1BD11BDA ^ key[0] ^ key[1])
    x, y = (x + words[0]) & mask, (y + words[1]) & mask
    for i in range(20):
        bits = ((13, 15, 26, 6), (17, 29, 16, 24))[i // 4 % 2][i % 4]
        x = (x + y) & mask
        y = ((y << bits | y >> (32 - bits)) & mask) ^ x
        if i % 4 == 3:
            n = i // 4 + 1
            x, y = (x + words[n % 3]) & mask, (y + words[(n + 1) % 3] + n) & mask
    return x, y


def fold_in(key: tuple[int, int], n: int) -> tuple[int, int]:
    return threefry(key, 0, n)


def uniform(key: tuple[int, int], size: int, dtype: Any) -> Array:
    """Uniforms in [0, 1) as jax.random.uniform draws them: mantissa bits below a leading one."""
    words = [threefry(key, 0, i) for i in range(size)]
    if dtype == np.float64:
        return np.array([(x << 32 | y) >> 12 for x, y in words], np.float64) * 2.0**-52
    # 32-bit words; float16 takes the low 16 bits of one, bfloat16 the low 8, and drops the lowest
    # of them.
    low, kept = {"float32": (32, 23), "float16": (16, 10), "bfloat16": (8, 7)}[np.dtype(dtype).name]
    bits = [((x ^ y) & ((1 << low) - 1)) >> (low - kept) for x, y in words]
    return (np.array(bits, np.float64) * 2.0**-kept).astype(dtype)
