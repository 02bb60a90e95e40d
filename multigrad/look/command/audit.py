"""`multigrad audit`: custom gradients held against laws, one of them, a file's or a package's.

Each runs in another process, with a limit. It is printed when it is known, so that what was printed
stays where somebody stops it.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from multigrad.errors import MultigradError
from multigrad.functions.function import Function
from multigrad.look.audit.ahead import advise, help_imports, place_of, read_notes
from multigrad.look.audit.audit import BROKEN, AuditReport, audit
from multigrad.look.audit.laws import LAWS
from multigrad.look.originals import arguments_of, find_original
from multigrad.rules.model.rule import Rule

from .apart import Apart
from .audit_pages import to_html, to_junit
from .convert import SHAPE, guess_inputs
from .inputs import SEED, draw, read_inputs
from .named import find_in, import_named
from .packages import find_custom_gradients

FAILURE, STOPPED = 1, 130
INPUTS_IN_CODE = "GRADIENT_INPUTS"
Print = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of every target.

    Attributes:
        words: the inputs, one for each argument; guessed where there are none.
        laws: the names of those to hold it against; None: all.
        surrogate: whether the gradient is meant to differ from the derivative; None: it is found.
        limit: seconds for each target.
    """

    words: tuple[str, ...] = ()
    laws: tuple[str, ...] | None = None
    surrogate: bool | None = None
    limit: float = 120.0


def audit_targets(
    targets: Sequence[str],
    asked: Asked,
    *,
    as_json: bool = False,
    junit: Path | None = None,
    html: Path | None = None,
    echo: Print = print,
) -> int:
    """Audit what is named, print what came of each, and return the exit status.

    Args:
        targets: module:name, a module, a package or a file.
        junit, html: where reports are written.

    Raises:
        MultigradError: there is no such thing, or a law has another name.
        OSError: a report cannot be written.
    """
    read_inputs(asked.words)
    found: list[tuple[str, AuditReport]] = []
    is_stopped = False
    with Apart(asked.limit) as process:
        try:
            for name in _names(process, targets, None if as_json else echo):
                report = _audit(process, name, asked)
                found.append((name, report))
                echo(_as_line(name, report) if as_json else _as_text(name, report))
        except KeyboardInterrupt:
            is_stopped = True
    if not as_json:
        echo(summarize(report for _, report in found))
    if junit is not None:
        junit.write_text(to_junit(found), encoding="utf-8")
    if html is not None:
        html.write_text(to_html(found), encoding="utf-8")
    if is_stopped:
        return STOPPED
    return 0 if all(report.ok for _, report in found) else FAILURE


def choose_laws(only: Sequence[str], but: Sequence[str]) -> tuple[str, ...] | None:
    """Return the names of the laws that are asked for, None for all.

    Raises:
        MultigradError: there is none of a name.
    """
    known = [law.name for law in LAWS]
    for name in (*only, *but):
        if name not in known:
            raise MultigradError(f"no law {name!r}; there are {', '.join(known)}")
    if not only and not but:
        return None
    return tuple(name for name in known if (not only or name in only) and name not in but)


def _names(process: Apart, targets: Sequence[str], say: Print | None) -> Iterator[str]:
    for target in targets:
        process.first = (find_targets, target)  # to import it takes none of an audit's time
        names, unimported = process.call(*process.first)
        if say is not None:
            if not names:
                say(f"{target} defines no custom gradients")
            for name, reason in unimported.items():
                say(f"{name} cannot be imported: {reason}")
            for note in process.call(read_notes):
                say(f"{target} {note}")
        yield from names


def _audit(process: Apart, name: str, asked: Asked) -> AuditReport:
    try:
        report: AuditReport = process.call(audit_named, name, asked)
    except MultigradError as error:
        return AuditReport(name, "", (), problem=str(error))
    return report


