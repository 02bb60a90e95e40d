"""What ranks have that do not do the same, and what they say then."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RANK = int(os.environ["RANK"])


def mine(first: Any, second: Any) -> Any:
    return (first, second)[RANK]


def said(run: Callable[[], Any]) -> str:
    """Return what a run raises, with its notes."""
    try:
        run()
    except Exception as error:  # noqa: BLE001
        return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
    return ""


def failing(ctx: Any, grad_out: Any, tin: Any) -> Any:
    """A rule that raises on rank 1."""
    if RANK == 1:
        raise ValueError("no gradient on this rank")
    return grad_out


def kill_second() -> None:
    """Kill rank 1, after rank 0 has come as far: it may still be in what both have done so far."""
    came = Path(os.environ["RANKS_FOLDER"]) / "rank 0 came as far"
    if RANK == 0:
        came.touch()
        return
    while not came.exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
