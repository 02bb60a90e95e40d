"""multigrad: change gradients, in every framework, with a rule written once.

    import multigrad as xg

    with xg.use("triangular", params={"width": 2.0}):
        y = act(x)

No framework is imported here; `xg.Activation` (the torch module) and others load when first asked
for.
"""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

# From now on a fork waits for what others import.
from .core.support import threads as _threads  # noqa: F401
from .core.support.lazy_modules import install_aliases as _install_aliases
from .core.support.lazy_modules import load_engine as _load_engine

# These are for type checkers; `_ROOMS` below says where each name is.
if TYPE_CHECKING:
    from . import compat as compat
    from . import estimators, schedule
    from . import keras as keras
    from . import testing as testing
    from .audit.audit import audit, check
    from .audit.doctor import doctor
    from .audit.gate import gate
    from .audit.same import same
    from .compat import functional as functional
    from .compat import hook as hook
    from .compat import optax as optax
    from .compat import transforms
    from .compat import wrappers as wrappers
    from .compat.wrappers import Activation
    from .core import xp
    from .core.lowering.forwards import activations
    from .core.rules.activation import activation
    from .core.rules.capture import Capture
    from .core.rules.context import use
    from .core.rules.registry import compose, get, register, rules, unregister
    from .core.rules.rule import Rule
    from .core.rules.vjp import vjp
    from .engine.backend.statuses import backends
    from .engine.functions.custom_gradient import custom_gradient, function
    from .engine.functions.function import Function
    from .engine.functions.implicit.implicit import implicit
    from .engine.functions.importers import (
        convert,
        from_autograd_function,
        from_custom_jvp,
        from_custom_vjp,
        from_tf_custom_gradient,
    )
    from .engine.rules.gradients import apply_to_gradients
    from .engine.rules.jit import jit
    from .engine.rules.jvp import jvp
    from .engine.rules.opaque import opaque
    from .engine.rules.saving import from_dict, load, save
    from .engine.rules.transpose import linear_transpose
    from .engine.support.c_libraries import enable
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
    from .look.export import export, load_operators
    from .look.figure import heatmap, plot
    from .look.memory import memory
    from .look.parity import parity
    from .look.source import lower, show, source
    from .models import attribution
    from .models.attach import attach, quantize
    from .models.attribution import composites
    from .models.override import override

    __version__: str

__all__ = [
    "Activation",
    "BackendNotFound",
    "Capture",
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
    "audit",
    "backends",
    "check",
    "compose",
    "composites",
    "convert",
    "custom_gradient",
    "doctor",
    "enable",
    "estimators",
    "export",
    "from_autograd_function",
    "from_custom_jvp",
    "from_custom_vjp",
    "from_dict",
    "from_tf_custom_gradient",
    "function",
    "gate",
    "get",
    "heatmap",
    "implicit",
    "jit",
    "jvp",
    "linear_transpose",
    "load",
    "load_operators",
    "lower",
    "memory",
    "opaque",
    "override",
    "parity",
    "plot",
    "quantize",
    "register",
    "rules",
    "same",
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
    name: room
    for room, names in {
        "audit.audit": "audit check",
        "audit.doctor": "doctor",
        "audit.gate": "gate",
        "audit.same": "same",
        "engine.backend.statuses": "backends",
        "core.rules.capture": "Capture",
        "compat.wrappers": "Activation",
        "errors": "BackendNotFound FormatError GradientError MultigradError NativeRuleWarning "
        "RuleError StaleTraceError TraceError UnsupportedOp",
        "engine.support.c_libraries": "enable",
        "engine.functions.custom_gradient": "custom_gradient function",
        "engine.functions.function": "Function",
        "engine.functions.implicit.implicit": "implicit",
        "engine.functions.importers": "convert from_autograd_function from_custom_jvp "
        "from_custom_vjp from_tf_custom_gradient",
        "look.export": "export load_operators",
        "look.memory": "memory",
        "look.parity": "parity",
        "look.figure": "heatmap plot",
        "look.source": "lower show source",
        "core.lowering.forwards": "activations",
        "models.attach": "attach quantize",
        "models.override": "override",
        "engine.rules.opaque": "opaque",
        "core.rules.context": "use",
        "core.rules.activation": "activation",
        "engine.rules.gradients": "apply_to_gradients",
        "engine.rules.jit": "jit",
        "engine.rules.transpose": "linear_transpose",
        "engine.rules.jvp": "jvp",
        "core.rules.vjp": "vjp",
        "core.rules.rule": "Rule",
        "core.rules.registry": "compose get register rules unregister",
        "engine.rules.saving": "from_dict load save",
    }.items()
    for name in names.split()
}
# Public modules, and where they lie.
_MODULES = {
    "attribution": "models.attribution",
    "cli": "command",
    "compat": "compat",
    "composites": "models.attribution.composites",
    "context": "core.rules.context",
    "estimators": "estimators",
    "functional": "compat.functional",
    "hook": "compat.hook",
    "keras": "keras",
    "optax": "compat.optax",
    "registry": "core.rules.registry",
    "schedule": "schedule",
    "testing": "testing",
    "transforms": "compat.transforms",
    "wrappers": "compat.wrappers",
    "xp": "core.xp",
}
# Where the modules lie that pickles of earlier releases name, and backends of other authors.
_MOVED = {
    "backend": ("backend", "core.backend", "engine.backend"),
    "capture": ("engine.capture",),
    "functions": ("core.functions", "engine.functions"),
    "graph": ("core", "engine"),
    "rules": ("core.rules", "engine.rules", ""),
}
_load_engine(__name__)
_install_aliases(__name__, {**_MODULES, **_MOVED})
# FreeGrad's names, and names that others replace: they work, but `dir` does not list them.
_OTHER_NAMES = {
    "cli",
    "context",
    "from_autograd_function",
    "from_custom_jvp",
    "from_custom_vjp",
    "from_tf_custom_gradient",
    "functional",
    "hook",
    "override",
    "registry",
    "transforms",
    "wrappers",
}
# Names that are there only with a framework.
_NEEDS = {"Activation": "torch", "keras": "keras"}


def _load(name: str) -> Any:
    from .core.support.threads import load_module

    if name in _ROOMS:
        return _with_door(load_module(f"{__name__}.{_ROOMS[name]}"), name)
    if name == "__version__":
        return _read_version()
    if name in _MODULES:
        return load_module(f"{__name__}.{_MODULES[name]}")
    from .core.support.lazy_modules import missing_name_error

    raise missing_name_error(__name__, name, _list_names())


def _with_door(room: ModuleType, name: str) -> Any:
    # Also in its room, by which it pickles; our own code has imported it as it is.
    from .core.support.tracebacks import door

    value = getattr(room, name)
    if isinstance(value, FunctionType) and name != "vjp":  # which has one inside
        value = door(value)
        setattr(room, name, value)
    return value


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
        return [name for name in _list_names() if name not in _OTHER_NAMES]


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
