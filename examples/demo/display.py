"""What is shown while the frameworks train: a bar, or lines where there is no terminal."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape

from multigrad.command.options import make_bar

from .results import Results
from .runs import Doing, Event, Gap, Imported, Outcome, Run

# Seconds of silence in a pipe or a log before it hears what goes on. The import of PyTorch
# holds the interpreter, and the thread that would speak, for up to 1.2 s.
QUIET = 1.5


class LiveProgress:
    """Records what happens, and shows it: a bar that counts networks, and lines."""

    def __init__(self, console: Console, results: Results) -> None:
        self.console, self.results = console, results
        self.doing: dict[str, str] = {}
        self.imported: dict[str, float] = {}
        self.bar = make_bar(console)
        self.networks = len(results.frameworks) * len(results.configurations)
        self.task = self.bar.add_task("starting", total=self.networks)
        self.spoken = time.monotonic()
        self.ended = threading.Event()

    def __enter__(self) -> Self:
        self.bar.start()
        if self.bar.disable:
            threading.Thread(target=self.break_silence, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.ended.set()
        self.bar.stop()

    def break_silence(self) -> None:
        """Say what goes on whenever nothing has been printed for a while."""
        start = time.monotonic()
        while not self.ended.wait(0.1):
            now = time.monotonic()
            if now - self.spoken >= QUIET:
                done = f"{len(self.results.outcomes)} of {self.networks} networks"
                self.say(f"{self.describe()} ... {done}, {now - start:.0f} s")

    def say(self, line: str) -> None:
        """Print a line where no bar is drawn."""
        if self.bar.disable:
            self.print(escape(line))

    def print(self, line: str) -> None:
        self.spoken = time.monotonic()
        self.console.print(line, highlight=False, soft_wrap=True)

    def begin(self, what: str) -> None:
        """Name what is done from now on."""
        self.doing = {what: ""}
        self.say(f"{what} ...")
        self.bar.update(self.task, description=self.describe())

    def describe(self) -> str:
        """Return what each framework does."""
        return "; ".join(f"{name}: {what}" if what else name for name, what in self.doing.items())

    def hear(self, event: Event) -> None:
        """Record an event, in the bar and in the results; two threads call it."""
        name = event.framework
        if isinstance(event, Doing):
            # Replaced, not changed: the thread that breaks the silence may be reading it.
            self.doing = {n: what for n, what in self.doing.items() if what} | {name: event.what}
            self.bar.update(self.task, description=escape(self.describe()))
        elif isinstance(event, Imported):
            self.results.versions[name] = event.version
            self.imported[name] = event.seconds
            self.say(f"training {name} ...")
        else:
            self.results.outcomes.append(event)
            self.bar.advance(self.task)
            outcomes = [each for each in self.results.outcomes if each.framework == name]
            if len(outcomes) == len(self.results.configurations):
                self.doing = {n: what for n, what in self.doing.items() if n != name}
                self.print(f"{name:<10} {describe_outcomes(outcomes, self.imported.get(name))}")


def describe_outcomes(outcomes: list[Outcome], imported: float | None) -> str:
    seconds = [outcome.seconds for outcome in outcomes if isinstance(outcome, Run)]
    gaps = [outcome for outcome in outcomes if isinstance(outcome, Gap)]
    failed = sum(gap.failed for gap in gaps)
    parts = []
    if imported is not None:
        parts.append(f"{len(seconds)} networks trained in {sum(seconds):.1f} s")
        parts.append(f"imported in {imported:.1f} s")
    if failed:
        parts.append(f"[red]{failed} failed[/red]")
    if len(gaps) > failed:
        parts.append(f"{len(gaps) - failed} not compared")
    return ", ".join(parts)
