"""Imports during which nobody looks for garbage: there is none in them, and a search goes through
all that the frameworks have imported before, for longer than our modules take.
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
    """Let Python's garbage collector rest, and go on as before when the last has left."""
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
                gc.enable()
