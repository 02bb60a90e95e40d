"""How far the frameworks are apart: first gradients and final predictions, pair by pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import attrgetter

import numpy as np

from .runs import Configuration, Run

REFERENCE = "numpy"
EXPECTED_DIFFERENCES = {"Logistic": 1, "Heaviside": 3}
"""Differing test predictions that rounding accounts for, measured over several seeds."""
EXPECTED_GRADIENT = 4e-6
"""The part of the largest gradient by which rounding may move another."""


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
    """How far the frameworks are apart in one configuration."""

    configuration: Configuration
    frameworks: tuple[str, ...]
    reference: str
    to_reference: tuple[Difference, ...]
    worst: Difference
    """The pair that differs in most predictions; among equals, in the gradients."""
    gradient: float
    """Largest difference in any entry of any two's first gradients."""
    largest_gradient: float
    """Largest entry of the reference's gradients, to measure the differences by."""

    @property
    def expected_predictions(self) -> int:
        """How many differing predictions rounding accounts for."""
        return EXPECTED_DIFFERENCES[self.configuration.forward]

    @property
    def expected_gradient(self) -> float:
        """How far rounding may move an entry of the first gradients."""
        return EXPECTED_GRADIENT * self.largest_gradient

    @property
    def exceeds_rounding(self) -> bool:
        """Whether something else than rounding must be at work; not a number is."""
        few = self.worst.predictions <= self.expected_predictions
        return not (few and self.gradient <= self.expected_gradient)


def compare(runs: Sequence[Run]) -> list[Comparison]:
    """Compare the runs of each configuration that at least two frameworks have finished."""
    by_configuration: dict[Configuration, list[Run]] = {}
    for run in runs:
        by_configuration.setdefault(run.configuration, []).append(run)
    return [compare_row(group) for group in by_configuration.values() if len(group) > 1]


def compare_row(group: Sequence[Run]) -> Comparison:
    reference = next((run for run in group if run.framework == REFERENCE), group[0])
    others = [run for run in group if run is not reference]
    pairs = [differ(first, second) for first, second in combinations(group, 2)]
    return Comparison(
        configuration=group[0].configuration,
        frameworks=tuple(run.framework for run in group),
        reference=reference.framework,
        to_reference=tuple(differ(reference, run) for run in others),
        worst=max(pairs, key=attrgetter("predictions", "gradient")),
        gradient=float(np.max([pair.gradient for pair in pairs])),
        largest_gradient=max(float(np.abs(each).max()) for each in reference.gradients),
    )


def differ(first: Run, second: Run) -> Difference:
    gaps = [
        float(np.abs(mine - other).max())
        for mine, other in zip(first.gradients, second.gradients, strict=True)
    ]
    disagreements = int(np.sum(first.predictions != second.predictions))
    return Difference(first.framework, second.framework, float(np.max(gaps)), disagreements)
