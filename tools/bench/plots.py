"""The picture: how long each rival takes beside the hand-written one, over the sizes."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

from multigrad.engine.support.extras import extra_line
from multigrad.errors import MultigradError

from .cases import FREEGRAD, FUSED, HAND_WRITTEN, OURS, PLAIN, SHORTCUT, UNFUSED
from .report import format_threads
from .results import Cell

# Distinguishable by readers with color vision deficiency (Okabe and Ito, 2008).
STYLES = {
    PLAIN: ("#999999", "s"),
    HAND_WRITTEN: ("#000000", "o"),
    SHORTCUT: ("#E69F00", "^"),
    FREEGRAD: ("#D55E00", "x"),
    UNFUSED: ("#56B4E9", "v"),
    FUSED: ("#009E73", "P"),
    OURS: ("#0072B2", "D"),
}
LINES = ("solid", "dashed")
NARROWEST, LEGEND_WIDTH = 5.0, 1.3
FORMATS = (".png", ".svg", ".pdf")


def check_picture(path: Path) -> None:
    if find_spec("matplotlib") is None:
        raise MultigradError(f"--plot needs matplotlib; type: {extra_line('plot')}")
    if path.suffix.lower() not in FORMATS:
        endings = ", ".join(FORMATS)
        raise MultigradError(f"--plot takes a file that ends in {endings}, not {str(path)!r}")


def draw(cells: Sequence[Cell], path: Path) -> None:
    """Draw a panel for each framework and case: a line per rival, its spread shaded."""
    from matplotlib.figure import Figure

    backends = list(dict.fromkeys(cell.backend for cell in cells))
    labels = list(dict.fromkeys(cell.case.label for cell in cells))
    width = max(2.7 * len(labels) + 1.2, NARROWEST)
    figure = Figure(figsize=(width, 2.4 * len(backends) + 1.0), layout="constrained")
    axes = figure.subplots(len(backends), len(labels), squeeze=False, sharex=True, sharey="row")
    threads = list(dict.fromkeys(cell.threads for cell in cells))
    for row, backend in enumerate(backends):
        for column, label in enumerate(labels):
            panel = [cell for cell in cells if (cell.backend, cell.case.label) == (backend, label)]
            draw_panel(axes[row, column], panel, threads)
            if row == 0:
                axes[row, column].set_title(label, fontsize="medium")
        axes[row, 0].set_ylabel(f"{backend}\ntime / hand-written")
    for axis in axes[-1]:
        axis.set_xlabel("elements")
    add_legend(figure, cells, threads, columns=int(width / LEGEND_WIDTH))
    figure.savefig(path, dpi=150)


def draw_panel(axis: Any, cells: Sequence[Cell], threads: Sequence[int]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.grid(alpha=0.25)
    for count in threads:
        group = sorted((cell for cell in cells if cell.threads == count), key=attrgetter("size"))
        for name in STYLES:
            draw_rival(axis, [cell for cell in group if name in cell.timings], name, count, threads)


def draw_rival(
    axis: Any, cells: Sequence[Cell], name: str, count: int, threads: Sequence[int]
) -> None:
    """Draw how long one rival takes beside the hand-written one, and the spread over the rounds."""
    if not cells:
        return
    color, marker = STYLES[name]
    sizes = [cell.size for cell in cells]
    low, middle, high = zip(*(cell.relative[name] for cell in cells), strict=True)
    axis.fill_between(sizes, low, high, color=color, alpha=0.15, linewidth=0)
    axis.plot(
        sizes,
        middle,
        color=color,
        marker=marker,
        markersize=4,
        markerfacecolor="none",
        linewidth=1.6 if name == OURS else 1.1,
        linestyle=LINES[min(threads.index(count), len(LINES) - 1)],
    )


def add_legend(figure: Any, cells: Sequence[Cell], threads: Sequence[int], columns: int) -> None:
    from matplotlib.lines import Line2D

    measured = {name for cell in cells for name in cell.timings}
    handles = [
        Line2D([], [], color=color, marker=marker, markerfacecolor="none", label=name)
        for name, (color, marker) in STYLES.items()
        if name in measured
    ]
    if len(threads) > 1:
        handles += [
            Line2D([], [], color="#555555", linestyle=line, label=format_threads(count))
            for count, line in zip(threads, LINES, strict=False)
        ]
    columns = min(columns, len(handles))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
