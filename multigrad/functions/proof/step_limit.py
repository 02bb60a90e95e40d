"""Limits on user code in a proof: how long it may run, whether it may act, where it goes wrong.

Code is stopped where it may not end on made-up numbers; code that may act runs once; lines are
compared with the graph to find where the two part. Python's own tracing tells a line, whatever the
library. This costs nothing where no loop is, and until a proof has failed.
"""

from __future__ import annotations

import dis
import functools
import linecache
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import numpy as np

from ...backend.discovery import backend_of
from ...capture.user_code.inspection import is_library_file, nested_codes, plain_function
from ...capture.user_code.snapshot import functions_of
from ...graph.ir.graph import Location
from ...trace.trace import Value

# --- whether it may act, as far as its bytecode tells --------------------------------------------


_ACTING = """
    append debug delattr exec extend info input next open print setattr warn warning write
    writelines
"""
ACTING_NAMES = frozenset(_ACTING.split())
ACTING_MODULES = frozenset(
    {"logging", "os", "shutil", "socket", "subprocess", "sys", "time", "warnings"}
)
STORES = frozenset(
    dis.opmap[name]
    for name in ("DELETE_ATTR", "DELETE_GLOBAL", "STORE_ATTR", "STORE_DEREF", "STORE_GLOBAL")
)
# Objects of one call alone: no other code sees what is written to them.
OWN_OBJECTS = frozenset({"ctx"})


def may_act(*functions: Any) -> bool:
    """Return whether functions, or the user's helpers that they mention, may have side effects."""
    # Without it: test_a_proof_repeats_no_warning_of_the_users_for_each_sample hears five.
    return any(map(_acts, codes_of(*functions)))


def codes_of(*functions: Any) -> Iterator[types.CodeType]:
    """Yield the code of functions, and of the user's helpers that they mention."""
    for plain in functions_of(*functions):
        yield from nested_codes(plain.__code__)


@functools.lru_cache(maxsize=1024)  # each dtype that is met asks once more
def _acts(code: types.CodeType) -> bool:
    names = set(code.co_names)
    if names & ACTING_NAMES or names & ACTING_MODULES:
        return True
    # The operations stand at even places; to decode them all takes long.
    if STORES.isdisjoint(code.co_code[::2]):
        return False
    before = ""
    for step in dis.get_instructions(code):
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            return True
        if step.opname == "STORE_DEREF" and step.argval in code.co_freevars:
            return True
        if step.opname in ("STORE_ATTR", "DELETE_ATTR") and before not in OWN_OBJECTS:
            return True
        before = str(step.argval) if step.opname.startswith("LOAD_FAST") else ""
    return False


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
    """Leaves code that catches `Exception`."""


@contextmanager
def uncounted() -> Iterator[None]:
    """Count nothing where code is traced, or is ours: no loop of it waits for values."""
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
        # A debugger or coverage traces already, and only one can.
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


# --- where it parts from its graph ---------------------------------------------------------------


Step = tuple[str, int, str, int]  # file, line, variable, how often it was met
RETURNED = "return"


class Trail:
    """The values that each executed line of some files assigned, or wrote in place, in order.

    They are arrays, or nodes of a graph, which no later line writes into.
    """

    def __init__(self, files: Collection[str]) -> None:
        self.files = files
        self.steps: dict[Step, Any] = {}
        self._counts: dict[tuple[str, int], int] = {}
        self._before: dict[FrameType, tuple[int, dict[str, Any]]] = {}

    def enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in self.files:
            return None
        self._before[frame] = (frame.f_lineno, _kept(frame))
        return self.follow

    def follow(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Note what the line that has ended assigned."""
        line, before = self._before[frame]
        now = _kept(frame)
        place = (frame.f_code.co_filename, line)
        count = self._counts[place] = self._counts.get(place, 0) + 1
        for name, value in now.items():
            if name not in before or not _is_same(before[name], value):
                self.steps[(*place, name, count)] = value
        self._before[frame] = (frame.f_lineno, now)
        if event == "return":
            self.steps[(*place, RETURNED, count)] = _keep(argument)
            del self._before[frame]
        return self.follow


def _kept(frame: FrameType) -> dict[str, Any]:
    return {name: _keep(value) for name, value in frame.f_locals.items()}


def _keep(value: Any) -> Any:
    # A copy: a later line may write into the value.
    if type(value) is tuple:
        return tuple(map(_keep, value))
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


@contextmanager
def following(trail: Trail) -> Iterator[None]:
    """Record what runs on this thread in a trail."""
    before = sys.gettrace()
    sys.settrace(trail.enter)
    try:
        yield
    finally:
        sys.settrace(before)


def find_parting(
    run_original: Callable[[], Any],
    run_capture: Callable[[], Any],
    files: Collection[str],
    agree: Callable[[Any, Any], bool],
) -> Location | None:
    """Return the first line after which a variable of the original is not what capture took it for.

    Args:
        agree: whether an array of the original's and a node are the same; True where that cannot be
            told.
    """
    trails = Trail(files), Trail(files)
    for trail, run in zip(trails, (run_original, run_capture), strict=True):
        try:
            with following(trail):
                run()
        except Exception:  # as far as it came
            pass
    for step, value in trails[0].steps.items():
        if step in trails[1].steps and not agree(value, trails[1].steps[step]):
            file, line = step[:2]
            return Location(file, line, linecache.getline(file, line).strip())
    return None
