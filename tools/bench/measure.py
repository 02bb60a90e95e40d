"""Taking the time: all contenders run interleaved, so that what slows one slows all alike."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from .cases import Effort

Call = Callable[[], Any]
Quartiles = tuple[float, float, float]
Surroundings = Callable[[], AbstractContextManager[Any]]

MOST_CALLS = 500
TRIALS = 3


@dataclass(frozen=True, slots=True)
class Timing:
    """What one contender took, in microseconds per call.

    The quartiles are the spread: half of the rounds lie between them.
    """

    minimum: float
    median: float
    first_quartile: float
    third_quartile: float
    rounds: int
    calls: int


class Clocked:
    """A step that says how many seconds the processors worked, and keeps those on the wall."""

    def __init__(self, step: Call) -> None:
        self.step = step
        self.wall: list[float] = []

    def __call__(self) -> float:
        worked, start = time.process_time(), time.perf_counter()
        self.step()
        self.wall.append(time.perf_counter() - start)
        return time.process_time() - worked


@dataclass(frozen=True, slots=True)
class Race:
    """The figures of all contenders, round by round, in microseconds per call."""

    figures: Mapping[str, Sequence[float]]
    calls: Mapping[str, int]

    def summarize(self, name: str) -> Timing:
        return summarize(self.figures[name], self.calls[name])

    def compare(self, name: str, other: str) -> Quartiles:
        """Return the quartiles of the ratio within a round, which a slow phase does not touch."""
        return find_quartiles([a / b for a, b in self.pair(name, other)])

    def subtract(self, name: str, other: str) -> Quartiles:
        """Return the quartiles of the difference within a round."""
        return find_quartiles([a - b for a, b in self.pair(name, other)])

    def pair(self, name: str, other: str) -> Iterator[tuple[float, float]]:
        return zip(self.figures[name], self.figures[other], strict=True)


def summarize(figures: Sequence[float], calls: int) -> Timing:
    """Return the timing that figures come to."""
    low, middle, high = find_quartiles(figures)
    spread = {"first_quartile": low, "third_quartile": high}
    return Timing(min(figures), middle, **spread, rounds=len(figures), calls=calls)


def run_race(
    contenders: Mapping[str, Call],
    effort: Effort,
    surroundings: Mapping[str, Surroundings] | None = None,
    calls: int | None = None,
    finish: Call | None = None,
) -> Race:
    """Run all contenders in every round, each round beginning with another one.

    Args:
        contenders: what to call, by name. Each has run, and so has compiled, before the first
            round.
        effort: how long to go on.
        surroundings: for some names, what to be inside of while it is called; not timed.
        calls: calls per figure; chosen by `effort.block` where not given.
        finish: waits for what calls have begun, at the end of each figure, as part of it.
    """
    around = surroundings or {}
    names = list(contenders)
    counts = {}
    for name in names:
        with around.get(name, nullcontext)():
            counts[name] = calls or choose_calls(contenders[name], effort.block, finish)
    figures: dict[str, list[float]] = {name: [] for name in names}
    with collector_paused():
        for name in take_turns(names, effort):
            with around.get(name, nullcontext)():
                if around:  # to enter them may have emptied the processor's caches
                    take_time(contenders[name], TRIALS)
                figures[name].append(take_time(contenders[name], counts[name], finish) * 1e6)
    return Race(figures, counts)


def run_clocked_race(contenders: Mapping[str, Callable[[], float]], effort: Effort) -> Race:
    """Run contenders that say how many seconds they took; each has run before."""
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    with collector_paused():
        for name in take_turns(list(contenders), effort):
            figures[name].append(contenders[name]() * 1e6)
    return Race(figures, dict.fromkeys(contenders, 1))


def take_turns(names: Sequence[str], effort: Effort) -> Iterator[str]:
    """Yield all names in every round, each round beginning with another one."""
    deadline = time.perf_counter() + effort.seconds
    for number in range(effort.most):
        if number >= effort.fewest and time.perf_counter() > deadline:
            return
        first = number % len(names)
        yield from (*names[first:], *names[:first])


def choose_calls(call: Call, block: float, finish: Call | None = None) -> int:
    """Return how many calls fill a block, after calls that compile and warm."""
    call()
    fastest = min(take_time(call, 1, finish) for _ in range(TRIALS))
    return max(1, min(MOST_CALLS, math.ceil(block / fastest)))


def take_time(call: Call, calls: int, finish: Call | None = None) -> float:
    """Return the seconds of one call, the mean of several."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    if finish is not None:
        finish()
    return (time.perf_counter() - start) / calls


def find_quartiles(figures: Sequence[float]) -> Quartiles:
    if len(figures) == 1:
        return figures[0], figures[0], figures[0]
    low, middle, high = statistics.quantiles(figures, n=4, method="inclusive")
    return low, middle, high


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep Python's garbage collector from running inside a figure."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
