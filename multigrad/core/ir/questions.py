"""Questions that symbols could not answer while a function was captured.

A function may catch what a symbol raises: by `except Exception`, by `suppress`, by `hasattr`. So
each refusal and each fact that is needed is noted when it is made, and the capture fails by it at
its end, whatever became of the exception.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Question = TypeVar("Question", bound=Exception)
# The questions of the capture in progress, a list that `asking` makes; None without one.
_unanswered: ContextVar[list[Exception] | None] = ContextVar("unanswered", default=None)


def note(question: Question) -> Question:
    """Return an exception, noted in the capture in progress."""
    unanswered = _unanswered.get()
    if unanswered is not None and not any(question is each for each in unanswered):
        unanswered.append(question)
    return question


def count() -> int:
    return len(_unanswered.get() or ())


def forget(since: int) -> None:
    """Forget what was noted since that count: another way was found, which needs no answer."""
    del (_unanswered.get() or [])[since:]


@contextmanager
def asking() -> Iterator[None]:
    """Note what symbols are asked in this block, and raise the first unanswered question.

    An error that a function raises after it caught a question is only a consequence.
    """
    unanswered: list[Exception] = []
    token = _unanswered.set(unanswered)
    try:
        yield
    except Exception as error:
        if unanswered and unanswered[0] is not error:
            raise unanswered[0] from error
        raise
    else:
        if unanswered:
            raise unanswered[0]
    finally:
        _unanswered.reset(token)
        unanswered.clear()  # their tracebacks lead to this frame, and to the call's objects


@contextmanager
def crossing(*kinds: type[Exception]) -> Iterator[None]:
    """Note in this capture what another capture inside it raises into the user's code."""
    try:
        yield
    except kinds as question:
        note(question)
        raise
