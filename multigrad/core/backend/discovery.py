"""Discovery of backends by their entry points, and of the backend that owns a value.

All are found in the group `multigrad.backends`, ours and third-party ones. No framework but NumPy
is named here: a value's owner is looked for among the backends whose framework is already imported,
and cached by type. A backend that cannot be loaded is tried once and affects no other;
`xg.backends()`, and a request by its name, give the reason.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

from ...errors import BackendNotFound, GradientError, MultigradError
from ..support.installed import OWN, find_points, package_of, why_too_old
from ..support.lazy_modules import imported_module, provided
from ..support.threads import collector_paused, make_lock
from .contract import Backend, Reader

GROUP = "multigrad.backends"
# The reference needs no installation metadata, so that the core works from a source tree.
REFERENCE = ("numpy", "multigrad.core.lowering.reference.backend:backend", GROUP)
# What an activation asks before it acts: (types, is it reading, what to call then). Both tables
# change only when a backend is loaded, because a compiler that reads the code guards on all of
# their keys.
ReaderRow = tuple[tuple[type, ...], Callable[[], bool], Callable[..., Any]]
EVERY_READER: list[ReaderRow] = []
READERS: dict[type, tuple[ReaderRow, ...]] = {}  # for exactly these types of tensors
FUNCTION_READERS: list[Reader] = []
# In its only element the frameworks that may still be imported. At first `sys`, which always is, so
# that the first call looks for backends.
AWAITED: list[frozenset[str]] = [frozenset({"sys"})]


class Registry:
    """What is known of the backends, by name.

    Attributes:
        points: the entry points of all; empty until somebody asks.
        contested: what is said where several packages offer one.
        loaded: those that have been loaded.
        refused: what was said where one could not be loaded.
        listeners: what is told all loaded backends whenever there is another one.
    """

    def __init__(self) -> None:
        self.points: dict[str, Any] = {}
        self.contested: dict[str, str] = {}
        self.loaded: dict[str, Backend] = {}
        self.refused: dict[str, str] = {}
        self.listeners: list[Callable[[Sequence[Backend]], None]] = []


REGISTRY = Registry()
_owners: dict[type, Backend] = {}  # by the class of a tensor
_indexing = make_lock()


def load_backend(name: str) -> Backend:
    """Return the backend of that name, importing its framework.

    Raises:
        BackendNotFound: there is none, its framework is not installed or too old, or the package
            that offers it is broken.
    """
    backend = REGISTRY.loaded.get(name)
    if backend is not None:
        return backend
    points = entry_points()
    if name not in points:
        raise unknown_backend_error(name)
    try:
        backend = _import_backend(name, points[name])
        with _indexing:  # so that no table of fewer backends comes last
            winner = REGISTRY.loaded.setdefault(name, backend)
            try:
                index_readers()
            except BaseException as error:
                del REGISTRY.loaded[name]
                if not isinstance(error, Exception):
                    raise
                raise unloadable_error(name, f"the compiler of {name!r}", error) from error
            REGISTRY.refused.pop(name, None)
    except BackendNotFound as error:
        # Amid the framework's own import it may still work later.
        if not _is_being_imported(name):
            REGISTRY.refused[name] = str(error)
        raise
    return winner


def _import_backend(name: str, point: Any) -> Backend:
    package = package_of(point)
    place = f"{getattr(point, 'value', name)} of {package or 'an unknown package'}"
    if name in REGISTRY.contested and package != OWN and name != REFERENCE[0]:
        raise BackendNotFound(f"backend {name!r} cannot be used: {REGISTRY.contested[name]}")
    # Before the import, in which an old framework may fail with a worse message.
    _check_version(name, package)
    try:
        with collector_paused():
            backend = point.load()  # an import, for which other threads wait by its own lock
    except (Exception, SystemExit) as error:
        # The framework may have been imported since, and its own `__version__` counts.
        _check_version(name, package)
        raise unloadable_error(name, place, error) from error
    _check_version(name, package)  # some say it themselves, and no metadata does
    return backend if package == OWN or name == REFERENCE[0] else admit(backend, name, place)


def _check_version(name: str, package: str) -> None:
    complaint = why_too_old(name, package) if package else None
    if complaint is not None:
        raise BackendNotFound(f"backend {name!r} {complaint}")


# --- what is said of one that is not there --------------------------------------------------------
@provided
def unknown_backend_error(name: str) -> BackendNotFound:
    return BackendNotFound(f"no backend named {name!r} (backends: {', '.join(entry_points())})")


@provided
def unloadable_error(name: str, place: str, error: BaseException) -> BackendNotFound:
    """Return the error for a backend of which `place` has raised another one."""
    message = f"{type(error).__name__}: {error}".rstrip(": ")
    return BackendNotFound(f"backend {name!r} cannot be loaded: {place} raises {message}")


@provided
def admit(found: Any, name: str, where: str) -> Backend:
    """Return the object of a third party's entry point, checked to be a Backend with all groups."""
    return found


# --- which are loaded -----------------------------------------------------------------------------


def _is_being_imported(name: str) -> bool:
    return name in sys.modules and imported_module(name) is None


