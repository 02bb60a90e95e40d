"""Random draws that are the same on every backend: generator, normal transform, NumPy's draws.

The generator is Threefry-2x32 (Salmon et al., SC 2011). Element i of an array depends on the key
and on i alone, in the layout of jax's partitionable mode, so that uniforms equal those of
`jax.random.uniform` bit for bit, and each shard can draw its part of a whole array. Normals are
sqrt(2) erfinv(u) by one polynomial, because the frameworks' own erfinv differ widely. Backends
pass their arithmetic to `threefry_rounds` and `normal_from_uniform`.

May import the rooms up to `errors`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from . import draws, native
from .draws import BLOCK as BLOCK
from .draws import PARITY as PARITY
from .draws import REPLAYED as REPLAYED
from .draws import ROTATIONS as ROTATIONS
from .draws import UNIFORM_FIELDS as UNIFORM_FIELDS
from .draws import WIDE_BITS as WIDE_BITS
from .draws import WORD_MASK as WORD_MASK
from .draws import PlacedKey as PlacedKey
from .draws import check_axes as check_axes
from .draws import check_dtype as check_dtype
from .draws import cut as cut
from .draws import cut_run as cut_run
from .draws import draw_key as draw_key
from .draws import erfinv as erfinv
from .draws import fill_uniform as fill_uniform
from .draws import fold_in as fold_in
from .draws import key_from_int as key_from_int
from .draws import key_pair as key_pair
from .draws import normal_from_uniform as normal_from_uniform
from .draws import place as place
from .draws import split_axes as split_axes
from .draws import strides as strides
from .draws import threefry2x32 as threefry2x32
from .draws import threefry_rounds as threefry_rounds
from .native import DrawKernels as DrawKernels
from .native import DrawLayout as DrawLayout
from .native import find_kernels as find_kernels
from .native import lay_out as lay_out

Array: TypeAlias = np.ndarray[Any, Any]


# Compiled code where a library is ready, else plain code: both give the same bits.
def uniform(key: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    return _draw(draws.uniform, native.uniform, key, shape, dtype)


def normal(key: Any, shape: tuple[int, ...], dtype: Any) -> Array:
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
