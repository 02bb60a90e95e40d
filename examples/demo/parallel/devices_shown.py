"""What `--devices` shows: a table of the pairs, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..plots import assign_colors
from ..runs import Gap
from ..task import EPOCHS
from .groups import Trained

if TYPE_CHECKING:
    from .devices import Pair

COLUMNS = ("framework", "forward", "backward", "devices", "final loss", "accuracy", "ms a step")
# What rounding alone made of the weights after the whole training, over several seeds: where it
# flipped a unit of Heaviside or crossed a rule's edge, and where it did neither.
EXPECTED, EXPECTED_SMOOTH = 5e-2, 5e-6
LEAST = 1e-9
MARKERS = {"torch": "s", "jax": "^"}


def describe(outcome: Trained | Gap) -> str:
    configuration = outcome.configuration
    if isinstance(outcome, Gap):
        words = f"{outcome.framework:<12} {configuration.forward:<9} {configuration.rule:<12}"
        return f"{escape(words)} [red]failed: {escape(outcome.reason)}[/red]"
    words = f"{outcome.group.label:<12} {configuration.forward:<9} {configuration.rule:<12}"
    return f"{escape(words)} accuracy {outcome.accuracies[-1]:.4f}  {outcome.seconds:5.1f} s"


def show_pairs(console: Console, pairs: Sequence[Pair], epochs: int) -> None:
    console.print()
    if not pairs:
        console.print("Nothing to compare: no run was finished on one device and on several.")
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in (*COLUMNS, "largest difference of a weight", "predictions that differ"):
        is_name = column in COLUMNS[:3]
        table.add_column(column, justify="left" if is_name else "right")
    for pair in pairs:
        table.add_row(*cells_of(pair.one))
        table.add_row(*cells_of(pair.several), f"{pair.weights:.0e}", str(pair.predictions))
    console.print(table)
    show_worst(console, pairs, epochs)


def cells_of(run: Trained) -> tuple[str, ...]:
    group, configuration = run.group, run.configuration
    return (
        group.framework,
        configuration.forward,
        escape(configuration.rule),
        str(group.devices),
        f"{run.losses[-1]:.6f}",
        f"{run.accuracies[-1]:.4f}",
        f"{run.step * 1e3:.2f}",
    )


def show_worst(console: Console, pairs: Sequence[Pair], epochs: int) -> None:
    """Say how far apart the runs are at most, and what rounding accounts for."""
    worst = max(pair.weights for pair in pairs)
    console.print(
        f"Weights differ by at most {worst:.0e} after {epochs} epochs. Rounding accounts for"
        f" {EXPECTED_SMOOTH:.0e} after {EPOCHS}; where it flips a unit or crosses a rule's edge,"
        f" for {EXPECTED:.0e}.",
        style=None if worst <= EXPECTED else "yellow",
        highlight=False,
        soft_wrap=True,
    )


def draw_pairs(pairs: Sequence[Pair], path: Path) -> None:
    """Draw the losses, a line for one device and marks for several; below, their difference."""
    from matplotlib.figure import Figure

    forwards = list(dict.fromkeys(pair.one.configuration.forward for pair in pairs))
    colors = assign_colors([pair.one.configuration.rule for pair in pairs])
    figure = Figure(figsize=(6.0 * len(forwards), 7.5), layout="constrained")
    axes = figure.subplots(2, len(forwards), squeeze=False, sharex=True, sharey="row")
    for column, forward in enumerate(forwards):
        axes[0, column].set_title(f"{forward} hidden units")
        axes[1, column].set_xlabel("epoch")
        for pair in pairs:
            if pair.one.configuration.forward == forward:
                draw_pair(axes[:, column], pair, colors[pair.one.configuration.rule])
    axes[0, 0].set_ylabel("training loss: one device (line), several (marks)")
    axes[1, 0].set_ylabel("largest difference of the losses so far")
    for axis in axes.flat:
        axis.set_yscale("log")
        axis.grid(alpha=0.25)
    add_legend(figure, pairs, colors)
    figure.savefig(path, dpi=150)


def draw_pair(axes: Any, pair: Pair, color: str) -> None:
    epochs = np.arange(1, len(pair.one.losses) + 1)
    mark = {"marker": MARKERS[pair.one.group.framework], "markerfacecolor": "none"}
    stride = max(1, len(epochs) // 12)
    axes[0].plot(epochs, pair.one.losses, color=color, linewidth=1.2)
    losses = pair.several.losses[::stride]
    axes[0].plot(epochs[::stride], losses, linestyle="none", color=color, **mark)
    differences = np.maximum(np.maximum.accumulate(pair.losses), LEAST)
    axes[1].plot(epochs, differences, color=color, linewidth=1.0, markevery=stride, **mark)


def add_legend(figure: Any, pairs: Sequence[Pair], colors: dict[str, str]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=color, label=rule) for rule, color in colors.items()]
    names = dict.fromkeys(pair.several.group.label for pair in pairs)
    for name in names:
        marker = MARKERS[name.split()[0]]
        handle = Line2D([], [], color="#555555", linestyle="none", marker=marker, label=name)
        handle.set_markerfacecolor("none")
        handles.append(handle)
    figure.legend(handles=handles, loc="outside right upper", frameon=False)
