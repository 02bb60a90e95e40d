"""What frameworks compile stays in memory: a worker lets go of it between tests when it is much.

XLA keeps about a megabyte for each op, shape and dtype that a test has met; Dynamo keeps code too.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from pathlib import Path

STATM = Path("/proc/self/statm")


def installed() -> int:
    """Return the bytes of memory that the machine has; 0 where the system does not say."""
    names = os.sysconf_names if hasattr(os, "sysconf_names") else {}
    if "SC_PHYS_PAGES" not in names:
        return 0
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


GIBIBYTE = 1 << 30
# Clearing costs seconds, and the common ops are traced and compiled again: of what the machine has,
# two workers may fill a quarter.
LEAST, MOST = 7 << 28, 3 * GIBIBYTE
ROOM = min(max(LEAST, installed() // 8), MOST)
GROWTH = GIBIBYTE


class Memory:
    """The memory of this process, and how much it may grow before it is cleared again."""

    def __init__(self) -> None:
        self.limit = ROOM

    def keep_small(self) -> None:
        """Forget what was compiled where the process has become large."""
        if resident() <= self.limit:
            return
        forget_compiled()
        self.limit = max(ROOM, resident() + GROWTH)


def resident() -> int:
    """Return the bytes of this process that are in memory; 0 where the system does not say."""
    if not STATM.exists():
        return 0
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def forget_compiled() -> None:
    """Empty the caches of compilers that are loaded, and give the memory back to the system."""
    if jax := sys.modules.get("jax"):
        jax.clear_caches()
    if "torch._dynamo" in sys.modules:
        sys.modules["torch"].compiler.reset()
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
