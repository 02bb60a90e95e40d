"""Code that may not end on numbers that somebody else made up: it is stopped after so many steps.

Lines of the user's own code are counted, and calls of it from a library's loop. Costs nothing where
no loop is.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from ...capture.code.callables import plain_function
from ...capture.code.libraries import is_library_file
from ...capture.code.table import nested_codes
from .purity import codes_of

MOST_STEPS = 100_000  # lines of an original on one sample, in the functions that have a loop
MOST_TURNS = 2_000  # of a graph's loop, which NumPy runs op by op
OURS = str(Path(__file__).parents[2])
LOOPS = frozenset(
    code for name, code in dis.opmap.items() if "JUMP_BACKWARD" in name or name == "JUMP_ABSOLUTE"
)
if "JUMP_ABSOLUTE" in dis.opmap:  # before Python 3.11 `while` ends with a test
    LOOPS |= {code for name, code in dis.opmap.items() if name.startswith("POP_JUMP_IF")}


class TooLong(Exception):
    """Code has not ended on a sample."""


class _Stop(BaseException):
    """Leaves code that catches exceptions."""


@contextmanager
def uncounted() -> Iterator[None]:
    """Count nothing where code is traced, or is ours: no loop of it waits for values, and each call
    costs.
    """
    follower = sys.gettrace()
    is_ours = isinstance(getattr(follower, "__self__", None), Stoppable)
    if is_ours:
        sys.settrace(None)
    try:
        yield
    finally:
        if is_ours:
            sys.settrace(follower)


class Stoppable:
    """A context that user code leaves by `TooLong` where it takes too many steps.

    Where a debugger or a measurement of coverage follows the code already, nothing is counted.

    Args:
        functions: the user's, which may lie in an installed package.
        turns: whether a library's loop calls them; else nothing is counted where they have none.
    """

    def __init__(self, functions: Iterable[Any], *, turns: bool = False) -> None:
        plain = [p for p in map(plain_function, functions) if p is not None]
        codes = [code for each in plain for code in nested_codes(each.__code__)]
        self._files = {code.co_filename for code in codes}
        self._others: set[str] = set()  # files of libraries and of ours, as they are met
        codes += codes_of(*plain)
        self._counts = turns or any(not LOOPS.isdisjoint(c.co_code[::2]) for c in codes)
        self._follows = False
        self._steps = 0

    def __enter__(self) -> None:
        self._steps = MOST_STEPS
        self._follows = self._counts and sys.gettrace() is None
        if self._follows:
            sys.settrace(self._enter)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._follows:
            sys.settrace(None)
        if isinstance(error, _Stop):
            raise TooLong(str(error)) from None

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if file in self._others:
            return None
        if file not in self._files and (file.startswith(OURS) or is_library_file(file)):
            self._others.add(file)
            return None
        self._count(frame, event, argument)
        return self._count

    def _count(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._steps -= 1
        if self._steps < 0:
            name, line = frame.f_code.co_name, frame.f_lineno
            raise _Stop(
                f"{name!r} has not ended after {MOST_STEPS:,} steps on numbers that are made up "
                f"(line {line})"
            )
        return self._count
