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
from typing import Any

# From now on a fork waits for what others import.
from .core.support import threads as _threads  # noqa: F401
from .core.support.lazy_modules import install_aliases as _install_aliases
from .core.support.lazy_modules import load_engine as _load_engine
from .core.support.lazy_modules import read_stub as _read_stub

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
# The room of each other public name, as `__init__.pyi` tells type checkers. All load when first
# asked for: importing them took 1.3 times what importing NumPy takes, and most programs need few.
_ROOMS = {name: room for name, room in _read_stub(__spec__).items() if name not in _MODULES}
# Where the modules lie that pickles of earlier releases name, and backends of other authors.
_MOVED = {
    "backend": ("backend", "core.backend", "engine.backend"),
    "capture": ("engine.capture",),
    "functions": ("core.functions", "engine.functions"),
    "graph": ("core", "engine"),
    "rules": ("core.rules", "engine.rules", ""),
}
# The modules that `import *` brings.
_LISTED = ("attribution", "composites", "estimators", "schedule", "transforms", "xp")
__all__ = sorted([*_ROOMS, *_LISTED, "__version__"])  # noqa: PLE0605  # pyright: ignore
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
