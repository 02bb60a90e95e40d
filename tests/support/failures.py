"""A failure at every step of a call: what it acts on must be as before, and the call work then.

A step is a call of a function by our code, or within it: the n-th one raises an interrupt, which no
`except Exception` stops, for each n of a sample. Before the first and after each failure somebody
looks at what the call acts on.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Generic, TypeVar

import multigrad

S = TypeVar("S")
ROOT = Path(multigrad.__file__).parents[1]
# Backends stand in a folder of a checkout, and beside the package where they are installed.
OURS = (str(ROOT / "multigrad"), f"{ROOT / 'backends'}/")
# What ends something may be interrupted, too; no code in Python is safe there.
ENDS = frozenset({"__exit__", "__del__"})
LIBRARY = ("contextlib.py", "weakref.py", "threading.py")


class Interrupt(KeyboardInterrupt):
    """What is raised."""


@dataclass
class Row(Generic[S]):
    """A call that acts on something.

    Attributes:
        make: gives something new to act on.
        act: the call.
        look: gives what is observable of it, as data that is compared.
        check: the call that is corrected; raises where it does not do what it should.
    """

    make: Callable[[], S]
    act: Callable[[S], Any]
    look: Callable[[S], Any]
    check: Callable[[S], None]


class Steps:
    """Counts the steps, and raises at one of them."""

    def __init__(self, at: int = 0) -> None:
        self.at, self.count, self.place = at, 0, ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or self.place or not is_step(frame):
            return
        self.count += 1
        if self.count == self.at:
            around = frame.f_back
            assert around is not None
            code = around.f_code
            self.place = f"{frame.f_code.co_name}, called in {code.co_filename}:{around.f_lineno}"
            raise Interrupt(self.place)

    def run(self, call: Callable[[], Any]) -> bool:
        """Return whether the call came to its end."""
        sys.setprofile(self)
        try:
            call()
        except Interrupt:
            return False
        finally:
            sys.setprofile(None)
        return True


def is_step(frame: FrameType) -> bool:
    code, around = frame.f_code, frame.f_back
    if code.co_flags & inspect.CO_GENERATOR or code.co_filename.endswith(LIBRARY):
        return False
    if not any(each and each.f_code.co_filename.startswith(OURS) for each in (frame, around)):
        return False
    while frame is not None:
        if frame.f_code.co_name in ENDS:
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return True


def fail_everywhere(row: Row[Any], last: int = 60, most: int = 60) -> None:
    """Let a call fail at its last steps and at a sample of those before, and compare."""
    for _ in range(2):  # in the first call is made what is made once
        given, steps = row.make(), Steps()
        assert steps.run(lambda: row.act(given))  # noqa: B023
        row.look(given)
    total = steps.count
    first = max(total - last, 0)
    tried = [*range(1, first, max(first // most, 1)), *range(first + 1, total + 1)]
    failed = 0
    for n in tried:
        given = row.make()
        before = row.look(given)
        steps = Steps(n)
        ended = steps.run(lambda: row.act(given))  # noqa: B023 (it is called here)
        found = row.look(given)
        if not ended:  # else the step was one whose errors Python ignores
            failed += 1
            assert found == before, steps.place
            row.check(given)
    assert failed > len(tried) / 2, (failed, tried)
