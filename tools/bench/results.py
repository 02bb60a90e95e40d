"""What was measured, complete or not, and the JSON file that it becomes and is read from."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from multigrad.engine.support.files import write_whole
from multigrad.errors import MultigradError

from .cases import BRIDGES_PART, HAND_WRITTEN, KERAS_PART, NATIVE, OURS, Case
from .measure import Quartiles, Race, Timing, find_quartiles, summarize
from .overheads import Overhead

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

    @classmethod
    def of(
        cls, race: Race, part: str, backend: str, case: Case, *, size: int, threads: int
    ) -> Contest:
        """Return what a race comes to, in which the native code runs too."""
        timings = {name: race.summarize(name) for name in race.figures}
        ratios = {name: race.compare(name, NATIVE) for name in timings if name != NATIVE}
        figures = {"size": size, "threads": threads, "timings": timings, "ratios": ratios}
        return cls(part, backend, case, **figures)

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


FORMAT, VERSION = "multigrad-bench", 1


Measured = TypeVar("Measured", "Cell", "Contest")


class ResultsFileError(MultigradError, ValueError):
    """A file does not hold what `python tools/bench --json` writes."""


@dataclass(frozen=True, slots=True)
class Cell:
    """All rivals on one framework at one size: measured together, so to be compared with each
    other.

    Attributes:
        copy: a copy of an array as large as the input.
        timings: forward and backward of each rival.
        ratios: ours over each other rival within a round, as quartiles of the rounds, which a slow
            phase of the machine hardly moves.
        relative: likewise each rival over the hand-written one.
        kept_bytes: what each rival's forward keeps for backward; None where it cannot be seen.
    """

    backend: str
    case: Case
    size: int
    threads: int
    copy: Timing
    timings: Mapping[str, Timing]
    ratios: Mapping[str, Quartiles]
    relative: Mapping[str, Quartiles]
    kept_bytes: Mapping[str, int | None]

    @property
    def key(self) -> tuple[str, Case, int, int]:
        """What makes it the same cell in another file."""
        return self.backend, self.case, self.size, self.threads


@dataclass(frozen=True, slots=True)
class Failure:
    """What could not be measured, and why."""

    backend: str
    what: str
    reason: str


@dataclass(slots=True)
class Results:
    """What there is to show, complete or not."""

    cells: list[Cell] = field(default_factory=list)
    overheads: list[Overhead] = field(default_factory=list)
    contests: list[Contest] = field(default_factory=list)
    absences: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False

    def extend(self, other: Results) -> None:
        self.cells += other.cells
        self.overheads += other.overheads
        self.contests += other.contests
        self.absences += [line for line in other.absences if line not in self.absences]
        self.failures += other.failures
        self.versions |= other.versions
        self.interrupted |= other.interrupted


def best_of(repeated: Sequence[Results]) -> Results:
    """Return cells and contests of equal runs, with each run's minimum as a figure."""
    first = repeated[0]
    groups = [{each.key: each for each in (*one.cells, *one.contests)} for one in repeated]

    def best(own: Measured, reference: str, beside: str) -> Measured:
        runs = [group[own.key].timings for group in groups if own.key in group]
        minima = {name: [timings[name].minimum for timings in runs] for name in own.timings}
        ratios = {
            name: find_quartiles([a / b for a, b in zip(figures, minima[reference], strict=True)])
            for name, figures in minima.items()
        }
        timings = {name: summarize(minima[name], each.calls) for name, each in own.timings.items()}
        return replace(own, timings=timings, **{beside: ratios})

    cells = [best(each, HAND_WRITTEN, "relative") for each in first.cells]
    contests = [best(each, NATIVE, "ratios") for each in first.contests]
    return replace(first, cells=cells, contests=contests, overheads=[])


def describe_machine() -> dict[str, Any]:
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": read_processor(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
    }


def read_processor() -> str:
    """Return the processor's name; only Linux's own file has the whole of it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def to_document(results: Results) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "unit": "microseconds per forward and backward",
        "interrupted": results.interrupted,
        "machine": results.machine,
        "versions": results.versions,
        "cells": list(map(to_row, results.cells)),
        "overheads": [{**asdict(row), "met": row.is_met} for row in results.overheads],
        "contests": list(map(to_row, results.contests)),
        "absences": results.absences,
        "failures": [asdict(failure) for failure in results.failures],
    }


def to_row(measured: Cell | Contest) -> dict[str, Any]:
    row = asdict(measured)
    return {**row.pop("case"), **row}


def read_row(kind: type[Measured], row: Mapping[str, Any]) -> Measured:
    fields = {**row, "case": Case(row["forward"], row["rule"])}
    del fields["forward"], fields["rule"]
    fields["timings"] = {name: Timing(**timing) for name, timing in row["timings"].items()}
    if "copy" in row:
        fields["copy"] = Timing(**row["copy"])
    for name in {"ratios", "relative"} & row.keys():
        fields[name] = {rival: (a, b, c) for rival, (a, b, c) in row[name].items()}
    return kind(**fields)


def write(results: Results, path: Path) -> None:
    """Write the file in one step: a reader sees the old one or the new one, never a part."""
    write_whole(path, json.dumps(to_document(results), indent=1) + "\n")


def read(path: Path) -> Results:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise refuse(path, "it is not JSON") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise refuse(path, f'it has no "format": "{FORMAT}"')
    if document.get("version") != VERSION:
        raise refuse(path, f"its version is {document.get('version')!r}, this one reads {VERSION}")
    try:
        return from_document(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise refuse(path, f"it is damaged ({type(error).__name__}: {error})") from error


def refuse(path: Path, reason: str) -> ResultsFileError:
    return ResultsFileError(
        f"{path} is not a results file of this command: {reason};"
        f" write one with: python tools/bench --json FILE"
    )


def from_document(document: Mapping[str, Any]) -> Results:
    rows = [{name: row[name] for name in row if name != "met"} for row in document["overheads"]]
    return Results(
        cells=[read_row(Cell, row) for row in document["cells"]],
        overheads=[Overhead(**row) for row in rows],
        contests=[read_row(Contest, row) for row in document.get("contests", [])],
        absences=list(document.get("absences", [])),
        failures=[Failure(**failure) for failure in document["failures"]],
        versions=dict(document["versions"]),
        machine=dict(document["machine"]),
        interrupted=bool(document["interrupted"]),
    )
