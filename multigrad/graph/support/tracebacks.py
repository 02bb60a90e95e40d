"""What a traceback shows: the user's frames, those of the libraries in between, and few of ours.

A mistake in the user's code raises through dozens of our frames, which hide the line that matters.
`shortened` takes them out where an error leaves us, at the doors that users call:

    except Exception as error:
        shorten(error)
        raise

A `try` costs nothing until something is raised. What goes out is the error itself, with its notes;
only the tracebacks change, of what it was raised from, too. With MULTIGRAD_TRACEBACK=full nothing
is taken out.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import ParamSpec, TypeVar

from ...errors import MultigradError

P, R = ParamSpec("P"), TypeVar("R")
VARIABLE, FULL = "MULTIGRAD_TRACEBACK", "full"
ROOT = __name__.partition(".")[0]
ABOVE = "__cause__", "__context__"


def shorten(error: BaseException) -> None:
    """Take our frames out of the traceback of an error that is being handled, but for the innermost
    where that raised it, and what we had tried before out of what led to it.
    """
    if shows_all() or _is_signal(error):
        return
    seen: set[int] = set()
    pending: list[BaseException] = [error]
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        each.__context__ = _not_ours(each.__context__)
        each.__traceback__ = _without_ours(each.__traceback__)
        pending += [other for name in ABOVE if (other := getattr(each, name)) is not None]
        pending += getattr(each, "exceptions", ())  # of a group


def shows_all() -> bool:
    # Read each time, as it may change while a program runs.
    return os.environ.get(VARIABLE) == FULL


def door(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function whose errors are shortened; for what is not called often."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            shorten(error)
            raise

    return call


def _is_signal(error: BaseException) -> bool:
    # Errors of ours that no user sees tell a capture what to do next, by their frames at times.
    return _is_of_us(type(error).__module__) and not isinstance(error, MultigradError)


def _is_of_us(module: object) -> bool:
    # Also emitted code, and backends: multigrad_torch.
    root = str(module).partition(".")[0]
    return root == ROOT or root.startswith(f"{ROOT}_")


def _steps(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_ours(step: TracebackType) -> bool:
    frame = step.tb_frame
    # A copy of the user's function has its file; that of the rule has no name of a module.
    is_emitted = frame.f_code.co_filename.startswith(f"<{ROOT}")
    return is_emitted or _is_of_us(frame.f_globals.get("__name__"))


def _not_ours(error: BaseException | None) -> BaseException | None:
    # An error that we have handled ourselves is a detour of ours: its traceback begins where it was
    # handled. What led to it may be the user's.
    # An error that is raised again may have led to itself.
    seen: set[int] = set()
    while error is not None and (_is_signal(error) or _is_handled_by_us(error)):
        if id(error) in seen:
            return None
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return error


def _is_handled_by_us(error: BaseException) -> bool:
    first = error.__traceback__
    return first is not None and _is_ours(first)


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    steps = list(_steps(traceback))
    kept = [step for i, step in enumerate(steps, 1) if i == len(steps) or not _is_ours(step)]
    shorter: TracebackType | None = None
    for step in reversed(kept):
        shorter = TracebackType(shorter, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return shorter
