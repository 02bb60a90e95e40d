"""Imports during which nobody looks for garbage: there is none in them, and a search goes through
all that the frameworks have imported before, for longer than our modules take.

Nor is one due for what they made. Python searches all that is old where a quarter has come to it;
what it looked at young has come, and what was frozen has not (0.25 s beside TensorFlow).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from .threads import make_lock

_lock = make_lock()
_pausing: list[bool] = []  # one for each who imports; the first: whether it was on before


@contextmanager
def uncollected() -> Iterator[None]:
    """Let Python's garbage collector rest, and go on as before when the last has left; all that was
    made meanwhile is as old as if the collector had kept it for long.
    """
    if gc.isenabled():
        gc.collect(1)  # now, as garbage of others would age, too
    with _lock:
        _pausing.append(gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            was_on = _pausing[0]
            _pausing.pop()
            if was_on and not _pausing:
                _age()
                gc.enable()


def _age() -> None:
    """Put all objects into the oldest generation, where no others are frozen."""
    if gc.get_freeze_count() == 0:
        gc.freeze()
        gc.unfreeze()
