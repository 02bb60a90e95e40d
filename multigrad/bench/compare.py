"""Now against an earlier file: the same cells, and whether a change is more than the spread."""

from __future__ import annotations

from dataclasses import dataclass

from .contests import Contest
from .measure import Timing
from .results import Cell, Results


@dataclass(frozen=True, slots=True)
class Change:
    """One rival of a cell that both measurements have."""

    cell: Cell | Contest
    rival: str
    then: Timing
    now: Timing

    @property
    def of_medians(self) -> float:
        """How many times as long the median call takes now."""
        return self.now.median / self.then.median

    @property
    def of_minima(self) -> float:
        """How many times as long the fastest call takes now."""
        return self.now.minimum / self.then.minimum

    @property
    def is_beyond_spread(self) -> bool:
        """Whether the middle halves of the rounds do not even touch."""
        return (
            self.now.first_quartile > self.then.third_quartile
            or self.now.third_quartile < self.then.first_quartile
        )

    @property
    def verdict(self) -> str:
        """A word for it."""
        if not self.is_beyond_spread:
            return ""
        return "slower" if self.of_medians > 1 else "faster"


def compare(then: Results, now: Results) -> list[Change]:
    """Return the changes of every rival that both have measured."""
    earlier = {cell.key: cell for cell in (*then.cells, *then.contests)}
    return [
        Change(cell, name, earlier[cell.key].timings[name], timing)
        for cell in (*now.cells, *now.contests)
        if cell.key in earlier
        for name, timing in cell.timings.items()
        if name in earlier[cell.key].timings
    ]


def find_differences(then: Results, now: Results) -> list[str]:
    """Return what else is not as it was: the machine, and the versions of what both have
    measured.
    """
    pairs = [(name, then.machine.get(name), value) for name, value in now.machine.items()]
    pairs += [(name, then.versions.get(name, value), value) for name, value in now.versions.items()]
    return [
        f"{name}: {before} then, {after} now" for name, before, after in pairs if before != after
    ]
