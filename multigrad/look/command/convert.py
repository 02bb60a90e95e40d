"""`multigrad convert`: what becomes of other people's custom gradients, one of them or a package's.

Each row is printed when it is known, so that what was printed stays where somebody stops it.
"""

from __future__ import annotations

import inspect
import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from multigrad.backend.finding.discovery import backends
from multigrad.errors import MultigradError
from multigrad.look.convert import (
    AS_IT_IS,
    BAD,
    DIFFERS,
    EQUAL,
    FAILED,
    REFUSED,
    Conversion,
    Verdict,
    convert,
)
from multigrad.look.originals import arguments_of, find_original

from .inputs import SEED, draw, read_inputs
from .named import find_in, import_named
from .packages import find_custom_gradients

SHAPE = (4, 6)  # of the tensors that are guessed
NUMBER = 2  # that is guessed: a length, a factor
# What else is guessed of arguments that take no tensor: by their annotations, by their names.
NUMBERS: Mapping[str, Any] = {"bool": True, "int": NUMBER, "float": 0.5, "str": "mean"}
AXES = ("axis", "axes", "dim", "dims")
SLOW = 20.0  # seconds until a conversion is named that has not ended
SHORT = {EQUAL: "equal"}
NEEDS_INPUT = "needs --input"
FAILURE, STOPPED = 1, 130
Print = Callable[[str], None]


def convert_named(
    what: str,
    words: Sequence[str],
    *,
    names: Sequence[str],
    compiled: Sequence[str],
    as_json: bool,
    echo: Print,
    copies: bool = False,
) -> int:
    """Convert what is named, print its verdicts, and return the exit status.

    Args:
        what: module:name, or a module or package.
        words: the inputs, one for each argument; guessed where there are none.
        names: the backends; all that are installed if empty.
        compiled: those on which it also runs under the framework's compiler.
        copies: whether code that writes into its arguments does so on copies.

    Raises:
        MultigradError: there is no such thing, a word is no input, or the original does not take
            the inputs.
    """
    inputs = read_inputs(words) or None
    module, _, name = what.partition(":")
    holder = import_named(module)
    chosen = tuple(names) or tuple(row.name for row in backends(load=True) if row.installed)

    def run(shown: str, obj: Any) -> Conversion:
        given = guess_inputs(obj) if inputs is None else inputs
        options = {"compiled": compiled, "guessed": inputs is None, "copies": copies}
        report = convert(obj, *given, backends=chosen, **options)
        if not report.problem:
            return report
        line = line_to_type("convert", shown, obj)
        return replace(report, problem=f"{report.problem.rstrip('.')}; {line}")

    if name:
        report = run(what, find_in(holder, name))
        if report.problem:
            raise MultigradError(str(report))
        echo(to_json(what, report) if as_json else str(report))
        return 0 if report.ok else FAILURE
    found = find_custom_gradients(holder)
    if not found.named and not as_json:
        echo(f"{module} defines no custom gradients{_say_unimported(found.unimported)}")
        return 0
    rows = _convert_all(found.named, run)
    status = _print_json(rows, echo) if as_json else _print_table(rows, found.named, chosen, echo)
    if found.unimported and not as_json:
        echo(_say_unimported(found.unimported).removeprefix("; "))
    return status


def guess_inputs(obj: Any) -> list[Any]:
    """Return inputs by the signature: a float32 tensor for each argument without a default, a
    number for one that takes no tensor.

    Raises:
        MultigradError, RuleTypeError: obj is nothing that could be called.
    """
    original = find_original(obj)
    fixed = getattr(original.function.recipe, "fixed_names", ())
    generator = np.random.default_rng(SEED)
    return [
        guess_number(parameter) if parameter.name in fixed else draw(SHAPE, "float32", generator)
        for parameter in arguments_of(original) or ()
    ] or [draw(SHAPE, "float32", generator)]


def guess_number(parameter: inspect.Parameter) -> Any:
    """Return what may fit an argument that takes no tensor."""
    annotation = getattr(parameter.annotation, "__name__", parameter.annotation)
    return NUMBERS.get(str(annotation), -1 if parameter.name in AXES else NUMBER)


