"""Random draws that are the same on every backend: generator, normal transform, NumPy's draws.

The generator is Threefry-2x32 (Salmon et al., SC 2011). Element i of an array depends on the key
and on i alone, in the layout of jax's partitionable mode, so that uniforms equal those of
`jax.random.uniform` bit for bit, and each shard can draw its part of a whole array. Normals are
sqrt(2) erfinv(u) by one polynomial, because the frameworks' own erfinv differ widely. Backends
bring their arithmetic to `threefry_rounds` and `normal_from_uniform`.

May import the rooms up to `errors`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from . import draws, native
from .draws import (
    BLOCK,
    UNIFORM_FIELDS,
    WIDE_BITS,
    blocks,
    blocks_of_run,
    check_dtype,
    fill_uniform,
    threefry2x32,
)
from .keys import (
    PARITY,
    REPLAYED,
    ROTATIONS,
    WORD_MASK,
    PlacedKey,
    check_axes,
    draw_key,
    erfinv,
    fold_in,
    key_from_int,
    key_pair,
    normal_from_uniform,
    place,
    split_axes,
    strides,
    threefry_rounds,
)
from .native import Kernels, Layout, find_kernels, lay_out

__all__ = [
    "BLOCK",
    "PARITY",
    "REPLAYED",
    "ROTATIONS",
    "UNIFORM_FIELDS",
    "WIDE_BITS",
    "WORD_MASK",
    "Kernels",
    "Layout",
    "PlacedKey",
    "blocks",
    "blocks_of_run",
    "check_axes",
    "check_dtype",
    "draw_key",
    "erfinv",
    "fill_uniform",
    "find_kernels",
    "fold_in",
    "key_from_int",
    "key_pair",
    "lay_out",
    "normal",
    "normal_from_uniform",
    "normal_like",
    "place",
    "split_axes",
    "strides",
    "threefry2x32",
    "threefry_rounds",
    "uniform",
    "uniform_like",
]

Array: TypeAlias = np.ndarray[Any, Any]


# NumPy's draws by compiled code or by plain code, whichever is there: the same bits.
def uniform(key: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    """Draw uniforms in [0, 1), as `draws.uniform` does."""
    return _draw(draws.uniform, native.uniform, key, shape, dtype)


def normal(key: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    """Draw standard normals, as `draws.normal` does."""
    return _draw(draws.normal, native.normal, key, shape, dtype)


def _draw(
    plain: Callable[..., Array],
    compiled: Callable[..., Array],
    key: Any,
    shape: tuple[int, ...],
    dtype: Any,
) -> Array:
    dtype = np.dtype(dtype)
    check_dtype(native.name_of(dtype))
    kernels = find_kernels(math.prod(shape))
    return plain(key, shape, dtype) if kernels is None else compiled(kernels, key, shape, dtype)


def uniform_like(key: Any, x: Array) -> Array:
    return uniform(key, np.shape(x), x.dtype)


def normal_like(key: Any, x: Array) -> Array:
    return normal(key, np.shape(x), x.dtype)
