"""How far the frameworks are apart: first gradients and final predictions, pair by pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from .runs import Configuration, Run

REFERENCE = "numpy"


@dataclass(frozen=True, slots=True)
class Difference:
    """What separates two runs of the same configuration."""

    first: str
    second: str
    gradient: float
    """Largest difference in any entry of the first step's gradients."""
    predictions: int
    """Number of test samples that the trained networks label differently."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row of the parity table."""

    configuration: Configuration
    reference: str
    to_reference: tuple[Difference, ...]
    worst: Difference
    """The pair that differs in most predictions; among equals, in the gradients."""
    largest_gradient: float
    """Largest entry of the reference's gradients, to measure the differences by."""


def compare(runs: Sequence[Run]) -> list[Comparison]:
    """Compare the runs of each configuration that at least two frameworks have finished."""
    by_configuration: dict[Configuration, list[Run]] = {}
    for run in runs:
        by_configuration.setdefault(run.configuration, []).append(run)
    return [compare_row(group) for group in by_configuration.values() if len(group) > 1]


def compare_row(group: Sequence[Run]) -> Comparison:
    """Compare the runs of one configuration."""
    reference = next((run for run in group if run.framework == REFERENCE), group[0])
    others = [run for run in group if run is not reference]
    pairs = [differ(first, second) for first, second in combinations(group, 2)]
    return Comparison(
        group[0].configuration,
        reference.framework,
        tuple(differ(reference, run) for run in others),
        max(pairs, key=rank),
        max(float(np.abs(gradient).max()) for gradient in reference.gradients),
    )


def differ(first: Run, second: Run) -> Difference:
    """Measure two runs of the same configuration against each other."""
    gaps = [
        float(np.abs(mine - other).max())
        for mine, other in zip(first.gradients, second.gradients, strict=True)
    ]
    disagreements = int(np.sum(first.predictions != second.predictions))
    return Difference(first.framework, second.framework, float(np.max(gaps)), disagreements)


def rank(difference: Difference) -> tuple[int, float]:
    """Return the key that puts the worst pair last."""
    return difference.predictions, difference.gradient


def find_worst(comparisons: Sequence[Comparison], forward: str) -> Difference | None:
    """Return the worst pair of all rows with this activation."""
    worst = [row.worst for row in comparisons if row.configuration.forward == forward]
    return max(worst, key=rank, default=None)
