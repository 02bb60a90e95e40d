"""NumPy's draws by compiled code or by plain code, whichever is there: the same bits."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from . import draws, native

Array: TypeAlias = np.ndarray[Any, Any]


def uniform(key: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    """Draw uniforms in [0, 1), as `draws.uniform` does."""
    dtype = np.dtype(dtype)
    draws.check_dtype(native.name_of(dtype))
    kernels = native.find_kernels(math.prod(shape))
    if kernels is None:
        return draws.uniform(key, shape, dtype)
    return native.uniform(kernels, key, shape, dtype)


def normal(key: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    """Draw standard normals, as `draws.normal` does."""
    dtype = np.dtype(dtype)
    draws.check_dtype(native.name_of(dtype))
    kernels = native.find_kernels(math.prod(shape))
    if kernels is None:
        return draws.normal(key, shape, dtype)
    return native.normal(kernels, key, shape, dtype)


def uniform_like(key: Any, x: Array) -> Array:
    """Draw uniforms in [0, 1) of x's shape and dtype."""
    return uniform(key, np.shape(x), x.dtype)


def normal_like(key: Any, x: Array) -> Array:
    """Draw standard normals of x's shape and dtype."""
    return normal(key, np.shape(x), x.dtype)
