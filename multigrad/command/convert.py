"""The command `multigrad convert`: a custom gradient, or all of a package, on every backend.

Those of a package run in another process, each with a time limit. A row is printed as soon as it is
known, so that Ctrl-C loses none.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from multigrad.backend.discovery import backends
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
)

from . import STOPPED, options
from .guessed_inputs import guess_inputs, inputs_to_type
from .named_objects import find_custom_gradients, find_in, import_named, read_inputs, split_name
from .options import Progress
from .worker import Apart, Lost

SHORT = {EQUAL: SAME}
NEEDS_INPUT, GIVEN_UP = "needs --input", "given up"
Print = Callable[[str], None]


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


def convert_named(what: str, asked: ConvertRequest, *, as_json: bool, echo: Print) -> int:
    """Convert module:name, or a module or package, print verdicts, and return the exit status."""
    read_inputs(asked.words)
    if not split_name(what)[1]:
        return _convert_package(what, asked, as_json=as_json, echo=echo)
    with Progress() as progress:
        progress.begin(f"converting {what}")
        report = convert_one(what, asked, installed(asked.names))
    if progress.stopped:
        return STOPPED
    if report.problem:
        raise MultigradError(str(report))
    echo(to_json(what, report) if as_json else str(report))
    return 0 if report.ok else options.FAILED


def _convert_package(module: str, asked: ConvertRequest, *, as_json: bool, echo: Print) -> int:
    kinds: Counter[str] = Counter()
    transform_counts: dict[str, Counter[str]] = {VMAP: Counter(), COMPILE: Counter()}
    gradients = PackageGradients()
    with Progress(echo) as progress, Apart(asked.limit) as process:
        progress.begin(f"importing {module}")
        # Runs first in every new process, where it does not count against a conversion's limit.
        process.first = (find_all, module, asked)
        gradients = process.call(*process.first)
        if gradients.names and not as_json:
            progress.echo(gradients.line())
        for name in progress.each(gradients.names):
            try:
                report = process.call(convert_one, name, asked, gradients.backends)
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
            progress.echo(to_json(name, report) if as_json else gradients.line(name, report, cause))
    unimported, failure = gradients.unimported, ""
    if unimported:
        first, reason = next(iter(unimported.items()))
        failure = (
            f"{len(unimported)} of its modules cannot be imported, {first} for instance: {reason}"
        )
    if not as_json and not gradients.names and not progress.stopped:
        echo(f"{module} defines no custom gradients{f'; {failure}' if failure else ''}")
    elif not as_json:
        echo(f"{kinds.total()} of {len(gradients.names)} custom gradients: {_say_counts(kinds)}")
        for name, states in transform_counts.items():
            if states:
                echo(f"under {name}: {_say_counts(states)}")
        if failure:
            echo(failure)
    if progress.stopped:
        return STOPPED
    # A refusal is no failure of the command; errors, other numbers and lost calls are.
    return options.FAILED if any(kind in kinds for kind in (*BAD, GIVEN_UP)) else 0


@dataclass(frozen=True, slots=True)
class PackageGradients:
    """The custom gradients of a package, the backends and transforms to try, and failed imports."""

    names: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    unimported: Mapping[str, str] = field(default_factory=dict)
    transforms: tuple[str, ...] = ()

    def line(self, name: str = "", report: Conversion | None = None, cause: str = "") -> str:
        """Return a row of a table, without a report its heading."""
        columns = (*self.backends, *self.transforms)
        cells = {each: each for each in columns}
        if report is not None:
            cells = {row.backend: SHORT.get(row.state, row.state) for row in report.rows}
        texts = [f"{cells.get(each, '-'):{max(len(each), len(AS_IT_IS))}}" for each in columns]
        return "  ".join([f"{name:{max(map(len, self.names))}}", *texts, cause]).rstrip()


# --- in another process, if they are a package's ------------------------------------------------
def find_all(module: str, asked: ConvertRequest) -> PackageGradients:
    gradients, unimported = find_custom_gradients(import_named(module))
    transforms = (VMAP, COMPILE) if asked.transforms else ()
    return PackageGradients(tuple(gradients), installed(asked.names), unimported, transforms)


def installed(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(names) or tuple(row.name for row in backends(load=True) if row.installed)


def convert_one(what: str, asked: ConvertRequest, names: Sequence[str]) -> Conversion:
    module, name = split_name(what)
    obj = find_in(import_named(module), name)
    inputs = read_inputs(asked.words) or guess_inputs(obj)
    report = convert(
        obj, *inputs, backends=names, compiled=asked.compiled, guessed=not asked.words,
        copies=asked.copies, transforms=asked.transforms,
    )  # fmt: skip
    if not report.problem:
        return report
    return replace(report, problem=f"{report.problem.rstrip('.')}; {inputs_to_type(obj)}")


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
