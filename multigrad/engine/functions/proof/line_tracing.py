"""Python's line tracing in proofs: a limit of steps, and the line where two runs part.

`StepLimit` stops code that may not end on made-up numbers; it costs nothing without a loop.
`find_parting` runs only after a proof has failed. Both work whatever the library.
"""

from __future__ import annotations

import dis
import linecache
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from ....core.backend.discovery import backend_of
from ....core.ir.graph import Location
from ....core.trace.trace import Value
from ...capture.user_code.inspection import nested_codes, plain_function
from ...capture.user_code.libraries import is_library_file
from ...capture.user_code.snapshot import codes_of

# --- a limit of steps -----------------------------------------------------------------------------
MOST_STEPS = 100_000  # lines of an original on one sample, in the functions that have a loop
JUMPS_BACK = frozenset(code for name, code in dis.opmap.items() if "JUMP_BACKWARD" in name)


class TooLong(Exception):
    """Code has not ended on a sample."""


class _Stop(BaseException):
    """Leaves code that catches `Exception`."""


class StepLimit:
    """A context that user code leaves by `TooLong` if it takes more than MOST_STEPS lines.

    Nothing is counted if a debugger or coverage traces the code already, nor if it has no loop.

    Args:
        functions: the user's, which may lie in an installed package.
        turns: whether a library's loop calls them: then they are counted without loops, too.
    """

    def __init__(self, functions: Iterable[Any], *, turns: bool = False) -> None:
        plain_functions = [p for p in map(plain_function, functions) if p is not None]
        codes = [code for each in plain_functions for code in nested_codes(each.__code__)]
        self._files = {code.co_filename for code in codes}
        self._others: set[str] = set()  # files of libraries and of ours, as they are met
        codes += codes_of(*plain_functions)
        self._counts = turns or any(not JUMPS_BACK.isdisjoint(c.co_code[::2]) for c in codes)
        self._follows = False
        self._steps = 0

    def __enter__(self) -> None:
        self._steps = MOST_STEPS
        self._follows = self._counts and sys.gettrace() is None
        if self._follows:
            sys.settrace(self._enter)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._follows:
            sys.settrace(None)
        if isinstance(error, _Stop):
            raise TooLong(str(error)) from None

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if file in self._others:
            return None
        if file not in self._files and is_library_file(file):
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


@contextmanager
def uncounted() -> Iterator[None]:
    """Count nothing where code is traced, or is ours: no loop of it waits for values."""
    follower = sys.gettrace()
    is_ours = isinstance(getattr(follower, "__self__", None), StepLimit)
    if is_ours:
        sys.settrace(None)
    try:
        yield
    finally:
        if is_ours:
            sys.settrace(follower)


# --- where an original parts from its graph ------------------------------------------------------
def find_parting(
    run_original: Callable[[], Any],
    run_capture: Callable[[], Any],
    files: Collection[str],
    agree: Callable[[Any, Any], bool],
) -> Location | None:
    """Return the first line after which a variable of the original is not what capture took it for.

    `agree` tells whether an array of the original and a node are the same, or may be.
    """
    trails = Trail(files), Trail(files)
    for trail, run in zip(trails, (run_original, run_capture), strict=True):
        tracer_before = sys.gettrace()
        sys.settrace(trail.enter)
        try:
            run()
        except Exception:  # as far as it came
            pass
        finally:
            sys.settrace(tracer_before)
    for step, value in trails[0].steps.items():
        if step in trails[1].steps and not agree(value, trails[1].steps[step]):
            text = linecache.getline(step.file, step.line).strip()
            return Location(step.file, step.line, text)
    return None


class Step(NamedTuple):
    """One assignment: the line, the variable, and how often its line has run by then."""

    file: str
    line: int
    variable: str
    visit: int


RETURNED = "return"  # the variable of what a function returns


class Trail:
    """What each line of some files that ran has assigned, or written in place, in order.

    `steps` has the values: copies of the original's arrays, or the nodes of a capture.
    """

    def __init__(self, files: Collection[str]) -> None:
        self.files = files
        self.steps: dict[Step, Any] = {}
        self._counts: dict[tuple[str, int], int] = {}  # by file and line
        # By frame: the line that runs now, and the variables as they were before it.
        self._before: dict[FrameType, tuple[int, dict[str, Any]]] = {}

    def enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in self.files:
            return None
        self._before[frame] = (frame.f_lineno, _variables(frame))
        return self.follow

    def follow(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Note what the line that has ended assigned."""
        line, old_variables = self._before[frame]
        variables = _variables(frame)
        place = (frame.f_code.co_filename, line)
        count = self._counts[place] = self._counts.get(place, 0) + 1
        for name, value in variables.items():
            if name not in old_variables or not _is_same(old_variables[name], value):
                self.steps[Step(*place, name, count)] = value
        self._before[frame] = (frame.f_lineno, variables)
        if event == "return":
            self.steps[Step(*place, RETURNED, count)] = _copy(argument)
            del self._before[frame]
        return self.follow


def _variables(frame: FrameType) -> dict[str, Any]:
    return {name: _copy(value) for name, value in frame.f_locals.items()}


def _copy(value: Any) -> Any:
    # A later line may write into the value.
    if type(value) is tuple:
        return tuple(map(_copy, value))
    if isinstance(value, Value):
        return value.node
    try:
        return np.array(backend_of(value).tensors.to_numpy(value))
    except Exception:  # no tensor, or one without numbers
        return value


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    return a is b
