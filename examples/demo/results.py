"""What the experiment found, complete or not, and the files it becomes: JSON and PNG."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import plots
from .parity import Comparison
from .runs import Configuration, Gap, Outcome, Run
from .task import BATCH, EPOCHS, HIDDEN, LEARNING_RATE

RESULTS = "results.json"


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for."""

    frameworks: Sequence[str] = ()
    rules: Sequence[str] = ()
    epochs: int = EPOCHS
    seed: int = 0
    out: Path = Path("multigrad-demo")
    learning_rate: float = LEARNING_RATE


@dataclass(slots=True)
class Results:
    """What there is to show, complete or not."""

    options: Options
    configurations: Sequence[Configuration]
    frameworks: Sequence[str]
    outcomes: list[Outcome] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def runs(self) -> list[Run]:
        return [outcome for outcome in self.outcomes if isinstance(outcome, Run)]

    def sort(self) -> None:
        """Put what two processes found into the order of the frameworks."""
        self.outcomes.sort(key=lambda outcome: self.frameworks.index(outcome.framework))
        self.versions = {n: self.versions[n] for n in self.frameworks if n in self.versions}


def write_files(results: Results, comparisons: Sequence[Comparison]) -> list[Path]:
    folder = results.options.out
    numbers = folder / RESULTS
    numbers.write_text(json.dumps(to_document(results, comparisons), indent=1) + "\n")
    shapes = folder / plots.GRADIENT_SHAPES
    plots.draw_gradient_shapes(results.configurations, shapes)
    if not results.runs:
        return [numbers, shapes]
    curves = folder / plots.LEARNING_CURVES
    plots.draw_learning_curves(results.runs, curves)
    return [numbers, shapes, curves]


def to_document(results: Results, comparisons: Sequence[Comparison]) -> dict[str, Any]:
    options = results.options
    return {
        "settings": {
            "epochs": options.epochs,
            "seed": options.seed,
            "batch": BATCH,
            "hidden_units": HIDDEN,
            "learning_rate": options.learning_rate,
        },
        "interrupted": results.interrupted,
        "versions": results.versions,
        "runs": [run_to_document(run) for run in results.runs],
        "gaps": [gap_to_document(gap) for gap in results.outcomes if isinstance(gap, Gap)],
        "parity": [comparison_to_document(comparison) for comparison in comparisons],
    }


def run_to_document(run: Run) -> dict[str, Any]:
    return {
        "framework": run.framework,
        "forward": run.configuration.forward,
        "rule": run.configuration.rule,
        "accuracy": run.accuracy,
        "seconds": run.seconds,
        "losses": run.losses,
        "accuracies": run.accuracies,
        "predictions": run.predictions.tolist(),
    }


def gap_to_document(gap: Gap) -> dict[str, Any]:
    return {
        "framework": gap.framework,
        "forward": gap.configuration.forward,
        "rule": gap.configuration.rule,
        "reason": gap.reason,
        "failed": gap.failed,
    }


def comparison_to_document(comparison: Comparison) -> dict[str, Any]:
    return {
        "forward": comparison.configuration.forward,
        "rule": comparison.configuration.rule,
        "reference": comparison.reference,
        "largest_gradient": comparison.largest_gradient,
        "to_reference": [asdict(difference) for difference in comparison.to_reference],
        "worst": asdict(comparison.worst),
    }
