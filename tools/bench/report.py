"""What the terminal shows: progress while it measures, on standard error, then the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from multigrad.command.options import make_bar

from .cases import BRIDGES_PART, KERAS_PART, NATIVE, OURS, PACKAGES_PART
from .compare import Change
from .measure import Timing
from .overheads import Overhead
from .results import Cell, Contest, Failure, Results

T = TypeVar("T")
K = TypeVar("K")


class Progress:
    """What is being measured, on one line of a terminal; elsewhere a line for each thing."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.bar = make_bar(self.console)
        self.task = self.bar.add_task("starting", total=None)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def begin(self, backend: str, what: str) -> None:
        line = f"{backend}: {escape(what)}"
        self.bar.update(self.task, advance=1, description=line)
        if self.bar.disable:
            self.console.print(line)

    def fail(self, failure: Failure) -> None:
        self.console.print(f"[red]failed[/red] {failure.backend}: {escape(failure.reason)}")


LEGEND = (
    "min, median: microseconds per forward and backward; spread: between the quartiles, in % of the"
    " median; ours/it: multigrad's time over this one, as the median of the rounds' ratios, then"
    " by medians and by minima; copies: the median in copies of the input; band: the share of a"
    " copy's bandwidth, counting what has to be moved: input, output, both gradients, and what is"
    " kept; kept: bytes per element that forward keeps for backward\n"
)


@dataclass(frozen=True, slots=True)
class Part:
    """How one part's contests are shown.

    Attributes:
        legend: what stands above the table.
        columns: the headings for the framework and its contenders.
        unit: microseconds in the unit of the times.
    """

    legend: str
    columns: tuple[str, str]
    unit: float


PARTS = {
    BRIDGES_PART: Part(
        "Bridges: Heaviside + triangular, forward and backward, on tensors of the host and run in "
        "the guest, beside the"
        " host's own; medians in microseconds; ratio: the median of the rounds' ratios",
        ("host", "guest"),
        1.0,
    ),
    KERAS_PART: Part(
        "Keras: an epoch of fit with multigrad.keras.Activation beside a hand-written layer; "
        "medians in milliseconds;"
        " ratio: the median of the epochs' ratios",
        ("Keras on", "layer"),
        1000.0,
    ),
    PACKAGES_PART: Part(
        "Packages: forward and backward of theirs, as published, and of ours that gives the same "
        "numbers, on PyTorch; medians in microseconds; ratio: the median of the rounds' ratios, "
        "below 1 where ours is faster",
        ("theirs", "ours"),
        1.0,
    ),
}


def show(console: Console, results: Results) -> None:
    for line in (*results.versions.values(), *results.absences):
        console.print(escape(line), style="dim", highlight=False, soft_wrap=True)
    if results.cells:
        console.print(LEGEND, style="dim", highlight=False)
    for title, cells in group_by(results.cells, format_title):
        console.print(escape(title), style="bold", highlight=False, soft_wrap=True)
        console.print(build_table(cells))
    show_overheads(console, results.overheads)
    show_contests(console, results.contests)
    for failure in results.failures:
        text = f"{failure.backend}, {failure.what}: {failure.reason}"
        console.print(f"[red]failed[/red] {escape(text)}", highlight=False, soft_wrap=True)


def build_table(cells: Sequence[Cell]) -> Table:
    ratios = ("ours/it", "by med", "by min")
    figures = ("min", "median", "spread", *ratios, "copies", "band", "kept")
    table = start_table(("size", "rival"), figures)
    for cell in cells:
        for index, (name, timing) in enumerate(cell.timings.items()):
            size = format_size(cell.size) if index == 0 else ""
            last = index == len(cell.timings) - 1
            table.add_row(size, name, *format_row(cell, name, timing), end_section=last)
    return table


def start_table(words: Sequence[str], figures: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=0)
    for column in words:
        table.add_column(column, no_wrap=column != "what")
    for column in figures:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def group_by(items: Iterable[T], key: Callable[[T], K]) -> Iterable[tuple[K, list[T]]]:
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups.items()


def format_row(cell: Cell, name: str, timing: Timing) -> list[str]:
    ours = cell.timings[OURS]
    ratios = ["", "", ""]
    if name != OURS:
        by_medians, by_minima = ours.median / timing.median, ours.minimum / timing.minimum
        ratios = [f"{ratio:.2f}" for ratio in (cell.ratios[name][1], by_medians, by_minima)]
    kept = cell.kept_bytes.get(name)
    spread = (timing.third_quartile - timing.first_quartile) / timing.median
    return [
        format_time(timing.minimum),
        format_time(timing.median),
        f"{spread:.0%}",
        *ratios,
        f"{timing.median / cell.copy.median:.1f}",
        "-" if kept is None else f"{share_of_bandwidth(cell, timing, kept):.0%}",
        "-" if kept is None else f"{kept / cell.size:.3g}",
    ]


