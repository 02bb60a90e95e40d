"""A pause of the garbage collector, which all threads share."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from .locks import make_lock

_pause_lock = make_lock()
# One entry per import in progress; the first says whether the collector was on.
_pauses: list[bool] = []


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector, until the last such block ends.

    All that is made meanwhile is then as old as if the collector had kept it for long.
    """
    if gc.isenabled():
        gc.collect(1)  # now, as garbage of others would age, too
    # Several threads may import at once; the last to leave restores what the first found.
    with _pause_lock:
        _pauses.append(gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _pause_lock:
            was_on = _pauses[0]
            _pauses.pop()
            if was_on and not _pauses:
                if gc.get_freeze_count() == 0:  # all into the oldest generation
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()
