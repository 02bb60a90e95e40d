"""How far schedules are, as Variables of a layer or an optimizer.

A schedule's number is a Variable; so is its step, and whatever brings Variables back brings it
back: `tf.train.Checkpoint`, Orbax and state trees, torch's state dicts. Nothing tells of that, so
the step is looked at before the schedule moves on and before it is saved.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .steps import assign_number, is_taken, read_array
from .tracing import BACKEND

COUNT = "_count"  # how the name of such a Variable ends


class CountVariable:
    """The step of one schedule.

    Attributes:
        variable: the Variable.
        count: what is known to be there.
    """

    __slots__ = ("count", "seen", "variable")

    def __init__(self, variable: Any, count: int) -> None:
        self.variable = variable
        self.count = count
        self.seen = note_value(variable)

    def put(self, count: int, models: Iterable[Any]) -> None:
        """Put a step there."""
        assign_number(self.variable, count, models)
        self.count = count
        self.seen = note_value(self.variable)

    def brought(self) -> int | None:
        """Return the step that somebody else has put there, once; None: nobody has."""
        if is_taken(self.variable):  # by a step of fit, which hands it on as it is
            return None
        now = note_value(self.variable)
        if now is not None and self.seen is not None and all(map(_is, now, self.seen)):
            return None
        self.seen = now
        before = self.count
        self.count = int(read_array(self.variable))
        return None if self.count == before else self.count


def note_value(variable: Any) -> tuple[Any, ...] | None:
    """Return what is another object once the Variable has another value, without a look at the
    device; None where the framework does not tell.
    """
    value = getattr(variable, "_value", None)
    if value is None or BACKEND == "tensorflow":
        return None
    return value, getattr(value, "_version", None)


def _is(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) is int and a == b)
