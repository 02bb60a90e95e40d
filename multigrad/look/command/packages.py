"""The custom gradients of a package: every one that a module of it defines, found by importing
them all.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import pkgutil
import sys
import types
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from multigrad.functions.importers import owner_of_custom
from multigrad.graph.support.versions import ignoring_warnings

SKIPPED = ("test", "tests", "testing", "conftest", "__main__", "setup")


@dataclass(slots=True)
class Found:
    """What a package holds.

    Attributes:
        named: the custom gradients by module:name.
        unimported: modules that cannot be imported, with the reason.
    """

    named: dict[str, Any] = field(default_factory=dict)
    unimported: dict[str, str] = field(default_factory=dict)


def find_custom_gradients(
    package: types.ModuleType,
    kinds: tuple[type, ...] = (),
    note: Callable[[str], Any] | None = None,
    skipped: Collection[str] = (),
) -> Found:
    """Return every custom gradient that a module or a package and its submodules define.

    Args:
        kinds: types of whose objects are custom gradients, too.
        note: is told of each module before it is imported, which may end the process.
        skipped: modules that are not imported.
    """
    found = Found()
    seen: set[int] = set()

    def is_wanted(name: str) -> bool:
        if note is not None:
            note(name)
        return name not in skipped

    for module in _modules(package, found.unimported, is_wanted):
        for name, value in sorted(vars(module).items()):
            if id(value) in seen or not _is_own(value, package):
                continue
            if owner_of_custom(value) is not None or isinstance(value, kinds):
                seen.add(id(value))
                found.named[f"{module.__name__}:{name}"] = value
    return found


def _is_own(value: Any, package: types.ModuleType) -> bool:
    """Return whether a value is made in the package, as far as it says."""
    if not callable(value):
        return False
    home = getattr(value, "__module__", None)
    return isinstance(home, str) and f"{home}.".startswith(f"{package.__name__}.")


def _modules(
    package: types.ModuleType, unimported: dict[str, str], is_wanted: Callable[[str], bool]
) -> Iterator[types.ModuleType]:
    yield package
    path = getattr(package, "__path__", None)
    if path is None:
        return
    for info in pkgutil.iter_modules(path, f"{package.__name__}."):
        last = info.name.rpartition(".")[2]
        if last in SKIPPED or last.startswith("test_") or last.endswith("_test"):
            continue
        module = _import(info.name, unimported) if is_wanted(info.name) else None
        if module is not None:
            yield from _modules(module, unimported, is_wanted)


def _import(name: str, unimported: dict[str, str]) -> types.ModuleType | None:
    """Import a module; what it prints and warns of is no concern of the table."""
    if name in sys.modules:
        return sys.modules[name]
    silent = io.StringIO()
    try:
        with (
            ignoring_warnings(),
            contextlib.redirect_stdout(silent),
            contextlib.redirect_stderr(silent),
        ):
            return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, too: scripts lie about in packages
        unimported[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return None
