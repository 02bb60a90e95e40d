"""`xg.xp`, also an Array API namespace, which `tin.__array_namespace__()` returns in a rule.

The functions are in `core/trace/xp/all.py`, and what else a namespace has in `array_api.py`. Each
name is looked up when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .support.lazy_modules import NEEDS_ENGINE, missing_name_error, provided
from .trace.xp import all as functions

if TYPE_CHECKING:
    from ..engine.capture.dialects.array_api import *
    from .trace.xp.all import *

__array_api_version__ = "2024.12"


@provided
def find(name: str) -> Any:
    """Return a name that is none of the core's functions, or `__all__`: the core has no others."""
    if name == "__all__":
        return sorted(functions.CORE_NAMES)
    error = missing_name_error("multigrad.xp", name, functions.CORE_NAMES)
    raise AttributeError(f"{error}; one beyond elements and reductions {NEEDS_ENGINE}")


def __getattr__(name: str) -> Any:
    value = getattr(functions, name) if name in functions.CORE_NAMES else find(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__getattr__("__all__"))
