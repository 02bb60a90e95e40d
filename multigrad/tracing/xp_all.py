"""The dialect of multigrad itself, `xg.xp`: Array API names plus network functions, over symbolic
values and real arrays.

It follows the Array API: `axis`, `keepdims`; NaN propagates through min, max and clip; `std` and
`var` divide by n (`correction=0`). `gelu` is the exact one, `leaky_relu` has slope 0.01.
"""

from __future__ import annotations

from . import (
    xp_arrays,
    xp_elementwise,
    xp_indices,
    xp_linalg,
    xp_ops,
    xp_shapes,
    xp_shards,
    xp_windows,
)
from .xp_arrays import *
from .xp_elementwise import *
from .xp_indices import *
from .xp_linalg import *
from .xp_ops import *
from .xp_shapes import *
from .xp_shards import *
from .xp_transposes import *
from .xp_windows import *

pi = 3.141592653589793
e = 2.718281828459045
inf = float("inf")
nan = float("nan")

__all__ = ["e", "inf", "nan", "pi"]
__all__ += xp_arrays.__all__
__all__ += xp_elementwise.__all__
__all__ += xp_indices.__all__
__all__ += xp_linalg.__all__
__all__ += xp_ops.__all__
__all__ += xp_shapes.__all__
__all__ += xp_shards.__all__
__all__ += xp_windows.__all__
