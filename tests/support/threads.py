"""Code on threads of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def on_threads(run: Callable[[Any], object], *arguments: Any) -> None:
    """Run a function on one thread for each argument, and wait until all have ended."""
    threads = [threading.Thread(target=run, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
