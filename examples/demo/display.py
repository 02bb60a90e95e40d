"""What is shown while the frameworks train: a bar, or lines where there is no terminal."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import TextColumn

from multigrad.command.options import make_bar

from .runs import Configuration, Gap, Outcome, Run

if TYPE_CHECKING:
    from typing_extensions import Self

# Seconds of silence in a pipe or a log before it hears what goes on. The import of TensorFlow
# holds the interpreter, and the thread that would speak, for up to 1.2 s.
QUIET = 1.5


class LiveProgress:
    """A bar that moves with every epoch, and a printed line for what has ended."""

    def __init__(self, console: Console, runs: int, epochs: int) -> None:
        self.console = console
        self.runs, self.epochs = runs, epochs
        self.finished = 0
        self.outcomes: list[Outcome] = []
        self.imported: float | None = None
        self.bar = make_bar(console, TextColumn("epochs  {task.fields[accuracy]}"))
        self.draws = not self.bar.disable
        self.task = self.bar.add_task("starting", total=runs * epochs, accuracy="")
        self.doing = "starting"
        self.since = self.spoken = time.monotonic()
        self.ended = threading.Event()

    def __enter__(self) -> Self:
        self.bar.start()
        if not self.draws:
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
        """Say what goes on, and for how long, whenever nothing has been printed for a while."""
        while not self.ended.wait(0.1):
            now = time.monotonic()
            if now - self.spoken >= QUIET:
                self.say(f"{self.doing} ... {now - self.since:.0f} s")

    def say(self, line: str) -> None:
        """Print a line where no bar is drawn."""
        self.spoken = time.monotonic()
        if not self.draws:
            self.print(escape(line))

    def print(self, line: str) -> None:
        self.spoken = time.monotonic()
        self.console.print(line, highlight=False, soft_wrap=True)

    def begin(self, doing: str) -> None:
        self.name(doing)
        self.say(f"{doing} ...")

    def name(self, doing: str) -> None:
        """Name what is done from now on, in the bar or when the silence is broken."""
        self.doing, self.since = doing, time.monotonic()
        self.bar.update(self.task, description=escape(doing), accuracy="")

    def begin_framework(self, framework: str) -> None:
        self.imported = None
        self.begin(f"importing {framework}")

    def begin_run(self, framework: str, configuration: Configuration) -> None:
        if self.imported is None:
            self.imported = time.monotonic() - self.since
            self.begin(f"training {framework}")
        network = f"{configuration.forward}, {configuration.rule}"
        self.name(f"training {framework}: {network} ({self.finished + 1} of {self.runs})")

    def end_epoch(self, accuracy: float) -> None:
        self.bar.update(self.task, advance=1, accuracy=f"accuracy {accuracy:.3f}")

    def count_run(self) -> None:
        """Count a run that has ended; the bar jumps over what a gap left out."""
        self.finished += 1
        self.bar.update(self.task, completed=self.finished * self.epochs)

    def end_run(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.count_run()

    def end_framework(self, framework: str) -> None:
        self.print(f"{framework:<10} {describe_outcomes(self.outcomes, self.imported)}")
        self.outcomes = []


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
