"""`multigrad parity`: one backend after the other, so that Ctrl-C leaves the rows of some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

import multigrad as xg
from multigrad.look.parity import ParityReport, find_names

from . import STOPPED
from .options import FAILED, Progress


def run_parity(found: Any, inputs: Sequence[Any], names: Sequence[str]) -> int:
    """Print what backends give, all that are installed if none is named; return the exit status.

    Raises:
        MultigradError: there is no such backend, or it cannot be captured.
    """
    reports: list[ParityReport] = []
    with Progress() as progress:
        progress.begin("importing the frameworks")
        for name in progress.each(find_names(names or None)):
            reports.append(xg.parity(found, *inputs, backends=name))
    if reports:
        rows = tuple(row for report in reports for row in report.rows)
        typer.echo(ParityReport(reports[0].name, rows))
    if progress.stopped:
        return STOPPED
    return 0 if all(reports) else FAILED
