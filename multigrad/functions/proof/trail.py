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

from ...graph.ir.graph import Location

Step = tuple[str, int, str, int]  # file, line, variable, how often it was met
RETURNED = "return"


class Trail:
    """What each executed line of some files assigned, in order."""

    def __init__(self, files: Collection[str]) -> None:
        self.files = files
        self.steps: dict[Step, Any] = {}
        self._counts: dict[tuple[str, int, str], int] = {}
        self._before: dict[FrameType, tuple[int, dict[str, Any]]] = {}

    def enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Follow a frame of one of the files."""
        if frame.f_code.co_filename not in self.files:
            return None
        self._before[frame] = (frame.f_lineno, dict(frame.f_locals))
        return self.follow

    def follow(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Note what the line that has ended assigned."""
        line, before = self._before[frame]
        now = dict(frame.f_locals)
        for name, value in now.items():
            if before.get(name) is not value:
                self._note(frame, line, name, value)
        self._before[frame] = (frame.f_lineno, now)
        if event == "return":
            self._note(frame, frame.f_lineno, RETURNED, argument)
            del self._before[frame]
        return self.follow

    def _note(self, frame: FrameType, line: int, name: str, value: Any) -> None:
        place = (frame.f_code.co_filename, line, name)
        count = self._counts[place] = self._counts.get(place, 0) + 1
        self.steps[(*place, count)] = value


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
        agree: whether a tensor of the original's and a symbolic value are the same; True where that
            cannot be told.
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
