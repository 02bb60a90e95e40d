"""Where things stood: names that have moved keep working, in imports, in pickles and of objects.

A room that moved is found under its former name, as the same module. A module that is gone stands
here with what pickles name of it, and the room where each is now. The files of `tests/data` hold
what must be found. A method that has become internal is found with a warning, which says what to
call.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

# By package, a former name and where it is now, both within it.
MOVED = {"multigrad": {
    "active": "trace.scope", "attach": "models.attach", "attribution": "models.attribution",
    "attribution.batch_norm": "models.attribution.layers",
    "backend.discovery": "backend.finding.discovery", "backend.values": "backend.tensors.values",
    "bridging": "rules.bridging", "calls": "functions.calls",
    "capture.einops_symbols": "capture.dialects.einops_symbols",
    "capture.xp": "capture.dialects.xp",
    "cli": "look.command",
    "context": "rules.context", "documents": "functions.documents", "ejection": "functions.eject",
    "estimators": "rules.estimators", "estimators.surrogates": "rules.estimators.binary",
    "functional": "compat.functional", "ground": "graph.support",
    "ground.addresses": "graph.support.params", "ground.fixed": "graph.support.params",
    "hook": "compat.hook", "in_force": "rules.in_force", "inspection": "look", "ir": "graph.ir",
    "ops": "graph.ops", "optax": "compat.optax", "override": "models.override",
    "passes": "graph.passes", "plotting": "look.plotting", "proof": "functions.proof",
    "random": "graph.random", "random.places": "graph.random.keys", "recipes": "functions.recipes",
    "reference": "lowering.reference", "registry": "rules.registry", "rulebook": "rules.model",
    "saving": "rules.saving", "schedule": "rules.schedule",
    "tracing": "trace", "transforms": "compat.transforms", "wrappers": "compat.wrappers",
    **{
        f"rules.{name}": f"rules.library.{name}" for name in (
            "attribution", "binary", "curves", "jamming", "limits", "norms", "quantization",
            "spiking", "straight_through", "surrogate", "transforms",
        )
    },
    **{
        f"rules.{name}": f"rules.library.peers.{name}" for name in (
            "braintools", "names", "optax", "peers", "snntorch", "spikingjelly",
        )
    },
}}  # fmt: skip
FORMER = {
    "multigrad.activation": {"Activation": "multigrad.rules.in_force.activation"},
    "multigrad.rule": {
        "Rule": "multigrad.rules.model.rule",
        "_by_name": "multigrad.rules.model.rule",
        "_rebuild": "multigrad.rules.model.rule",
    },
    "multigrad.rule_documents": {"function_of": "multigrad.rules.saving.files"},
}


def _now(fullname: str) -> str | None:
    """Return the name of a module that has moved; None: it has not."""
    package, _, rest = fullname.partition(".")
    moved = MOVED.get(package)
    if moved is None:
        return None
    room, *inner = rest.split(".")
    if inner and f"{room}.{inner[0]}" in moved:
        room = f"{room}.{inner.pop(0)}"
    return ".".join((package, moved[room], *inner)) if room in moved else None


class _Mover(MetaPathFinder, InspectLoader):
    """Finds a module under its former name, before its folder is looked into under that name."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        now = _now(fullname)
        try:
            found = None if now is None else find_spec(now)
        except ModuleNotFoundError:
            return None
        if found is None:
            return None
        spec = ModuleSpec(fullname, self, origin=now)
        spec.submodule_search_locations = found.submodule_search_locations
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(spec.origin or "")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        former = module.__spec__
        if former is not None:  # which the import system has put there
            module.__spec__ = former.loader_state

    def get_source(self, fullname: str) -> str | None:
        found = find_spec(_now(fullname) or fullname)
        if found is None or not isinstance(found.loader, InspectLoader):
            return None
        return found.loader.get_source(found.name)


class _FormerModule(ModuleType):
    """A module that is gone."""

    def __getattr__(self, name: str) -> Any:
        rooms = FORMER[self.__name__]
        if name not in rooms:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(import_module(rooms[name]), name)


class FormerNames:
    """An object whose internal methods had public names.

    Attributes:
        _former: those names, and what is called instead.
    """

    _former: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # to a checker, a name that is not there is an error

        def __getattr__(self, name: str) -> Any:
            instead, cls = type(self)._former.get(name), type(self).__name__
            if instead is None:
                message = f"{cls!r} object has no attribute {name!r}"
                raise AttributeError(message, name=name, obj=self)
            warnings.warn(
                f"{cls}.{name} is internal now, and will go; {instead}",
                DeprecationWarning,
                stacklevel=2,
            )
            return getattr(self, f"_{name}")


for _module in FORMER:
    sys.modules.setdefault(_module, _FormerModule(_module))
if not any(isinstance(each, _Mover) for each in sys.meta_path):
    sys.meta_path.insert(0, _Mover())
