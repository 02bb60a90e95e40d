"""What libraries have answered, kept for the process: it depends on the dtypes and ranks alone, and
on what the library is set to (64 bits in JAX, the default dtype in torch).

From that follows, too, in which dtypes of 16 bits a capture for the wide floats is the same graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from typing import Any

from ...graph.ir.types import FLOATS, T
from ...graph.support.data import dataclass
from ...trace.scope.reads import Telling
from ..code.table import find_dialect, registered_dialects
from .oracle import Answer, Mark, ask, combine, follows_input

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


MOST_ANSWERS = 16_384
UNKNOWN = "not asked yet"
_answers: dict[Any, Any] = {}

Function = Callable[..., Any]
# A library, what it is set to, its function, and the marks of args and kwargs.
Asked = tuple[str, Any, Function, tuple[Mark, ...]]


def answer_to(asked: Asked, fixed: str | None) -> Any:
    """Return a library's answer, T in it where it follows T, which may be fixed; see `combine`.

    None: it cannot say, or the question is no key.
    """
    whole = (*asked, fixed)
    try:
        answer = _answers.get(whole, UNKNOWN)
    except TypeError:
        return None
    if answer != UNKNOWN:
        return answer
    library, mode, function, key = asked
    dialect = find_dialect(library)
    assert dialect is not None and dialect.types is not None
    floats = [fixed] if fixed else dialect.types.floats(mode)
    choices = list(floats) if any(map(follows_input, key)) else [""]
    if len(_answers) > MOST_ANSWERS:
        _answers.clear()
    answer = _answers[whole] = combine(ask(function, key, dialect, mode, choices), choices)
    return answer


def in_terms_of(fixed: str | None, answer: Answer) -> Answer:
    """Return an answer with T where it gives the input's dtype."""
    if fixed is None:
        return answer
    return [(T if dtype in FLOATS and dtype == fixed else dtype, weak) for dtype, weak in answer]


@dataclass(slots=True, eq=False)
class Reach:
    """What was noted while a function was captured for the wide floats, of which a capture for 16
    bits may make something else.

    Attributes:
        named: dtypes that something looked for.
        asked: questions to libraries, with their answers.
        composed: functions that are made of several ops, with what tells whether a library rounds
            once there.
    """

    named: set[str] = field(default_factory=set)
    asked: list[tuple[Asked, Answer | None]] = field(default_factory=list)
    composed: dict[Function, Callable[[Function], bool]] = field(default_factory=dict)

    def holds_in(self, dtype: str) -> bool:
        """Return whether a capture for a dtype would give the same graphs."""
        if dtype in self.named or any(is_wide(f) for f, is_wide in self.composed.items()):
            return False
        for asked, expected in self.asked:
            answer = answer_to(asked, dtype)
            if (answer and in_terms_of(dtype, answer)) != expected:
                return False
        return True
