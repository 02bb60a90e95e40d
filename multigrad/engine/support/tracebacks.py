"""Tracebacks without our frames; and emitted code gives way to the user's line that it computes, as
if this had called what raised. Of what an error was raised from, too, only the tracebacks change.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any

from ...core.support.tracebacks import shows_all
from ...errors import MultigradError

ROOT = __name__.partition(".")[0]
ABOVE = "__cause__", "__context__"
TOLD = -1  # the instruction of a frame that we add, which has none


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


def _is_signal(error: BaseException) -> bool:
    # Errors of ours that no user sees tell a capture what to do next, by their frames at times.
    return is_of_us(type(error).__module__) and not isinstance(error, MultigradError)


def is_of_us(module: object) -> bool:
    """Return whether a module is ours: also emitted code, and backends as multigrad_torch."""
    root = str(module).partition(".")[0]
    return root == ROOT or root.startswith(f"{ROOT}_")


def _steps(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_ours(step: TracebackType) -> bool:
    frame = step.tb_frame
    # A copy of the user's function has its file; that of the rule has no name of a module.
    return _is_emitted(frame.f_code) or is_of_us(frame.f_globals.get("__name__"))


def _is_emitted(code: CodeType) -> bool:
    return code.co_filename.startswith(f"<{ROOT}")


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
    # An error passes several doors.
    told = [(s.tb_frame.f_code.co_filename, s.tb_lineno) for s in steps if s.tb_lasti == TOLD]
    shorter: TracebackType | None = None
    for step in reversed(steps):
        if step is steps[-1] or not _is_ours(step):
            shorter = TracebackType(shorter, step.tb_frame, step.tb_lasti, step.tb_lineno)
        for place in _written(step):
            if place not in told:
                frame = _frame_in(place[0], step.tb_frame.f_code.co_name)
                shorter = TracebackType(shorter, frame, TOLD, place[1])
    return shorter


def _written(step: TracebackType) -> list[tuple[str, int]]:
    """Return where the user wrote what raised in emitted code, the last line first."""
    code = step.tb_frame.f_code
    known: Any = linecache.cache.get(code.co_filename) if _is_emitted(code) else None
    if known is None or not hasattr(known[2], "places"):
        return []
    line = [*known[2]][step.tb_lineno - 1]
    start, end = _columns(step)
    part = line.encode()[start:end].decode(errors="ignore")
    return sorted([(at.file, at.line) for at in known[2].places(line, part)], reverse=True)


def _columns(step: TracebackType) -> tuple[int, int]:
    code = step.tb_frame.f_code
    positions: Any = [*code.co_positions()][step.tb_lasti // 2]
    if None not in positions and positions[0] == positions[1]:
        return positions[2], positions[3]
    return 0, 0


def _frame_in(file: str, name: str) -> FrameType:
    code = compile("here()", file, "eval").replace(co_name=name)
    return eval(code, {"here": sys._getframe})
