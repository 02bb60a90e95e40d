"""multigrad: change gradients, in every framework, with a rule written once.

    import multigrad as xg

    with xg.use("triangular", params={"width": 2.0}):
        y = act(x)

No framework is imported here; `xg.Activation` (the torch module) and others load when first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import rules as _library  # noqa: F401  (registers the rule library)
from .activation import activation
from .capture import xp
from .context import use
from .errors import (
    BackendNotFound,
    GradientError,
    MultigradError,
    RuleError,
    StaleTraceError,
    TraceError,
    UnsupportedOp,
)
from .gradients import apply_to_gradients
from .jit import jit
from .lowering.backend import backends
from .lowering.lower import NativeRuleWarning, lower, source
from .registry import compose, get, register, rules, unregister
from .rule import Rule
from .show import show

if TYPE_CHECKING:
    from . import transforms
    from .wrappers import Activation

    __version__: str

__all__ = [
    "Activation",
    "BackendNotFound",
    "GradientError",
    "MultigradError",
    "NativeRuleWarning",
    "Rule",
    "RuleError",
    "StaleTraceError",
    "TraceError",
    "UnsupportedOp",
    "__version__",
    "activation",
    "apply_to_gradients",
    "backends",
    "compose",
    "get",
    "jit",
    "lower",
    "register",
    "rules",
    "show",
    "source",
    "transforms",
    "unregister",
    "use",
    "xp",
]


def __getattr__(name: str) -> Any:
    """Load what costs time, or needs a framework, when it is asked for."""
    if name == "__version__":
        import importlib.metadata as metadata

        try:
            return metadata.version("multigrad-rules")
        except metadata.PackageNotFoundError:  # a source tree that was never installed
            return "0.0.0"
    if name == "Activation":
        from .wrappers import Activation

        return Activation
    if name in ("transforms", "keras", "wrappers", "hook", "functional"):
        import importlib

        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module 'multigrad' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
