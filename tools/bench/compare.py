"""Now against an earlier file: the same cells, and whether a change is more than noise.

A slow phase of the machine slows all rivals of a cell: so a change counts where it stands in the
times and beside the rival that nobody changed.
"""

from __future__ import annotations

from dataclasses import dataclass

from .cases import HAND_WRITTEN, NATIVE
from .measure import Quartiles, Timing
from .results import Cell, Contest, Results

LEAST = 0.02  # of a time; minima that are nearer are the same
NO_DIFFERENCE, MACHINE = "no difference", "the machine"


@dataclass(frozen=True, slots=True)
class Change:
    """One rival of a cell that both measurements have."""

    cell: Cell | Contest
    earlier: Cell | Contest
    rival: str

    @property
    def then(self) -> Timing:
        return self.earlier.timings[self.rival]

    @property
    def now(self) -> Timing:
        return self.cell.timings[self.rival]

    @property
    def of_medians(self) -> float:
        return self.now.median / self.then.median

    @property
    def of_minima(self) -> float:
        return self.now.minimum / self.then.minimum

    @property
    def verdict(self) -> str:
        pairs, factor = [(quartiles(self.then), quartiles(self.now))], self.of_minima
        reference = HAND_WRITTEN if isinstance(self.cell, Cell) else NATIVE
        before, after = beside(self.earlier, self.rival), beside(self.cell, self.rival)
        if before is not None and after is not None:
            pairs.append((before, after))
            factor /= Change(self.cell, self.earlier, reference).of_minima
        if factor > 1 + LEAST and all(then[2] < now[0] for then, now in pairs):
            word = "slower"
        elif factor < 1 - LEAST and all(now[2] < then[0] for then, now in pairs):
            word = "faster"
        else:
            return NO_DIFFERENCE
        return MACHINE if self.rival == reference else word


def quartiles(timing: Timing) -> Quartiles:
    return timing.first_quartile, timing.median, timing.third_quartile


def beside(cell: Cell | Contest, rival: str) -> Quartiles | None:
    """Return a rival's time over the hand-written or native one's; None for that one itself."""
    ratios, reference = (
        (cell.relative, HAND_WRITTEN) if isinstance(cell, Cell) else (cell.ratios, NATIVE)
    )
    return None if rival == reference else ratios.get(rival)


def compare(then: Results, now: Results) -> list[Change]:
    earlier = {cell.key: cell for cell in (*then.cells, *then.contests)}
    return [
        Change(cell, earlier[cell.key], name)
        for cell in (*now.cells, *now.contests)
        if cell.key in earlier
        for name in cell.timings
        if name in earlier[cell.key].timings
    ]


def find_differences(then: Results, now: Results) -> list[str]:
    """Return what else differs: the machine, and the versions of what both have measured."""
    pairs = [(name, then.machine.get(name), value) for name, value in now.machine.items()]
    pairs += [(name, then.versions.get(name, value), value) for name, value in now.versions.items()]
    return [
        f"{name}: {before} then, {after} now" for name, before, after in pairs if before != after
    ]
