"""`xg.xp`: Array API names plus network functions, over symbolic values and real arrays.

It follows the Array API: `axis`, `keepdims`; NaN propagates through min, max and clip; `std` and
`var` divide by n (`correction=0`). `gelu` is the exact one, `leaky_relu` has slope 0.01.
"""

from __future__ import annotations

from . import arrays as xp_arrays
from . import linalg as xp_linalg
from . import ops as xp_ops
from . import shapes as xp_shapes
from . import shards as xp_shards
from . import signals as xp_signals
from .arrays import *
from .linalg import *
from .ops import *
from .shapes import *
from .shards import *
from .signals import *
from .transposes import *

pi = 3.141592653589793
e = 2.718281828459045
inf = float("inf")
nan = float("nan")

__all__ = ["e", "inf", "nan", "pi"]
__all__ += xp_arrays.__all__
__all__ += xp_linalg.__all__
__all__ += xp_ops.__all__
__all__ += xp_shapes.__all__
__all__ += xp_shards.__all__
__all__ += xp_signals.__all__
