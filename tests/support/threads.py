"""Code on threads of its own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import multigrad as xg


def on_threads(run: Callable[[Any], object], *arguments: Any) -> None:
    """Run a function on one thread for each argument, and wait until all have ended."""
    threads = [threading.Thread(target=run, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def race(run: Callable[[], Any]) -> tuple[list[Any], list[Any]]:
    """Run a function on two threads that start at once and take turns as often as Python can make
    them; return the results and the errors.
    """
    barrier, results, errors = threading.Barrier(2), [], []

    def start(_: Any) -> None:
        barrier.wait()
        try:
            results.append(run())
        except xg.RuleError as error:
            errors.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        on_threads(start, *range(2))
    finally:
        sys.setswitchinterval(before)
    return results, errors
