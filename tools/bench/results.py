"""What was measured, complete or not, and the JSON file that it becomes and is read from."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from multigrad.errors import MultigradError
from multigrad.graph.support.files import write_whole

from .cases import HAND_WRITTEN, NATIVE, Case
from .contests import Contest, contest_from_document, contest_to_document
from .measure import Quartiles, Timing, find_quartiles
from .overheads import Overhead

FORMAT, VERSION = "multigrad-bench", 1


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
        """Add what another process measured."""
        self.cells += other.cells
        self.overheads += other.overheads
        self.contests += other.contests
        self.absences += [line for line in other.absences if line not in self.absences]
        self.failures += other.failures
        self.versions |= other.versions
        self.interrupted |= other.interrupted


def best_of(repeated: Sequence[Results]) -> Results:
    """Return the cells and contests of processes that measured the same: the figures of each are
    its minimum, beside those of the hand-written or native rival.
    """
    first = repeated[0]
    groups = [{each.key: each for each in (*one.cells, *one.contests)} for one in repeated]
    cells = [replace(c, relative=_ratios(c, groups, HAND_WRITTEN)) for c in first.cells]
    contests = [replace(c, ratios=_ratios(c, groups, NATIVE)) for c in first.contests]
    return replace(
        first,
        cells=[replace(cell, timings=_timings(cell, groups)) for cell in cells],
        contests=[replace(each, timings=_timings(each, groups)) for each in contests],
        overheads=[],
    )


def _minima(own: Cell | Contest, groups: Sequence[Mapping[Any, Any]], name: str) -> list[float]:
    return [group[own.key].timings[name].minimum for group in groups if own.key in group]


def _timings(own: Cell | Contest, groups: Sequence[Mapping[Any, Any]]) -> dict[str, Timing]:
    timings = {}
    for name, timing in own.timings.items():
        figures = _minima(own, groups, name)
        low, middle, high = find_quartiles(figures)
        timings[name] = replace(
            timing,
            minimum=min(figures),
            median=middle,
            first_quartile=low,
            third_quartile=high,
            rounds=len(figures),
        )
    return timings


def _ratios(
    own: Cell | Contest, groups: Sequence[Mapping[Any, Any]], reference: str
) -> dict[str, Quartiles]:
    others = _minima(own, groups, reference)
    return {
        name: find_quartiles(
            [a / b for a, b in zip(_minima(own, groups, name), others, strict=True)]
        )
        for name in own.timings
    }


def describe_machine() -> dict[str, Any]:
    """Return what the figures depend on beside the versions."""
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
    """Return everything that was measured as plain data."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "unit": "microseconds per forward and backward",
        "interrupted": results.interrupted,
        "machine": results.machine,
        "versions": results.versions,
        "cells": [cell_to_document(cell) for cell in results.cells],
        "overheads": [{**asdict(row), "met": row.is_met} for row in results.overheads],
        "contests": [contest_to_document(contest) for contest in results.contests],
        "absences": results.absences,
        "failures": [asdict(failure) for failure in results.failures],
    }


def cell_to_document(cell: Cell) -> dict[str, Any]:
    """Return a cell as plain data."""
    return {
        "backend": cell.backend,
        "forward": cell.case.forward,
        "rule": cell.case.rule,
        "size": cell.size,
        "threads": cell.threads,
        "copy": asdict(cell.copy),
        "timings": {name: asdict(timing) for name, timing in cell.timings.items()},
        "ratios": {name: list(ratio) for name, ratio in cell.ratios.items()},
        "relative": {name: list(ratio) for name, ratio in cell.relative.items()},
        "kept_bytes": dict(cell.kept_bytes),
    }


def write(results: Results, path: Path) -> None:
    """Write the file in one step: a reader sees the old one or the new one, never a part."""
    write_whole(path, json.dumps(to_document(results), indent=1) + "\n")


def read(path: Path) -> Results:
    """Read a file that `write` wrote.

    Raises:
        ResultsFileError: it is another kind of file, or of a later version.
        OSError: it cannot be read.
    """
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
    """Return the error for a file that is none of ours."""
    return ResultsFileError(
        f"{path} is not a results file of this command: {reason};"
        f" write one with: python tools/bench --json FILE"
    )


def from_document(document: Mapping[str, Any]) -> Results:
    """Return the results that a document holds."""
    overheads = []
    for row in document["overheads"]:
        fields = {name: value for name, value in row.items() if name != "met"}
        overheads.append(Overhead(**fields))
    return Results(
        cells=[cell_from_document(cell) for cell in document["cells"]],
        overheads=overheads,
        contests=[contest_from_document(contest) for contest in document.get("contests", [])],
        absences=list(document.get("absences", [])),
        failures=[Failure(**failure) for failure in document["failures"]],
        versions=dict(document["versions"]),
        machine=dict(document["machine"]),
        interrupted=bool(document["interrupted"]),
    )


def cell_from_document(cell: Mapping[str, Any]) -> Cell:
    """Return the cell that a document holds."""
    return Cell(
        cell["backend"],
        Case(cell["forward"], cell["rule"]),
        cell["size"],
        threads=cell["threads"],
        copy=Timing(**cell["copy"]),
        timings={name: Timing(**timing) for name, timing in cell["timings"].items()},
        ratios={name: (low, middle, high) for name, (low, middle, high) in cell["ratios"].items()},
        relative={
            name: (low, middle, high) for name, (low, middle, high) in cell["relative"].items()
        },
        kept_bytes=dict(cell["kept_bytes"]),
    )
