"""The neutral dialect, `xg.xp`: Array API names plus network functions, over symbolic values and real arrays.

It follows the Array API: `axis`, `keepdims`; NaN propagates through min, max and clip; `std` and `var` divide
by n (`correction=0`). `gelu` is the exact one, `leaky_relu` has slope 0.01.
"""

from __future__ import annotations

from . import (
    neutral_activations,
    neutral_arrays,
    neutral_elementwise,
    neutral_ordering,
    neutral_shapes,
    neutral_special,
)
from .neutral_activations import *
from .neutral_arrays import *
from .neutral_elementwise import *
from .neutral_ordering import *
from .neutral_shapes import *
from .neutral_special import *
from .neutral_transposes import *

pi = 3.141592653589793
e = 2.718281828459045
inf = float("inf")
nan = float("nan")

__all__ = ["e", "inf", "nan", "pi"]
__all__ += neutral_activations.__all__
__all__ += neutral_arrays.__all__
__all__ += neutral_elementwise.__all__
__all__ += neutral_ordering.__all__
__all__ += neutral_shapes.__all__
__all__ += neutral_special.__all__
