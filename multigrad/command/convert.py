"""The command `multigrad convert`: custom gradients on every backend.

All those of a file or a package run in another process, each with a time limit. A row is printed
as soon as it is known, so that Ctrl-C loses none.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from multigrad.engine.functions.custom_gradient import refuse_rule
from multigrad.errors import MultigradError
from multigrad.look.convert import (
    AS_IT_IS,
    BAD,
    COMPILE,
    DIFFERS,
    EQUAL,
    FAILED,
    REFUSED,
    SAME,
    VMAP,
    Conversion,
    Verdict,
    convert,
    run_where_it_ends,
)
from multigrad.look.parity import find_names

from . import STOPPED, options
from .guessed_inputs import choose_inputs, inputs_to_type, number_hints, read_inputs, split_name
from .messages import sent
from .options import Progress
from .targets import GRADIENT, callable_of, find_apart, find_target, is_of_library, stated_inputs
from .worker import Apart, Lost

SHORT = {EQUAL: SAME}
NEEDS_INPUT, GIVEN_UP = "needs --input", "given up"
Print = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class ConvertRequest:
    """The options of a conversion, the same for every custom gradient.

    `words` are the inputs, guessed if there are none; `names` and `compiled` are backends.
    """

    words: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    compiled: tuple[str, ...] = ()
    copies: bool = False
    limit: float = 120.0
    transforms: bool = True


sent(ConvertRequest, Conversion, Verdict)


def convert_named(what: str, asked: ConvertRequest, *, as_json: bool, echo: Print) -> int:
    """Convert a target, or all of a file, a module or a package, print verdicts, and return the
    exit status.
    """
    read_inputs(asked.words)
    if not (split_name(what)[1] or is_of_library(what)):
        return _convert_all(what, asked, as_json=as_json, echo=echo)
    with Progress() as progress:
        progress.begin(f"converting {what}")
        report = convert_one(what, asked, find_names(asked.names or None))
    if progress.stopped:
        return STOPPED
    if report.problem:
        raise MultigradError(str(report))
    hints = [] if report.ok else number_hints(asked.words)
    echo(to_json(what, report) if as_json else "\n".join([str(report), *hints]))
    return 0 if report.ok else options.FAILED


def _convert_all(what: str, asked: ConvertRequest, *, as_json: bool, echo: Print) -> int:
    kinds: Counter[str] = Counter()
    transform_counts: dict[str, Counter[str]] = {VMAP: Counter(), COMPILE: Counter()}
    names: tuple[str, ...] = ()
    with Progress(echo) as progress, Apart(asked.limit) as process:
        progress.begin(f"importing {what}")
        say: Print = str if as_json else progress.echo
        names = find_apart(process, what, say).of(GRADIENT)
        # Imports the frameworks, in the next process, too: that is no part of a conversion's time.
        process.first.append((find_names, asked.names or None))
        on = process.call(*process.first[-1]) if names else ()
        table = Table(names, (*on, *((VMAP, COMPILE) if asked.transforms else ())))
        say(table.line() if names else f"{what} defines no custom gradients")
        for name in progress.each(names):
            try:
                report = process.call(convert_one, name, asked, on)
                kind, cause = summarize(report)
            except MultigradError as error:
                report = Conversion(name, "", (), problem=str(error))
                kind, cause = summarize(report)
                # The process ended or hung: a state of its own, not a refusal of the code.
                if isinstance(error, Lost):
                    kind, cause = GIVEN_UP, f"{GIVEN_UP}: {error}"
            kinds[kind] += 1
            for verdict in report.transforms:
                transform_counts[verdict.backend][verdict.state] += 1
            progress.echo(to_json(name, report) if as_json else table.line(name, report, cause))
    if names and not as_json:
        echo(f"{kinds.total()} of {len(names)} custom gradients: {_say_counts(kinds)}")
        for name, states in transform_counts.items():
            if states:
                echo(f"under {name}: {_say_counts(states)}")
    if progress.stopped:
        return STOPPED
    # A refusal is no failure of the command; errors, other numbers, lost calls and none are.
    return options.FAILED if any(kind in kinds for kind in (*BAD, GIVEN_UP, NEEDS_INPUT)) else 0


class Table(NamedTuple):
    """A table of custom gradients by name, with columns for backends and transforms."""

    names: Sequence[str]
    columns: Sequence[str]

    def line(self, name: str = "", report: Conversion | None = None, cause: str = "") -> str:
        """Return a row of a table, without a report its heading."""
        cells = {each: each for each in self.columns}
        if report is not None:
            cells = {row.backend: SHORT.get(row.state, row.state) for row in report.rows}
        texts = [f"{cells.get(each, '-'):{max(len(each), len(AS_IT_IS))}}" for each in self.columns]
        return "  ".join([f"{name:{max(map(len, self.names))}}", *texts, cause]).rstrip()


# --- in another process, if they are those of a file or a package ---------------------------------
def convert_one(what: str, asked: ConvertRequest, names: Sequence[str]) -> Conversion:
    obj = callable_of(find_target(what))
    refuse_rule(obj)
    stated = None if asked.words else stated_inputs(what)
    _, inputs = choose_inputs(what, obj, asked.words, stated, run_where_it_ends)
    report = convert(
        obj, *inputs, backends=names, compiled=asked.compiled,
        copies=asked.copies, transforms=asked.transforms,
    )  # fmt: skip
    if not report.problem:
        return report
    hints = *number_hints(asked.words), inputs_to_type(obj)
    return replace(report, problem="; ".join([report.problem.rstrip("."), *hints]))


def summarize(report: Conversion) -> tuple[str, str]:
    """Return the worst state of a report and its first cause.

    A transform that is refused leaves the state `converted, equal`, and gives the cause.
    """
    if report.problem:
        return NEEDS_INPUT, f"{NEEDS_INPUT}: {report.problem}"
    # The worst first; transforms count only if they give other numbers.
    for state in (DIFFERS, FAILED, REFUSED, AS_IT_IS):
        for verdict in report.rows if state in BAD else report.verdicts:
            if verdict.state == state:
                return state, f"{verdict.backend}: {verdict.reason}"
    refused = (v for v in report.transforms if v.state != SAME)
    return EQUAL, next((f"{v.backend}: {v.reason}" for v in refused), "")


def to_json(name: str, report: Conversion) -> str:

    def as_rows(verdicts: Sequence[Verdict]) -> dict[str, Any]:
        places = [(each, *(each.place or (None, None))) for each in verdicts]
        return {
            each.backend: {"state": each.state, "reason": each.reason, "file": file, "line": line}
            for each, file, line in places
        }

    extras: dict[str, Any] = {"problem": report.problem} if report.problem else {}
    if report.transforms:
        extras["transforms"] = as_rows(report.transforms)
    return json.dumps(
        {"name": name, "home": report.home, "verdicts": as_rows(report.verdicts), **extras}
    )


def _say_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())
