"""What is known of each backend, for users: `xg.backends`; and the check of a third party's."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ...core.backend.contract import Backend
from ...core.backend.discovery import (
    OWN,
    REFERENCE,
    REGISTRY,
    entry_points,
    load_backend,
    package_of,
)
from ...core.support.installed import find_version, install_line, requirements_of, why_too_old
from ...errors import BackendNotFound, suggest


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """One row of `xg.backends()`.

    Attributes:
        name: the framework's import name, by which it is requested.
        installed: whether it can be used, as far as that is known.
        version: the framework's.
        reason: why it cannot be used, and what to type.

    Examples:
        >>> row = next(row for row in xg.backends() if row.name == "numpy")
        >>> row.installed, row.reason
        (True, None)
    """

    name: str
    installed: bool
    version: str | None
    reason: str | None


class Statuses(list[BackendStatus]):
    """The rows of `xg.backends()`; prints as a table."""

    def __repr__(self) -> str:
        rows = [("name", "version", "why not")]
        rows += [(row.name, row.version or "-", row.reason or "") for row in self]
        wide = [max(len(row[i]) for row in rows) for i in range(2)]
        return "\n".join(
            f"{name:{wide[0]}}  {version:{wide[1]}}  {reason}".rstrip()
            for name, version, reason in rows
        )


def backends(*, load: bool = False) -> Statuses:
    """Return one row per backend.

    Args:
        load: load each, to find out for certain which of them work. Without it no framework is
            imported, and a package that fails on import is only noticed when it is used.

    Examples:
        >>> "numpy" in [row.name for row in xg.backends() if row.installed]
        True
        >>> [row.reason for row in xg.backends() if row.name == "numpy"]  # of one that is not: why
        [None]
    """
    return Statuses(_status(name, load) for name in entry_points())


def is_importable(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # imported by other means: it has no spec
        return sys.modules.get(name) is not None


def _status(name: str, load: bool) -> BackendStatus:
    # A framework that is imported costs nothing more to try.
    if load or name in sys.modules:
        with suppress(BackendNotFound):
            load_backend(name)
    point = REGISTRY.points[name]
    package = package_of(point)
    requirements = requirements_of(name, package) if package else []
    if not is_importable(name):
        return BackendStatus(name, False, None, install_line(name, package, requirements))
    version = find_version(name, requirements)
    if name not in REGISTRY.loaded:
        reason = REGISTRY.refused.get(name) or _foresee(name, point, package)
        if reason is not None:
            return BackendStatus(name, False, version, reason.removeprefix(f"backend {name!r} "))
    return BackendStatus(name, True, version, REGISTRY.contested.get(name))


def _foresee(name: str, point: Any, package: str) -> str | None:
    # As far as it can be told without an import.
    if name in REGISTRY.contested and package != OWN and name != REFERENCE[0]:
        return REGISTRY.contested[name]
    root = str(getattr(point, "module", "") or "").partition(".")[0]
    if root and not is_importable(root):
        return f"its entry point names {root}, which is not there: reinstall {package}"
    return why_too_old(name, package) if package else None


# --- errors that say what to install --------------------------------------------------------------
def unknown_backend_error(name: str) -> BackendNotFound:
    """Return the error for a name that no backend has."""
    points = entry_points()
    line = install_line(str(name), OWN, requirements_of(str(name), OWN))
    if f"'{OWN}-" in line:  # a distribution of its own
        return BackendNotFound(f"backend {name!r} is not installed: {line}")
    # "tf" means the name that begins with t and has an f further on.
    letters = ".*".join(map(re.escape, str(name)))
    word = next((n for n in points if name and re.match(letters, n)), str(name))
    return BackendNotFound(
        f"no backend named {name!r}{suggest(word, points)} (backends: {', '.join(points)})"
    )


def unloadable_error(name: str, place: str, error: BaseException) -> BackendNotFound:
    # Any other missing module is a fault of the package.
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == name:
        package = package_of(entry_points()[name])
        line = install_line(name, package, requirements_of(name, package))
        return BackendNotFound(
            f"backend {name!r} needs {error.name}, which is not installed: {line}"
        )
    message = f"{type(error).__name__}: {error}".rstrip(": ")
    return BackendNotFound(f"backend {name!r} cannot be loaded: {place} raises {message}")


# --- checks of a third party's backend ------------------------------------------------------------
# Fields that are called without a look whether they are there.
CALLED = {
    "tensors": ("dtype", "to_numpy", "from_numpy", "is_traced"),
    "autodiff": ("render", "finish", "call", "attach"),
}


def admit(found: Any, name: str, where: str) -> Backend:
    """Return the object of an entry point, checked to be a Backend of its name with all groups."""
    if not isinstance(found, Backend):
        raise BackendNotFound(
            f"backend {name!r} cannot be used: {where} is a {type(found).__name__}; "
            f"expected a multigrad.backend.Backend"
        )
    fault = _fault_of(found, name)
    if fault:
        raise BackendNotFound(f"backend {name!r} cannot be used: {where} {fault}")
    return found


def _fault_of(backend: Backend, name: str) -> str | None:
    if backend.name != name:
        return (
            f"is named {backend.name!r}, and its entry point {name!r}; "
            f"both are the name under which the framework is imported"
        )
    for row in fields(backend):
        # A group whose default is None may be left out; one that loads later is not read here.
        if row.name in ("name", *backend.places) or row.default is None or not row.init:
            continue
        kind, value = (
            getattr(import_module("multigrad.backend"), str(row.type)),
            getattr(backend, row.name),
        )
        if not isinstance(value, kind):
            return f"has {value!r} for {row.name}; expected multigrad.backend.{row.type}(...)"
    for group, names in CALLED.items():
        for each in names:
            if not callable(getattr(getattr(backend, group), each)):
                return f"has no function for {group}.{each}"
    types = backend.tensors.types
    is_tuple = isinstance(types, tuple) and types
    if not is_tuple or not all(isinstance(each, type) for each in types) or object in types:
        return f"has {types!r} for tensors.types; expected the classes of its tensors in a tuple"
    if not isinstance(backend.kernels.rows, Mapping):
        return "has no mapping of ops to functions for kernels.rows"
    return None
