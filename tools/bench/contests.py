"""What stands beside the native code of its framework: bridges and Keras layers, and how much
longer they may take.

Kept apart from `results`, which writes and reads them, so that the process that runs Keras needs
nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .cases import BRIDGES_PART, KERAS_PART, NATIVE, OURS, Case
from .measure import Quartiles, Timing

LARGE = 1_000_000
BRIDGE_TARGETS = {"torch": 2.0, "tensorflow": 8.0, "jax": 20.0}
FIT_TARGET = 1.05


@dataclass(frozen=True, slots=True)
class Contest:
    """All contenders of one framework at one size: measured together, so to be compared with each
    other.

    Attributes:
        part: "bridges" or "keras".
        backend: the host, or what Keras runs on.
        size: elements in a call of the activation.
        timings: of a forward and backward, or of an epoch, for each contender, the native one among
            them.
        ratios: each contender over the native one within a round, as quartiles of the rounds.
    """

    part: str
    backend: str
    case: Case
    size: int
    threads: int
    timings: Mapping[str, Timing]
    ratios: Mapping[str, Quartiles]

    @property
    def key(self) -> tuple[str, str, Case, int, int]:
        """What makes it the same contest in another file."""
        return self.part, self.backend, self.case, self.size, self.threads

    def target(self, name: str) -> float | None:
        """Return how many times the native code's time a contender may take, where that is set."""
        if self.part == KERAS_PART:
            return FIT_TARGET if name == OURS else None
        if self.part == BRIDGES_PART and self.size >= LARGE and name != NATIVE:
            return BRIDGE_TARGETS.get(self.backend)
        return None


def contest_to_document(contest: Contest) -> dict[str, Any]:
    """Return a contest as plain data."""
    return {
        "part": contest.part,
        "backend": contest.backend,
        "forward": contest.case.forward,
        "rule": contest.case.rule,
        "size": contest.size,
        "threads": contest.threads,
        "timings": {name: asdict(timing) for name, timing in contest.timings.items()},
        "ratios": {name: list(ratio) for name, ratio in contest.ratios.items()},
    }


def contest_from_document(contest: Mapping[str, Any]) -> Contest:
    """Return the contest that a document holds."""
    return Contest(
        contest["part"],
        contest["backend"],
        Case(contest["forward"], contest["rule"]),
        size=contest["size"],
        threads=contest["threads"],
        timings={name: Timing(**timing) for name, timing in contest["timings"].items()},
        ratios={
            name: (low, middle, high) for name, (low, middle, high) in contest["ratios"].items()
        },
    )
