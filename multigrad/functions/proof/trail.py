"""Where an original and its graph part: both run line by line, and what each line assigned is
compared.

Costs nothing until a proof has failed. A line is told by Python's own tracing, so that it works for
every library.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np

from ...backend.finding.discovery import backend_of
from ...graph.ir.graph import Location
from ...trace.trace import Value

Step = tuple[str, int, str, int]  # file, line, variable, how often it was met
RETURNED = "return"


class Trail:
    """What each executed line of some files assigned, or wrote in place, in order: as arrays, and
    as nodes of a graph, which no later line writes into.
    """

    def __init__(self, files: Collection[str]) -> None:
        self.files = files
        self.steps: dict[Step, Any] = {}
        self._counts: dict[tuple[str, int], int] = {}
        self._before: dict[FrameType, tuple[int, dict[str, Any]]] = {}

    def enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Follow a frame of one of the files."""
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
    """Return a value as it is now."""
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
    """Note what runs on this thread."""
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
