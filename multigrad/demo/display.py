"""What the terminal shows: live progress while the frameworks train, then the tables."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .parity import Comparison, Difference, find_worst
from .runs import Configuration, Gap, Outcome, Run
from .task import EPOCHS, FORWARDS

EXPECTED_DIFFERENCES = {"Logistic": 1, "Heaviside": 3}
"""Differing test predictions that rounding accounts for, measured over several seeds."""

CELL_WIDTH = 16
LABEL_WIDTH = 16


class LiveProgress:
    """A bar that moves with every epoch, and one printed line per finished run."""

    def __init__(self, console: Console, runs: int, epochs: int) -> None:
        self.console = console
        self.epochs = epochs
        self.finished = 0
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("epochs  {task.fields[accuracy]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self.task = self.bar.add_task("starting", total=runs * epochs, accuracy="")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.bar.stop()

    def begin_framework(self, framework: str) -> None:
        """Say which framework is being imported."""
        self.bar.update(self.task, description=f"importing {framework}", accuracy="")

    def begin_run(self, framework: str, configuration: Configuration) -> None:
        """Say what is being trained."""
        label = f"{framework}: {configuration.forward}, {configuration.rule}"
        self.bar.update(self.task, description=escape(label))

    def end_epoch(self, accuracy: float) -> None:
        """Move the bar."""
        self.bar.update(self.task, advance=1, accuracy=f"accuracy {accuracy:.3f}")

    def end_run(self, outcome: Outcome) -> None:
        """Print the outcome; the bar jumps over what a gap left out."""
        configuration = outcome.configuration
        label = f"{outcome.framework:<10} {configuration.forward:<9} {configuration.rule:<12}"
        self.end_line(f"{escape(label)} {describe_outcome(outcome)}")

    def end_line(self, line: str) -> None:
        """Print the line of a run that has ended."""
        self.finished += 1
        self.bar.update(self.task, completed=self.finished * self.epochs)
        self.console.print(line, highlight=False, soft_wrap=True)


def describe_outcome(outcome: Outcome) -> str:
    """Return an outcome as the end of a line."""
    if isinstance(outcome, Run):
        return f"accuracy {outcome.accuracy:.4f}  {outcome.seconds:5.1f} s"
    style = "red" if outcome.failed else "dim"
    word = "failed" if outcome.failed else "left out"
    return f"[{style}]{word}: {escape(outcome.reason)}[/{style}]"


def show_accuracies(
    console: Console, outcomes: Sequence[Outcome], configurations: Sequence[Configuration]
) -> None:
    """Print a table of test accuracies and seconds for each activation."""
    frameworks = list(dict.fromkeys(outcome.framework for outcome in outcomes))
    cells = {(outcome.configuration, outcome.framework): outcome for outcome in outcomes}
    finished = {outcome.configuration for outcome in outcomes}
    separator = choose_separator(console, len(frameworks))
    for forward, rows in group_by_forward(configurations, finished):
        console.print(f"{forward} hidden units: test accuracy, seconds", style="bold")
        table = start_table(frameworks)
        for row in rows:
            texts = [format_outcome(cells.get((row, name)), separator) for name in frameworks]
            table.add_row(escape(row.rule), *texts)
        console.print(table)


def show_notes(console: Console, outcomes: Sequence[Outcome], versions: Mapping[str, str]) -> None:
    """Print what ran in which version, and why cells are empty."""
    for framework, version in versions.items():
        console.print(f"{framework}: {version}", style="dim", highlight=False, soft_wrap=True)
    show_gaps(console, outcomes)
    console.print()


def show_gaps(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Print each reason for an empty cell once."""
    gaps = [outcome for outcome in outcomes if isinstance(outcome, Gap)]
    for gap in {(gap.framework, gap.reason): gap for gap in gaps}.values():
        mark = "[red]failed[/red]" if gap.failed else "-"
        console.print(
            f"{mark} {gap.framework}: {escape(gap.reason)}", highlight=False, soft_wrap=True
        )


def show_parity(
    console: Console, comparisons: Sequence[Comparison], configurations: Sequence[Configuration]
) -> None:
    """Print how far the frameworks are apart, in a table for each activation."""
    if not comparisons:
        console.print("Parity: nothing to compare; at least two frameworks must finish a run.")
        return
    by_configuration = {row.configuration: row for row in comparisons}
    for forward, rows in group_by_forward(configurations, set(by_configuration)):
        group = [by_configuration[row] for row in rows]
        reference = group[0].reference
        title = f"{forward} hidden units against {reference}: first gradients; predictions"
        console.print(title, style="bold")
        console.print(build_parity_table(group))
        show_worst(console, forward, find_worst(comparisons, forward))


def build_parity_table(group: Sequence[Comparison]) -> Table:
    """Return the parity table of one activation."""
    names = [difference.second for row in group for difference in row.to_reference]
    frameworks = list(dict.fromkeys(names))
    table = start_table([*frameworks, "any two"])
    for row in group:
        by_name = {difference.second: difference for difference in row.to_reference}
        texts = [format_difference(by_name.get(name)) for name in frameworks]
        table.add_row(escape(row.configuration.rule), *texts, str(row.worst.predictions))
    return table


def show_worst(console: Console, forward: str, worst: Difference | None) -> None:
    """Say how many predictions differ at most, and how many rounding accounts for."""
    if worst is None:
        return
    expected = EXPECTED_DIFFERENCES[forward]
    count = worst.predictions
    pair = f" ({worst.first} and {worst.second})" if count else ""
    console.print(
        f"{forward}: any two frameworks differ in at most {count} test predictions{pair};"
        f" rounding accounts for {expected} after {EPOCHS} epochs\n",
        style=None if count <= expected else "yellow",
        highlight=False,
        soft_wrap=True,
    )


def start_table(columns: Sequence[str]) -> Table:
    """Return a table with a column of rules and one column per name."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("backward", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def group_by_forward(
    configurations: Sequence[Configuration], wanted: Container[Configuration]
) -> Iterator[tuple[str, list[Configuration]]]:
    """Yield each activation with its rows, in order; those not wanted are left out."""
    for forward in FORWARDS:
        rows = [row for row in configurations if row.forward == forward and row in wanted]
        if rows:
            yield forward, rows


def choose_separator(console: Console, columns: int) -> str:
    """Return what parts the two figures of a cell: a line break where the screen is narrow."""
    return "  " if console.width >= LABEL_WIDTH + CELL_WIDTH * columns else "\n"


def format_outcome(outcome: Outcome | None, separator: str) -> str:
    """Return a cell of the first table."""
    if isinstance(outcome, Run):
        return f"{outcome.accuracy:.4f}{separator}{outcome.seconds:.1f} s"
    return "[red]failed[/red]" if outcome is not None and outcome.failed else "-"


def format_difference(difference: Difference | None) -> str:
    """Return a cell of the parity table."""
    if difference is None:
        return "-"
    return f"{difference.gradient:.0e}; {difference.predictions}"
