"""The course of an experiment: options, a run per framework and seed, the picture, and whether what
the script's docstring says holds.

A figure stands there once, as a line `    name    0.955 ± 0.010`: the mean over seeds, and how
far the mean of a run may lie from it.
"""

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from task import Trained
from threadpoolctl import threadpool_limits  # comes with scikit-learn

FIGURE = re.compile(r"^    (\S.*?)  +(\d+\.\d+) ± (\d+\.\d+)", re.MULTILINE)
# Distinguishable by readers with color vision deficiency (Okabe and Ito, 2008).
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
MARKS, SIGNS = "^so", "△□○"


@dataclass(frozen=True)
class Outcome:
    """One run: what came out, the loss of its steps by method, and what the picture shows."""

    figures: dict[str, float]
    losses: dict[str, list[float]]
    curves: dict[str, dict[str, list[float]]]
    """What is drawn over the epochs: by quantity, then by method."""
    shown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, trained: dict[str, Trained], **shown: Any) -> "Outcome":
        """Return the outcome of methods whose figure is the accuracy after the last epoch."""
        losses = {name: each.losses for name, each in trained.items()}
        curves = {
            "accuracy": {name: each.curve for name, each in trained.items()},
            "loss": {name: each.mean_losses() for name, each in trained.items()},
        }
        return cls({name: each.curve[-1] for name, each in trained.items()}, losses, curves, shown)


Run = Callable[[Any, int, bool], Outcome]
"""`run(ops, seed, quick)`: `ops` is one of the modules `in_torch`, `in_jax`, `in_tensorflow`."""
Outcomes = dict[str, list[Outcome]]
"""By framework, an outcome for each seed."""


EVERYWHERE = ("torch", "jax", "tensorflow")


def conduct(
    script: str,
    doc: str,
    run: Run,
    draw: Callable[[Any, Outcomes], None],
    *,
    arguments: list[str] | None,
    frameworks: tuple[str, ...] = ("torch", "jax"),
    size: tuple[float, float] = (9.0, 4.0),
    seeds: int = 3,
    kind: str = "png",
) -> Outcomes:
    """Run the experiment as its command line says; exit with 1 where a figure does not hold.

    `kind` is that of the picture: "png" or "svg".
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    here = [name for name in frameworks if find_spec(name)]
    parser.add_argument("--framework", nargs="+", choices=frameworks, default=here)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--quick", action="store_true", help="a few steps of one seed, no check")
    parser.add_argument("--out", type=Path, default=Path(), help="the folder for the picture")
    options = parser.parse_args(arguments)

    outcomes: Outcomes = {}
    operations = {name: import_module(f"in_{name}") for name in options.framework}
    # Matrices this small gain nothing from threads, and on a busy machine lose ten times.
    with threadpool_limits(1):
        for framework, ops in operations.items():
            begin = time.perf_counter()
            seen = range(1 if options.quick else options.seeds)
            outcomes[framework] = [run(ops, seed, options.quick) for seed in seen]
            print(f"{framework}: {len(seen)} seeds in {time.perf_counter() - begin:.0f} s")
            for name, (mean, spread) in summarize(outcomes[framework]).items():
                print(f"    {name:36} {mean:.4f} ± {spread:.4f}")
    picture(options.out / f"{Path(script).stem}.{kind}", size, draw, outcomes)
    if not options.quick and not holds(doc, outcomes):
        sys.exit(1)
    return outcomes


def summarize(outcomes: list[Outcome]) -> dict[str, tuple[float, float]]:
    series = {name: [each.figures[name] for each in outcomes] for name in outcomes[0].figures}
    return {name: (float(np.mean(row)), float(np.std(row))) for name, row in series.items()}


def expected(doc: str) -> dict[str, tuple[float, float]]:
    """Return the figures of a docstring: each mean, and how far a run's may lie from it."""
    return {name: (float(mean), float(far)) for name, mean, far in FIGURE.findall(doc)}


def holds(doc: str, outcomes: Outcomes) -> bool:
    """Print which figures of the docstring do not hold; return whether all do."""
    known, well = expected(doc), True
    for framework, found in outcomes.items():
        means = summarize(found)
        for name, (mean, far) in known.items():
            if abs(means[name][0] - mean) > far:
                well = False
                print(f"{framework}: {name} is {means[name][0]:.4f}, not {mean} ± {far}")
    print(f"the figures of the docstring hold: {well} ({len(known)} in each framework)")
    return well


def picture(path: Path, size: tuple[float, float], draw: Any, outcomes: Outcomes) -> None:
    """Let the experiment draw on a figure of its own, and write it."""
    if find_spec("matplotlib") is None:
        print("not drawn: matplotlib is not installed")
        return
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    draw(figure, outcomes)
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": path.stem}):
        # Without a date, the same numbers give the same file.
        figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)
    print(f"drawn: {path}")


def draw_curves(axis: Any, outcomes: Outcomes, quantity: str, names: Sequence[str] = ()) -> None:
    """Draw `curves[quantity]` of each method, or of those named.

    A line is the first framework's mean over the seeds, with the span around it; marks are the
    means of the others, and lie on the line where the frameworks agree.
    """
    first, *others = outcomes
    for name, color in zip(names or outcomes[first][0].curves[quantity], COLORS, strict=False):
        for framework, found in outcomes.items():
            rows = np.array([each.curves[quantity][name] for each in found])
            means, epochs = rows.mean(axis=0), np.arange(1, rows.shape[1] + 1)
            if framework == first:
                low, high = rows.min(axis=0), rows.max(axis=0)
                axis.plot(epochs, means, color=color, label=name)
                axis.fill_between(epochs, low, high, color=color, alpha=0.15, linewidth=0)
            else:
                begin = others.index(framework)
                shown = slice(begin, None, max(len(others), len(epochs) // 10))
                mark = {"marker": MARKS[begin], "markersize": 5, "markerfacecolor": "none"}
                axis.plot(epochs[shown], means[shown], color=color, linestyle="none", **mark)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.grid(alpha=0.25)


def draw_training(figure: Any, outcomes: Outcomes, label: str = "training loss") -> None:
    """Draw the losses and the accuracies of all methods over the epochs."""
    loss, accuracy = figure.subplots(1, 2)
    draw_curves(loss, outcomes, "loss")
    draw_curves(accuracy, outcomes, "accuracy")
    loss.set(xlabel="epoch", ylabel=label, yscale="log")
    accuracy.set(xlabel="epoch", ylabel="test accuracy")
    accuracy.legend(title=whose_marks(outcomes))


def whose_marks(outcomes: Outcomes) -> str:
    """Return which line or mark is whose."""
    first, *others = outcomes
    return ", ".join([f"— {first}", *(f"{SIGNS[i]} {name}" for i, name in enumerate(others))])
