"""NumPy's draws by compiled code or by plain code, whichever is there: the same bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from . import draws, native

Array: TypeAlias = np.ndarray[Any, Any]


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
    draws.check_dtype(native.name_of(dtype))
    kernels = native.find_kernels(math.prod(shape))
    return plain(key, shape, dtype) if kernels is None else compiled(kernels, key, shape, dtype)


def uniform_like(key: Any, x: Array) -> Array:
    """Draw uniforms in [0, 1) of x's shape and dtype."""
    return uniform(key, np.shape(x), x.dtype)


def normal_like(key: Any, x: Array) -> Array:
    """Draw standard normals of x's shape and dtype."""
    return normal(key, np.shape(x), x.dtype)