def index_readers() -> None:
    """Bring the tables of readers up to date with the loaded backends."""
    rows: list[tuple[Backend, Reader]] = []
    functions: list[Reader] = []
    readers: dict[type, tuple[ReaderRow, ...]] = {}
    for backend in loaded():
        rows += [(backend, reader) for reader in backend.compiler.read_activation]
        functions += backend.compiler.read_function
        reader_rows = tuple(_row(backend, reader) for reader in backend.compiler.read_activation)
        readers.update(dict.fromkeys(backend.tensors.types, reader_rows))
    # What reads the code of a call is asked before all others.
    rows.sort(key=lambda row: not row[1].reads_code)
    functions.sort(key=lambda reader: not reader.reads_code)
    # From here on nothing raises: a malformed third-party backend changes no table.
    READERS.update(readers)
    for listener in REGISTRY.listeners:
        listener(loaded())
    EVERY_READER[:] = [_row(*row) for row in rows]
    FUNCTION_READERS[:] = functions


def tell_loaded(listener: Callable[[Sequence[Backend]], None]) -> Callable[..., None]:
    """Tell a function which backends are loaded, now and whenever there is another one."""
    with _indexing:
        REGISTRY.listeners.append(listener)
        listener(loaded())
    return listener


def _row(backend: Backend, reader: Reader) -> ReaderRow:
    return backend.tensors.types, reader.is_reading, reader.call


def entry_points() -> Mapping[str, Any]:
    """Return the entry points of all backends by name, NumPy first; read once per process.

    An entry point is named after its framework's import name. No package takes a name of ours.
    """
    if not REGISTRY.points:
        from importlib.metadata import EntryPoint

        points_by_name: dict[str, list[Any]] = {"numpy": [EntryPoint(*REFERENCE)]}
        # Ours first: no package takes a name of ours.
        for point in sorted(find_points(GROUP), key=lambda each: package_of(each) != OWN):
            same_named = points_by_name.setdefault(point.name, [])
            if all(point.value != each.value for each in same_named):
                same_named.append(point)
        for name, points in points_by_name.items():
            if len(points) > 1:
                REGISTRY.contested[name] = _say_contested(points)
        # In one step, because other threads read it without a lock.
        REGISTRY.points.update({name: points[0] for name, points in points_by_name.items()})
    return REGISTRY.points


def _say_contested(points: list[Any]) -> str:
    first, *others = [f"{point.value} of {package_of(point) or 'multigrad'}" for point in points]
    if package_of(points[0]) in (OWN, ""):
        return f"multigrad's own is used, and not {' or '.join(others)}, of the same name"
    return f"two packages offer it, {first} and {' and '.join(others)}; uninstall one of them"


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
            # Not cached: a class that is refused is refused each time.
            refuse = backend.tensors.refuse
            if refuse is not None and (reason := refuse(type_)):
                path = f"{type_.__module__}.{type_.__qualname__}"
                raise GradientError(f"a {path} is not taken: {reason}")
            return backend
    refuse_unusable(type_)
    names = ", ".join(entry_points())
    advice = "; a function of the step is xg.schedule.of(f)" if type_ is FunctionType else ""
    raise BackendNotFound(
        f"no backend takes a {type_.__module__}.{type_.__qualname__}; "
        f"expected a NumPy array or a tensor of an installed backend ({names}){advice}"
    )


def refuse_unusable(*types: type) -> None:
    """Raise BackendNotFound if a type is of a framework whose backend cannot be used."""
    for type_ in types:
        roots = {each.__module__.partition(".")[0] for each in type_.__mro__}
        for name, message in REGISTRY.refused.items():
            if any(root.startswith(name) for root in roots):  # jaxlib's arrays are jax's
                raise BackendNotFound(
                    f"no backend takes a {type_.__module__}.{type_.__qualname__}: {message}"
                )


def in_use() -> list[Backend]:
    """Return the backends whose framework is already imported."""
    backends_in_use = []
    for name in REGISTRY.points or entry_points():
        backend = REGISTRY.loaded.get(name)
        # One that could not be loaded is not tried again.
        if backend is None and name in sys.modules and name not in REGISTRY.refused:
            try:
                backend = load_backend(name)
            except BackendNotFound:
                continue
        if backend is not None:
            backends_in_use.append(backend)
    return backends_in_use


def load_imported() -> None:
    in_use()
    # Only those that can still come: neither loaded nor refused.
    AWAITED[0] = frozenset(entry_points()) - REGISTRY.loaded.keys() - REGISTRY.refused.keys()


def load_awaited() -> None:
    """Load backends whose framework was imported since, when a call has met no reader."""
    if sys.modules.keys().isdisjoint(AWAITED[0]):
        return
    known_names = frozenset(REGISTRY.loaded)
    load_imported()
    for backend in loaded():
        # A compiler that reads this call begins again, so that it meets the new reader.
        if backend.name not in known_names and backend.compiler.begin_again is not None:
            backend.compiler.begin_again()


load_awaited._dynamo_marked_constant = True  # type: ignore[attr-defined]  # runs where it is read


def loaded() -> list[Backend]:
    return list(REGISTRY.loaded.values())


def backend_among(values: Any) -> Backend:
    """Return the one backend that owns the tensors among `values`, plain numbers aside."""
    tensors = [v for v in values if not isinstance(v, bool | int | float | tuple | type(None))]
    owners = {backend_of(v) for v in tensors}
    # NumPy's arrays are data of any framework.
    if len(owners) > 1:
        owners.discard(load_backend(REFERENCE[0]))
    if len(owners) > 1:
        names = " and ".join(sorted(owner.name for owner in owners))
        raise MultigradError(f"one call mixes tensors of {names}; convert them to one framework")
    return owners.pop() if owners else load_backend("numpy")
