"""multigrad: change gradients, in every framework, with a rule written once.

    import multigrad as xg

    with xg.use("triangular", params={"width": 2.0}):
        y = act(x)

No framework is imported here; `xg.Activation` (the torch module) and others load when first asked
for.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

# Before a pickle names a module that is gone; from now on a fork waits for what others import.
from .ground import former as _former  # noqa: F401
from .ground import threads as _threads  # noqa: F401

# Each name stands here for type checkers, and below with its room.
if TYPE_CHECKING:
    from . import attribution, estimators, schedule, transforms
    from . import compat as compat
    from . import functional as functional
    from . import hook as hook
    from . import keras as keras
    from . import optax as optax
    from . import testing as testing
    from . import wrappers as wrappers
    from .attach import attach
    from .attribution import composites
    from .backend.discovery import backends
    from .capture import xp
    from .context import use
    from .errors import (
        BackendNotFound,
        FormatError,
        GradientError,
        MultigradError,
        NativeRuleWarning,
        RuleError,
        StaleTraceError,
        TraceError,
        UnsupportedOp,
    )
    from .functions.custom_gradient import custom_gradient
    from .functions.function import Function
    from .functions.importers import (
        from_autograd_function,
        from_custom_vjp,
        from_tf_custom_gradient,
    )
    from .functions.plain import function
    from .in_force.activation import activation
    from .in_force.gradients import apply_to_gradients
    from .in_force.jit import jit
    from .in_force.vjp import vjp
    from .inspection.check import check
    from .inspection.parity import parity
    from .inspection.show import show
    from .inspection.source import lower, source
    from .lowering.forwards import activations
    from .override import override
    from .plotting.figure import plot
    from .registry import compose, get, register, rules, unregister
    from .rulebook.rule import Rule
    from .saving.files import from_dict, load, save
    from .wrappers import Activation

    __version__: str

__all__ = [
    "Activation",
    "BackendNotFound",
    "FormatError",
    "Function",
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
    "activations",
    "apply_to_gradients",
    "attach",
    "attribution",
    "backends",
    "check",
    "compose",
    "composites",
    "custom_gradient",
    "estimators",
    "from_autograd_function",
    "from_custom_vjp",
    "from_dict",
    "from_tf_custom_gradient",
    "function",
    "get",
    "jit",
    "load",
    "lower",
    "override",
    "parity",
    "plot",
    "register",
    "rules",
    "save",
    "schedule",
    "show",
    "source",
    "transforms",
    "unregister",
    "use",
    "vjp",
    "xp",
]

# The room of each public name. All load when first asked for: importing them took 1.3 times what
# importing NumPy takes, and most programs need few.
_ROOMS = {
    "parity": "inspection.parity",
    "check": "inspection.check",
    "vjp": "in_force.vjp",
    "function": "functions.plain",
    "from_tf_custom_gradient": "functions.importers",
    "from_custom_vjp": "functions.importers",
    "from_autograd_function": "functions.importers",
    "custom_gradient": "functions.custom_gradient",
    "Function": "functions.function",
    "Activation": "wrappers",
    "BackendNotFound": "errors",
    "FormatError": "errors",
    "GradientError": "errors",
    "MultigradError": "errors",
    "NativeRuleWarning": "errors",
    "Rule": "rulebook.rule",
    "RuleError": "errors",
    "StaleTraceError": "errors",
    "TraceError": "errors",
    "UnsupportedOp": "errors",
    "activation": "in_force.activation",
    "activations": "lowering.forwards",
    "apply_to_gradients": "in_force.gradients",
    "attach": "attach",
    "backends": "backend.discovery",
    "compose": "registry",
    "from_dict": "saving.files",
    "get": "registry",
    "jit": "in_force.jit",
    "load": "saving.files",
    "lower": "inspection.source",
    "override": "override",
    "plot": "plotting.figure",
    "register": "registry",
    "rules": "registry",
    "save": "saving.files",
    "show": "inspection.show",
    "source": "inspection.source",
    "unregister": "registry",
    "use": "context",
}
_MODULES = {
    "attribution", "compat", "estimators", "functional", "hook", "keras", "optax", "schedule",
    "testing", "transforms", "wrappers",
}  # fmt: skip
# Modules that lie in a room of another name.
_INNER = {"composites": "attribution.composites", "xp": "capture.xp"}
# What needs a framework to be there at all.
_NEEDS = {"Activation": "torch", "keras": "keras"}


def _load(name: str) -> Any:
    from importlib import import_module

    if name in _ROOMS:
        return getattr(import_module(f".{_ROOMS[name]}", __name__), name)
    if name == "__version__":
        return _read_version()
    if name in _MODULES or name in _INNER:
        return import_module(f".{_INNER.get(name, name)}", __name__)
    from .ground.namespace import missing

    raise missing(__name__, name, _list_names())


def _list_names() -> list[str]:
    from importlib.util import find_spec

    absent = {name for name, framework in _NEEDS.items() if find_spec(framework) is None}
    return sorted({*__all__, *_MODULES} - absent)


# Type checkers would take every name for one that `__getattr__` gives.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        value = globals()[name] = _load(name)
        return value

    def __dir__() -> list[str]:
        return _list_names()


def _read_version() -> str:
    from importlib import metadata

    try:
        return metadata.version("multigrad-rules")
    except metadata.PackageNotFoundError:  # a source tree that was never installed
        return "0.0.0"


class _Package(ModuleType):
    """This package: where a public function and a room share a name, the name is the function."""

    def __setattr__(self, name: str, value: Any) -> None:
        # Importing a submodule binds it on its package.
        if not (name in _ROOMS and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