# --- in the other process -------------------------------------------------------------------------
def find_targets(what: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return what is to be audited, as module:name, and which modules cannot be imported.

    Raises:
        MultigradError: there is no such thing.
    """
    module, _, name = what.partition(":")
    holder = _import(module)
    if name:
        find_in(holder, name)
        return (what,), {}
    found = find_custom_gradients(holder, (Function, Rule))
    names = (each.removeprefix(f"{holder.__name__}:") for each in found.named)
    return tuple(each if ":" in each else f"{module}:{each}" for each in names), found.unimported


def audit_named(what: str, asked: Asked) -> AuditReport:
    """Audit one thing, with inputs that are given, that its module states, or that are guessed.

    Raises:
        MultigradError: there is no such thing, or nothing that is guessed runs.
    """
    module, _, name = what.partition(":")
    holder = _import(module)
    fn = find_in(holder, name)
    stated = vars(holder).get(INPUTS_IN_CODE, {}).get(name)
    report = AuditReport(what, "", (), "nobody knows its arguments")
    for inputs in inputs_to_try(fn, asked.words, stated):
        report = audit(fn, *inputs, laws=asked.laws, surrogate=asked.surrogate)
        if not report.problem:
            return replace(report, home=place_of(report.home))
    if not asked.words and stated is None:
        problem = f"no inputs that were guessed fit; give --input. {report.problem}"
        return replace(report, problem=problem)
    return report


def _import(name: str) -> types.ModuleType:
    help_imports()
    try:
        return _import_as_named(name)
    except MultigradError as error:
        advice = advise(error.__cause__)
        if not advice:
            raise
        raise MultigradError(f"{error}{advice}") from error


def _import_as_named(name: str) -> types.ModuleType:
    path = Path(name)
    if path.suffix != ".py":
        return import_named(name)
    if path.stem in sys.modules and getattr(sys.modules[path.stem], "__file__", "") == str(path):
        return sys.modules[path.stem]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise MultigradError(f"there is no file {name}")
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[path.stem]
        raise MultigradError(
            f"{name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    finally:
        sys.path.remove(str(path.parent))
    return module


# --- inputs that are guessed ----------------------------------------------------------------------
NUMBERS = {"bool": True, "int": 2, "float": 0.5, "str": "mean"}
INTEGERS = ("target", "targets", "label", "labels", "index", "indices", "ids", "idx")
LINES = ("bias", "gamma", "beta", "running_mean", "running_var")
EACH = SHAPE[-1]
SHAPES = (SHAPE, (EACH, EACH), (EACH,), (2, 4, EACH), (2, 3, 4, EACH))
MOST_GUESSES = 40


def inputs_to_try(fn: Any, words: Sequence[str] = (), stated: Any = None) -> Iterable[Any]:
    """Return the inputs to try, the likeliest first."""
    if words:
        return [read_inputs(words)]
    if stated is not None:
        return [stated() if callable(stated) else stated]
    return itertools.islice(_guesses(fn), MOST_GUESSES)


def _guesses(fn: Any) -> Iterator[list[Any]]:
    parameters = arguments_of(find_original(fn)) or [None]
    for shape in SHAPES:
        generator = np.random.default_rng(SEED)
        likely = [_likely(parameter, shape, generator) for parameter in parameters]
        yield likely
        if shape == SHAPE:
            yield guess_inputs(fn)
        yield [draw(shape, "float32", generator) for _ in parameters]
        for number in (2, 0.5, None):  # what follows the first is often no tensor
            yield [likely[0], *(number for _ in likely[1:])]


def _likely(parameter: Any, shape: tuple[int, ...], generator: np.random.Generator) -> Any:
    """Return a value by an argument's annotation, else by its name."""
    annotation = str(getattr(parameter, "annotation", ""))
    for word, number in NUMBERS.items():
        if f"'{word}'" in annotation or annotation == word:
            return number
    name = str(getattr(parameter, "name", ""))
    if name in INTEGERS:
        return draw(shape[:1], "int64", generator)
    if name == "mask" or name.endswith("_mask"):
        return draw(shape, "bool", generator)
    if name in ("dim", "axis"):
        return -1
    if name == "eps" or name.startswith("epsilon"):
        return 1e-5
    if name in LINES:
        return draw(shape[-1:], "float32", generator)
    if name == "weight" and len(shape) > 1:
        return draw((EACH, EACH), "float32", generator)
    return draw(shape, "float32", generator)


# --- printing -------------------------------------------------------------------------------------
def _as_line(name: str, report: AuditReport) -> str:
    return json.dumps({"target": name, **json.loads(report.to_json())})


def _as_text(name: str, report: AuditReport) -> str:
    return str(report).replace(report.name, name, 1)


def summarize(reports: Iterable[AuditReport]) -> str:
    """Return how many were audited, and which laws are broken how often."""
    every = list(reports)
    broken = Counter(finding.law for report in every for finding in report.findings)
    unrun = sum(bool(report.problem) for report in every)
    kept = sum(report.ok for report in every)
    lines = [f"{len(every)} audited: {kept} keep every law, {unrun} do not run"]
    lines += [f"  {law}: {count} {BROKEN}" for law, count in broken.most_common()]
    return "\n".join(lines)