def line_to_type(command: str, what: str, obj: Any) -> str:
    """Return a line that gives an input to each argument, and their names."""
    given = zip(arguments_of(find_original(obj)) or [None], guess_inputs(obj), strict=False)
    words = [
        (getattr(p, "name", "x"), "x".join(map(str, SHAPE)) if hasattr(x, "shape") else repr(x))
        for p, x in given
    ]
    inputs = " ".join(f"--input {word}" for _, word in words)
    names = ", ".join(name for name, _ in words)
    return f"type, with what fits {names}: multigrad {command} {what} {inputs}"


def _convert_all(
    named: Mapping[str, Any], run: Callable[[str, Any], Conversion]
) -> Iterable[tuple[str, Conversion]]:
    for name, obj in named.items():
        try:
            with saying_if_slow(name):
                report = run(name, obj)
        except MultigradError as error:
            report = Conversion(name, "", (), problem=str(error))
        yield name, report


@contextmanager
def saying_if_slow(name: str) -> Iterator[None]:
    """Say what is being converted where that takes long."""

    def say() -> None:
        print(f"{name}: still at it after {SLOW:.0f} s", file=sys.stderr, flush=True)

    timer = threading.Timer(SLOW, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


# --- printing -----------------------------------------------------------------------------------


def _print_table(
    rows: Iterable[tuple[str, Conversion]],
    named: Mapping[str, Any],
    backends: Sequence[str],
    echo: Print,
) -> int:
    """Print a line for each row as it comes, then how many there are of each kind."""
    wide = max(map(len, named))
    columns = [max(len(name), len(AS_IT_IS)) for name in backends]
    cells = "  ".join(f"{name:{column}}" for name, column in zip(backends, columns, strict=True))
    echo(f"{'':{wide}}  {cells}".rstrip())
    kinds: dict[str, int] = {}
    stopped = False
    try:
        for name, report in rows:
            kind, cause = summarize(report)
            kinds[kind] = kinds.get(kind, 0) + 1
            states = {v.backend: SHORT.get(v.state, v.state) for v in report.verdicts}
            cells = "  ".join(
                f"{states.get(name, '-'):{column}}"
                for name, column in zip(backends, columns, strict=True)
            )
            echo(f"{name:{wide}}  {cells}  {cause}".rstrip())
    except KeyboardInterrupt:
        stopped = True
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    echo(f"{sum(kinds.values())} of {len(named)} custom gradients: {counts}")
    return STOPPED if stopped else int(any(kind in kinds for kind in BAD))


def _print_json(rows: Iterable[tuple[str, Conversion]], echo: Print) -> int:
    """Print a JSON object on a line of its own for each row as it comes."""
    status = 0
    try:
        for name, report in rows:
            echo(to_json(name, report))
            status = status or int(not report.ok)
    except KeyboardInterrupt:
        return STOPPED
    return status


def summarize(report: Conversion) -> tuple[str, str]:
    """Return the worst state of a report, and its first cause."""
    if report.problem:
        return NEEDS_INPUT, f"{NEEDS_INPUT}: {report.problem}"
    for state in (DIFFERS, FAILED, REFUSED, AS_IT_IS):
        for verdict in report.verdicts:
            if verdict.state == state:
                return state, f"{verdict.backend}: {verdict.reason}"
    return EQUAL, ""


def to_json(name: str, report: Conversion) -> str:
    """Return a report as one line of JSON."""
    verdicts = {verdict.backend: _as_data(verdict) for verdict in report.verdicts}
    rest = {"problem": report.problem} if report.problem else {}
    return json.dumps({"name": name, "home": report.home, "verdicts": verdicts, **rest})


def _as_data(verdict: Verdict) -> dict[str, Any]:
    file, line = verdict.place or (None, None)
    return {"state": verdict.state, "reason": verdict.reason, "file": file, "line": line}


def _say_unimported(unimported: Mapping[str, str]) -> str:
    if not unimported:
        return ""
    name, reason = next(iter(unimported.items()))
    return f"; {len(unimported)} of its modules cannot be imported, {name} for instance: {reason}"
