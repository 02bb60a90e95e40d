"""Two processes: what is built on TensorFlow trains beside the other frameworks.

So two processors are busy, for about as long each. The second process imports what it needs and
says by a pipe what happens in it; an interrupt from the terminal reaches the first alone, which
ends the second.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection

from .frameworks import Framework
from .runs import Configuration, Gap, Run, Tell, run_each
from .task import Task

SECOND = ("tensorflow", "keras")


def run_all(
    task: Task,
    frameworks: Sequence[Framework],
    configurations: Sequence[Configuration],
    tell: Tell,
) -> None:
    """Train every configuration in every framework; `tell` hears of both processes."""
    second = [framework for framework in frameworks if framework.name in SECOND]
    first = [framework for framework in frameworks if framework not in second]
    if not (first and second):
        run_each(task, frameworks, configurations, tell)
        return
    with started(task, second, configurations, tell) as wait:
        run_each(task, first, configurations, tell)
        wait()


@contextmanager
def started(
    task: Task,
    frameworks: Sequence[Framework],
    configurations: Sequence[Configuration],
    tell: Tell,
) -> Iterator[Callable[[], None]]:
    """Train in a process of its own; give a function that waits for its end."""
    missing = {(framework.name, row): None for framework in frameworks for row in configurations}
    context = get_context("spawn")
    heard, says = context.Pipe(duplex=False)
    process = context.Process(target=train, args=(says, task, frameworks, configurations))
    # A process inherits that a signal is ignored, from its first instruction on.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, handler)
    says.close()

    def hear() -> None:
        # Closed however this ends: the process must not wait for one who no longer listens.
        with heard, suppress(EOFError, OSError, KeyboardInterrupt):
            while True:
                event = heard.recv()
                if isinstance(event, Run | Gap):
                    missing.pop((event.framework, event.configuration))
                tell(event)

    listener = threading.Thread(target=hear, daemon=True)
    listener.start()

    def wait() -> None:
        while listener.is_alive():
            listener.join(0.1)  # forever, it could not be interrupted on Windows
        if missing:
            process.join()
        for name, row in missing:
            tell(Gap(name, row, f"its process ended with code {process.exitcode}", failed=True))

    try:
        yield wait
    finally:
        process.terminate()
        process.join()
        listener.join()


def train(
    says: Connection,
    task: Task,
    frameworks: Sequence[Framework],
    configurations: Sequence[Configuration],
) -> None:
    """Train in the second process, and say what happens."""
    with says:
        run_each(task, frameworks, configurations, says.send)
