"""The pictures: how each rule learns in each framework, and what it makes of a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import multigrad as xg

from .runs import TRUE_DERIVATIVE, Configuration, Run

LEARNING_CURVES = "learning-curves.png"
GRADIENT_SHAPES = "gradient-shapes.png"

# Distinguishable by readers with color vision deficiency (Okabe and Ito, 2008).
COLORS = ("#000000", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
FORWARD_COLOR = "#999999"
SHAPES_PER_ROW = 4
INPUTS = np.linspace(-4.0, 4.0, 1601, dtype=np.float32)
LEAST = 1e-9
"""What stands for no difference on an axis of logarithms."""


def draw_learning_curves(runs: Sequence[Run], path: Path) -> None:
    """Draw loss and accuracy of all frameworks, and below how far apart the losses are."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    forwards = list(dict.fromkeys(run.configuration.forward for run in runs))
    figure = Figure(figsize=(6.0 * len(forwards), 9.5), layout="constrained")
    axes = figure.subplots(3, len(forwards), squeeze=False, sharex=True, sharey="row")
    colors = assign_colors([run.configuration.rule for run in runs])
    for column, forward in enumerate(forwards):
        of_forward = [run for run in runs if run.configuration.forward == forward]
        axes[0, column].set_title(f"{forward} hidden units")
        axes[2, column].set_xlabel("epoch")
        draw_series(axes[0, column], of_forward, colors, "losses")
        draw_series(axes[1, column], of_forward, colors, "accuracies")
        draw_differences(axes[2, column], of_forward, colors)
    axes[0, 0].set_ylabel("training loss (cross entropy)")
    axes[0, 0].set_yscale("log")
    axes[0, 0].yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes[0, 0].yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes[0, 0].yaxis.set_minor_formatter(NullFormatter())
    axes[1, 0].set_ylabel("test accuracy")
    axes[1, 0].set_ylim(bottom=choose_bottom(runs), top=1.005)
    axes[2, 0].set_ylabel("largest difference of the loss\nbetween any two frameworks")
    axes[2, 0].set_yscale("log")
    axes[2, 0].set_ylim(bottom=LEAST, top=1.0)
    add_legend(figure, runs, colors)
    figure.savefig(path, dpi=150)


def draw_series(axis: Any, runs: Sequence[Run], colors: dict[str, str], series: str) -> None:
    """Draw a line for every run: those of one rule lie on each other where frameworks agree."""
    for run in runs:
        values = getattr(run, series)
        epochs = np.arange(1, len(values) + 1)
        axis.plot(epochs, values, color=colors[run.configuration.rule], linewidth=1.2)
    axis.grid(alpha=0.25)


def draw_differences(axis: Any, runs: Sequence[Run], colors: dict[str, str]) -> None:
    """Draw how far the losses of any two frameworks are apart at most; dotted, float32's eps."""
    axis.axhline(np.finfo(np.float32).eps, color=FORWARD_COLOR, linestyle=":")
    by_rule: dict[str, list[Sequence[float]]] = {}
    for run in runs:
        by_rule.setdefault(run.configuration.rule, []).append(run.losses)
    for rule, losses in by_rule.items():
        if len(losses) > 1:
            spread = np.ptp(np.array(losses), axis=0)
            epochs = np.arange(1, len(spread) + 1)
            axis.plot(epochs, np.maximum(spread, LEAST), color=colors[rule], linewidth=1.2)
    axis.grid(alpha=0.25)


def add_legend(figure: Any, runs: Sequence[Run], colors: dict[str, str]) -> None:
    """Explain the colors beside the panels, and name the frameworks above them."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=color, label=rule) for rule, color in colors.items()]
    lines.append(Line2D([], [], color=FORWARD_COLOR, linestyle=":", label="float32's eps"))
    figure.legend(handles=lines, title="backward", loc="outside right upper", frameon=False)
    frameworks = dict.fromkeys(run.framework for run in runs)
    figure.suptitle(f"A line for each of {', '.join(frameworks)}: where they agree, one is seen")


def draw_gradient_shapes(configurations: Sequence[Configuration], path: Path) -> None:
    """Draw a panel per activation and rule: the output, and what a gradient of 1 becomes."""
    from matplotlib.figure import Figure

    forwards = list(dict.fromkeys(row.forward for row in configurations))
    rules = list(dict.fromkeys(row.rule for row in configurations))
    columns = min(len(rules), SHAPES_PER_ROW)
    strips = -(-len(rules) // columns)
    figure = Figure(
        figsize=(3.0 * columns + 0.5, 2.5 * strips * len(forwards) + 0.6), layout="constrained"
    )
    axes = figure.subplots(strips * len(forwards), columns, squeeze=False, sharex=True, sharey=True)
    for axis in axes.flat[len(configurations) :]:
        axis.set_axis_off()
    colors = assign_colors(rules)
    for index, configuration in enumerate(configurations):
        place = divmod(index % len(rules), columns)
        row = strips * forwards.index(configuration.forward) + place[0]
        draw_shape(axes[row, place[1]], configuration, colors[configuration.rule])
    for axis in axes[-1]:
        axis.set_xlabel("input x")
    add_shape_legend(figure)
    figure.savefig(path, dpi=150)


def draw_shape(axis: Any, configuration: Configuration, color: str) -> None:
    activation = xg.lower(configuration.backward, "numpy", forward=configuration.forward)
    outputs, pullback = activation.vjp(INPUTS)
    factors = pullback(np.ones_like(INPUTS))
    axis.plot(INPUTS, outputs, color=FORWARD_COLOR, linewidth=2.0)
    axis.plot(INPUTS, factors, color=color, linewidth=1.6)
    axis.fill_between(INPUTS, factors, color=color, alpha=0.2, linewidth=0)
    axis.set_title(f"{configuration.forward}, {configuration.rule}", fontsize="medium")
    axis.grid(alpha=0.25)


def add_shape_legend(figure: Any) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Line2D([], [], color=FORWARD_COLOR, linewidth=2.0, label="output of the activation"),
        Patch(color="#555555", alpha=0.4, label="what a gradient of 1 becomes on its way back"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False)


def assign_colors(rules: Sequence[str]) -> dict[str, str]:
    """Give each rule its color; black is the true derivative's."""
    others = [rule for rule in dict.fromkeys(rules) if rule != TRUE_DERIVATIVE]
    colors = {rule: COLORS[1 + i % (len(COLORS) - 1)] for i, rule in enumerate(others)}
    return {TRUE_DERIVATIVE: COLORS[0], **colors} if TRUE_DERIVATIVE in rules else colors


def choose_bottom(runs: Sequence[Run]) -> float:
    """Return where the accuracy axis begins: the first epochs of slow runs are left out."""
    middles = [run.accuracies[len(run.accuracies) // 4] for run in runs]
    return max(0.0, round(min(middles) - 0.1, 1))
