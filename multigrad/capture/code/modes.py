"""What libraries are set to, on which dtypes depend: 64 bits in JAX, the default dtype in torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ...trace.scope.reads import Telling
from .table import find_dialect, registered_dialects

_modes: ContextVar[dict[str, Any] | None] = ContextVar("multigrad_modes", default=None)


def modes() -> dict[str, Any]:
    """Return what each library is set to; in a capture, what it was where that began."""
    return _modes.get() or _modes_now()


def _modes_now() -> dict[str, Any]:
    known = registered_dialects().items()
    return {name: dialect.types.mode() for name, dialect in known if dialect.types is not None}


def is_capturing() -> bool:
    """Return whether a function is being captured in this thread."""
    return _modes.get() is not None


@contextmanager
def keeping_modes() -> Iterator[None]:
    """Let captures within see what the libraries are set to now, whatever they set inside."""
    reset = _modes.set(modes())
    try:
        yield
    finally:
        _modes.reset(reset)


class ModeOf(Telling):
    """The fact that tells what the library of this name is set to."""

    def meaning(self) -> Any:
        """Return what it is set to; in a capture, what it was where that began."""
        kept = _modes.get()
        if kept is not None and self in kept:
            return kept[self]
        dialect = find_dialect(str(self))
        return None if dialect is None or dialect.types is None else dialect.types.mode()
