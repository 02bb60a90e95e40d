"""How backends are found, and which one owns a value.

A backend is found by the entry-point group `multigrad.backends`, ours and strangers' alike. Nothing
here names a framework but NumPy: a value's owner is looked for among the backends whose framework
is already imported, and cached by type.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import BackendNotFound, MultigradError, suggest
from ..ground.notebook import InNotebooks
from ..ground.threads import make_lock
from .contract import Backend, Reader

GROUP = "multigrad.backends"
# The reference needs no installation metadata, so that the core works from a source tree.
REFERENCE = ("numpy", "multigrad.reference.backend:backend", GROUP)
# What an activation asks before it acts: (types, is reading, what to call then). Both tables change
# where a backend is loaded and nowhere else, because a compiler that reads along guards on all of
# their keys.
ReaderRow = tuple[tuple[type, ...], Callable[[], bool], Callable[..., Any]]
EVERY_READER: list[ReaderRow] = []
READERS: dict[type, tuple[ReaderRow, ...]] = {}  # for exactly these types of tensors
FUNCTION_READERS: list[Reader] = []
# Likewise, of all loaded compilers: who is asked, and told, at each step of a number that moves.
IS_TRACING: list[Callable[[], bool]] = []
ON_MOVE: list[Callable[[Any], None]] = []


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """One row of `xg.backends()`."""

    name: str
    installed: bool
    version: str | None
    reason: str | None


class Statuses(list[BackendStatus], InNotebooks):
    """The rows of `xg.backends()`; prints as a table."""

    def __repr__(self) -> str:
        rows = [("name", "version", "why not")]
        rows += [(row.name, row.version or "-", row.reason or "") for row in self]
        wide = [max(len(row[i]) for row in rows) for i in range(2)]
        return "\n".join(
            f"{name:{wide[0]}}  {version:{wide[1]}}  {reason}".rstrip()
            for name, version, reason in rows
        )


_loaded: dict[str, Backend] = {}
_owners: dict[type, Backend] = {}
_points: dict[str, Any] = {}
_indexing = make_lock()


def load_backend(name: str) -> Backend:
    """Return the backend of that name, importing its framework.

    Raises:
        BackendNotFound: there is none, or its framework is not installed.
    """
    backend = _loaded.get(name)
    if backend is not None:
        return backend
    points = entry_points()
    if name not in points:
        raise BackendNotFound(
            f"no backend named {name!r}{suggest(name, points)} (backends: {', '.join(points)})"
        )
    try:
        backend = points[name].load()  # an import, for which other threads wait by its own lock
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != name:
            raise  # the framework is there: something else is broken, and should be seen
        raise BackendNotFound(
            f"backend {name!r} needs {error.name}, which is not installed: "
            f"pip install 'multigrad-rules[{name}]'"
        ) from error
    with _indexing:  # so that no table of fewer backends comes last
        found = _loaded.setdefault(name, backend)
        index_readers()
    return found


def index_readers() -> None:
    """Bring the tables of readers up to date with the loaded backends."""
    rows: list[tuple[Backend, Reader]] = []
    functions: list[Reader] = []
    for backend in loaded():
        rows += [(backend, reader) for reader in backend.compiler.read_activation]
        functions += backend.compiler.read_function
        own = tuple(_row(backend, reader) for reader in backend.compiler.read_activation)
        READERS.update(dict.fromkeys(backend.tensors.types, own))
    rows.sort(key=lambda row: not row[1].reads_code)
    functions.sort(key=lambda reader: not reader.reads_code)
    compilers = [backend.compiler for backend in loaded()]
    IS_TRACING[:] = [each.is_tracing for each in compilers if each.is_tracing is not None]
    ON_MOVE[:] = [each.on_move for each in compilers if each.on_move is not None]
    EVERY_READER[:] = [_row(*row) for row in rows]
    FUNCTION_READERS[:] = functions


def _row(backend: Backend, reader: Reader) -> ReaderRow:
    return backend.tensors.types, reader.is_reading, reader.call


def entry_points() -> Mapping[str, Any]:
    """Return the entry points of all backends by name, NumPy first; read once per process.

    An entry point is named after its framework's import name.
    """
    if not _points:
        from importlib.metadata import EntryPoint
        from importlib.metadata import entry_points as find

        others = {point.name: point for point in find(group=GROUP) if point.name != "numpy"}
        # At once: other threads look too.
        _points.update({"numpy": EntryPoint(*REFERENCE), **others})
    return _points


def backends() -> Statuses:
    """Return one row per backend; no framework is imported."""
    return Statuses(_status(name) for name in entry_points())


def _status(name: str) -> BackendStatus:
    from importlib.metadata import packages_distributions, version
    from importlib.util import find_spec

    if find_spec(name) is None:
        return BackendStatus(name, False, None, f"pip install 'multigrad-rules[{name}]'")
    module = sys.modules.get(name)
    known = getattr(module, "__version__", None)
    if known is None:
        distributions = packages_distributions().get(name, ())
        known = version(distributions[0]) if distributions else None
    return BackendStatus(name, True, known, None)


def backend_of(value: Any) -> Backend:
    """Return the backend that owns a value.

    Raises:
        BackendNotFound: no backend whose framework is imported takes values of this type.
    """
    type_ = type(value)
    backend = _owners.get(type_)
    if backend is None:
        backend = _find_owner(type_)
        _owners[type_] = backend
    return backend


def _find_owner(type_: type) -> Backend:
    for backend in in_use():
        if issubclass(type_, backend.tensors.types):
            return backend
    names = ", ".join(entry_points())
    raise BackendNotFound(
        f"no backend takes a {type_.__module__}.{type_.__qualname__}; "
        f"expected a NumPy array or a tensor of an installed backend ({names})"
    )


def in_use() -> list[Backend]:
    """Return the backends whose framework is already imported."""
    found = []
    for name in _points or entry_points():
        backend = _loaded.get(name)
        if backend is None and name in sys.modules:
            try:
                backend = load_backend(name)
            except BackendNotFound:
                continue
        if backend is not None:
            found.append(backend)
    return found


def loaded() -> list[Backend]:
    """Return the backends loaded so far."""
    return list(_loaded.values())


def backend_among(values: Any) -> Backend:
    """Return the one backend that owns the tensors among `values`, plain numbers aside.

    Raises:
        MultigradError: they belong to two frameworks.
    """
    tensors = [v for v in values if not isinstance(v, bool | int | float | tuple | type(None))]
    owners = {backend_of(v) for v in tensors}
    if len(owners) > 1:
        names = " and ".join(sorted(owner.name for owner in owners))
        raise MultigradError(f"one call mixes tensors of {names}; convert them to one framework")
    return owners.pop() if owners else load_backend("numpy")
