"""Random draws that are the same on every backend: generator, normal transform, NumPy's draws.

The generator is Threefry-2x32 (Salmon et al., SC 2011). Element i of an array depends on the key
and on i alone, in the layout of jax's partitionable mode, so that uniforms equal those of
`jax.random.uniform` bit for bit, and each shard can draw its part of a whole array. Normals are
sqrt(2) erfinv(u) by one polynomial, because the frameworks' own erfinv differ widely. Backends
pass their arithmetic to `threefry_rounds` and `normal_from_uniform`.

May import the rooms up to `errors`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .draws import *


def uniform_like(key: Any, x: Any) -> np.ndarray[Any, Any]:
    return uniform(key, np.shape(x), np.asarray(x).dtype)


def normal_like(key: Any, x: Any) -> np.ndarray[Any, Any]:
    return normal(key, np.shape(x), np.asarray(x).dtype)
