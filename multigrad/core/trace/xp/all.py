"""`xg.xp`: Array API names plus network functions, over symbolic values and real arrays.

It follows the Array API: `axis`, `keepdims`; NaN propagates through min, max and clip; `std` and
`var` divide by n (`correction=0`). `gelu` is the exact one, `leaky_relu` has slope 0.01.

What rules of the library need is in `ops.py` and `arrays.py`. The other modules are loaded
when a name is asked for that these lack.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...ops import CORE_OPS
from ...support.lazy_modules import NEEDS_ENGINE, provided
from . import arrays as xp_arrays
from . import ops as xp_ops
from .arrays import *

if TYPE_CHECKING:
    from ....engine.trace.xp.draws import *
    from ....engine.trace.xp.elements import *
    from ....engine.trace.xp.linalg import *
    from ....engine.trace.xp.shapes import *
    from ....engine.trace.xp.shards import *
    from ....engine.trace.xp.signals import *
    from .ops import *

pi = 3.141592653589793
e = 2.718281828459045
inf = float("inf")
nan = float("nan")

# Functions of one op of the core.
MADE = [row.in_xp for row in CORE_OPS if not row.composed]
# The names that load no other module.
CORE_NAMES = frozenset(("e", "inf", "nan", "pi", *xp_arrays.__all__, *MADE))


@provided
def other_modules(public: bool) -> tuple[ModuleType, ...]:
    """Return the modules of functions that no rule of the library needs, without those that only
    VJPs call if `public`: the core has none.
    """
    return ()


def __getattr__(name: str) -> Any:
    if name == "__all__":
        modules = sorted([xp_arrays, xp_ops, *other_modules(True)], key=lambda each: each.__name__)
        value: Any = ["e", "inf", "nan", "pi", *(each for m in modules for each in m.__all__)]
    elif name in MADE:
        value = getattr(xp_ops, name)
    else:
        is_asked_by_python = name.startswith("__")  # as `from ... import` asks for `__path__`
        modules = () if is_asked_by_python else (*other_modules(False), xp_ops)
        module = next((each for each in modules if name in each.__all__), None)
        if module is None:
            has_engine = is_asked_by_python or len(modules) > 1
            missing = "" if has_engine else f"; one beyond elements and reductions {NEEDS_ENGINE}"
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{missing}")
        value = getattr(module, name)
    globals()[name] = value
    return value