def share_of_bandwidth(cell: Cell, timing: Timing, kept: int) -> float:
    """Return the bytes that have to be moved over the time, as a share of those that a copy moves.

    Input, output and both gradients are as large as the two sides of two copies. What is kept is
    read once more; it may be the input, which nobody writes.
    """
    array = 4 * cell.size
    return (4 * array + kept) / timing.median / (2 * array / cell.copy.median)


def show_overheads(console: Console, overheads: Sequence[Overhead]) -> None:
    if not overheads:
        return
    console.print("Overheads", style="bold")
    table = start_table(("backend", "what"), ("median", "quartiles", "target", "met"))
    for row in overheads:
        table.add_row(
            row.backend,
            escape(row.what),
            f"{row.value:.2f} {row.unit}",
            f"{row.first_quartile:.2f}, {row.third_quartile:.2f}",
            f"{row.target:g} {row.unit}",
            "yes" if row.is_met else "[yellow]no[/yellow]",
        )
    console.print(table)


def show_contests(console: Console, contests: Sequence[Contest]) -> None:
    """Print a table per part and number of threads: a row per contender beside the native code."""
    for (name, threads), group in group_by(contests, lambda each: (each.part, each.threads)):
        part = PARTS[name]
        title = f"{part.legend}; {format_threads(threads)}"
        console.print(title, style="bold", highlight=False)
        figures = ("size", "native", "it", "ratio", "quartiles", "by min", "target")
        table = start_table(part.columns, figures)
        for contest in group:
            for index, contender in enumerate(contest.ratios):
                last = index == len(contest.ratios) - 1
                row = format_contender(contest, contender, part.unit)
                table.add_row(*row, end_section=last)
        console.print(table)


def format_contender(contest: Contest, name: str, unit: float) -> list[str]:
    low, ratio, high = contest.ratios[name]
    target = contest.target(name)
    verdict = "" if target is None else f"{target:g}"
    return [
        contest.backend,
        name,
        format_size(contest.size),
        format_time(contest.timings[NATIVE].median / unit),
        format_time(contest.timings[name].median / unit),
        f"{ratio:.2f}",
        f"{low:.2f}, {high:.2f}",
        f"{contest.timings[name].minimum / contest.timings[NATIVE].minimum:.2f}",
        verdict if target is None or ratio <= target else f"[yellow]{verdict}[/yellow]",
    ]


def show_changes(
    console: Console, changes: Sequence[Change], differences: Sequence[str], earlier: str
) -> None:
    title = (
        f"Against {earlier}: medians, and a change where minima differ by more than 2 % and the "
        "quartiles are apart, both beside the hand-written or native rival, which nobody changed"
    )
    for line in (title, *differences):
        console.print(escape(line), highlight=False, soft_wrap=True)
    if not changes:
        console.print("nothing to compare: the files have no cell in common")
        return
    for title, group in group_by(changes, lambda change: format_title(change.cell)):
        console.print(escape(title), style="bold", highlight=False, soft_wrap=True)
        table = start_table(("size", "rival"), ("then", "now", "now / then", "minima"))
        table.add_column("change")
        for change in group:
            table.add_row(
                format_size(change.cell.size),
                change.rival,
                format_time(change.then.median),
                format_time(change.now.median),
                f"{change.of_medians:.2f}",
                f"{change.of_minima:.2f}",
                change.verdict,
                style={"slower": "red", "faster": "green"}.get(change.verdict),
            )
        console.print(table)


def format_title(cell: Cell | Contest) -> str:
    part = f"{cell.part}, " if isinstance(cell, Contest) else ""
    return f"{part}{cell.backend}, {cell.case.label}, {format_threads(cell.threads)}"


def format_threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def format_size(size: int) -> str:
    text = f"{size:.0e}".replace("e+0", "e")
    return text if float(text) == size else f"{size:,}"


def format_time(microseconds: float) -> str:
    """Return microseconds with three significant digits; from 0.1 s on, milliseconds."""
    if microseconds >= 100_000:
        return f"{microseconds / 1000:,.0f} ms"
    if microseconds >= 100:
        return f"{microseconds:,.0f}"
    return f"{microseconds:.1f}" if microseconds >= 10 else f"{microseconds:.2f}"
