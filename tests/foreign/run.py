"""Convert the custom gradients of published packages, and compare with what is expected of each.

Rows stand in `cases.toml` (what is converted, and its inputs), expectations in `expected.toml`.
They run in processes of their own, started again where a row kills one or takes too long, so that
nothing is lost with it.

    python tests/foreign/run.py [PACKAGE or module:name ...] [--update] [--report FILE]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import re
import selectors
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CASES, EXPECTED = HERE / "cases.toml", HERE / "expected.toml"
BACKENDS = ("numpy", "torch", "jax", "tensorflow")
SECONDS = 120  # for one row; the first of a process imports the frameworks, too
AT_ONCE = 60  # rows for one process: what is compiled for them stays in its memory
QUIET = {
    "CUDA_VISIBLE_DEVICES": "",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "XLA_FLAGS": "--xla_backend_optimization_level=0",
}
# What packages need to be imported: larq 0.13 needs layers that Keras 3 has removed.
ENVIRONMENT = {"larq": {"TF_USE_LEGACY_KERAS": "1"}}
FRAGMENT = 120  # characters of a reason that are kept
SUBJECT = re.compile(r"^(imported )?function '[^']*' ")
SENTENCE = re.compile(r"\. |; it runs as written|; run as written")


@dataclass(frozen=True, slots=True)
class Row:
    """One custom gradient: of which package, its name as module:name, its inputs as words."""

    package: str
    name: str
    words: tuple[str, ...]


# By backend "equal", or another state, ": " and the reason; under "kind" what it is.
Verdicts = dict[str, str]


@dataclass(frozen=True, slots=True)
class Task:
    """What is done with each row: its name in `worker.py`, and what is said of a lost row.

    Attributes:
        options: words for the worker, after the name.
    """

    name: str
    blame: Callable[[str], Verdicts]
    options: tuple[str, ...] = ()


CONVERT = Task("convert", lambda reason: dict.fromkeys(BACKENDS, f"failed: {reason}"))


def read_cases(chosen: Sequence[str] = (), files: Sequence[Path] = (CASES,)) -> list[Row]:
    """Return the rows of the packages and names that were chosen, all if none are."""
    packages: dict[str, list[Row]] = {}
    for file in files:
        for package, names in tomllib.loads(file.read_text(encoding="utf-8")).items():
            packages.setdefault(package, []).extend(
                Row(package, name, tuple(words.split(" ; ")) if words else ())
                for name, words in names.items()
            )
    rows = [row for section in packages.values() for row in section]
    unknown = set(chosen) - {row.package for row in rows} - {row.name for row in rows}
    if unknown:
        raise SystemExit(f"no row or package is called {', '.join(sorted(unknown))}")
    return [row for row in rows if not chosen or row.package in chosen or row.name in chosen]


def read_expected() -> dict[str, Verdicts]:
    """Return the committed verdicts by row."""
    if not EXPECTED.exists():
        return {}
    return tomllib.loads(EXPECTED.read_text(encoding="utf-8"))


def write_expected(found: dict[str, Verdicts]) -> None:
    """Write verdicts, in the order of the rows."""
    known = {**read_expected(), **found}
    lines = ["# Written by `python tests/foreign/run.py --update`.", ""]
    for row in read_cases():
        if row.name in known:
            lines.append(f"[{json.dumps(row.name)}]")
            lines += [f"{name} = {json.dumps(text)}" for name, text in known[row.name].items()]
            lines.append("")
    EXPECTED.write_text("\n".join(lines), encoding="utf-8")


# --- running --------------------------------------------------------------------------------------


def run_rows(
    rows: Sequence[Row], seconds: float, task: Task = CONVERT, processes: int = 1
) -> Iterator[tuple[Row, Verdicts]]:
    """Yield the verdicts of rows as they come, some rows in each process."""
    answers: queue.SimpleQueue[tuple[Row, Verdicts]] = queue.SimpleQueue()

    def work(batch: Sequence[Row]) -> None:
        left = list(batch)
        while left:
            for row, verdicts in run_in_process(tuple(left), seconds, task):
                left.remove(row)
                answers.put((row, verdicts))

    with ThreadPoolExecutor(processes) as pool:
        for batch in split(rows):
            pool.submit(work, batch)
        for _ in rows:
            yield answers.get()


def split(rows: Sequence[Row]) -> Iterator[tuple[Row, ...]]:
    """Yield rows that share a process: those of one environment, so many that it stays small."""
    for _, group in itertools.groupby(rows, lambda row: ENVIRONMENT.get(row.package, {})):
        left = tuple(group)
        yield from (left[i : i + AT_ONCE] for i in range(0, len(left), AT_ONCE))


def run_in_process(
    rows: Sequence[Row], seconds: float, task: Task
) -> Iterator[tuple[Row, Verdicts]]:
    """Yield verdicts until the rows or the process end; the row that killed it is the last."""
    command = [sys.executable, str(HERE / "worker.py"), task.name, *task.options]
    environment = {**os.environ, **QUIET, **ENVIRONMENT.get(rows[0].package, {})}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        for row in rows:
            try:
                process.stdin.write(json.dumps([row.name, row.words]) + "\n")
                process.stdin.flush()
                line = read_line(process, seconds)
            except BrokenPipeError:
                line = ""
            if line is None:
                process.kill()
                yield row, task.blame(f"it takes longer than {seconds:.0f} s")
                return
            if not line:
                yield row, task.blame(f"the process died with {process.wait()}")
                return
            yield row, json.loads(line)
        process.stdin.close()


def read_line(process: subprocess.Popen[str], seconds: float) -> str | None:
    """Return the worker's next answer, "" where it has died; None: it takes too long."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        return process.stdout.readline() if selector.select(seconds) else None


# --- comparing ------------------------------------------------------------------------------------


def state_of(verdict: str) -> str:
    """Return a verdict without its reason."""
    return verdict.partition(":")[0]


def is_as_expected(found: Verdicts, expected: Verdicts) -> bool:
    """Return whether every backend has the state that is expected, for the reason that is."""
    return found.keys() == expected.keys() and all(
        state_of(verdict) == state_of(expected[name]) and is_reason(verdict, expected[name])
        for name, verdict in found.items()
    )


def is_reason(found: str, expected: str) -> bool:
    """Return whether a reason has the fragment that is expected of it."""
    return expected.partition(": ")[2] in found.partition(": ")[2]


def shorten(verdicts: Verdicts) -> Verdicts:
    """Return verdicts with what their reasons begin with, after the name of the function."""
    short = {}
    for name, verdict in verdicts.items():
        state, colon, reason = verdict.partition(": ")
        reason = SENTENCE.split(SUBJECT.sub("", reason))[0]
        short[name] = state + colon + reason[:FRAGMENT].rstrip()
    return short


def describe(verdicts: Verdicts) -> str:
    """Return verdicts as one line, what is the same on several backends once."""
    groups: dict[str, list[str]] = {}
    for name, verdict in verdicts.items():
        groups.setdefault(verdict, []).append(name)
    return "; ".join(
        f"{','.join(names)}: {verdict}" for verdict, names in groups.items() if names != ["kind"]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("chosen", nargs="*", help="packages, or rows as module:name")
    parser.add_argument("--update", action="store_true", help="write what is found as expected")
    parser.add_argument("--report", type=Path, help="write every verdict to this file")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for one row")
    options = parser.parse_args()
    expected, found, wrong = read_expected(), {}, 0
    rows = read_cases(options.chosen)
    start = time.perf_counter()
    for row, verdicts in run_rows(rows, options.seconds):
        known = expected.get(row.name, {})
        same = is_as_expected(verdicts, known)
        found[row.name] = {**shorten(verdicts), **known} if same else shorten(verdicts)
        wrong += not same
        print(f"{'  ' if same else '! '}{row.name}: {describe(verdicts)}", flush=True)
        if not same and known:
            print(f"    expected: {describe(known)}", flush=True)
        if options.report:
            with options.report.open("a", encoding="utf-8") as file:
                file.write(json.dumps([row.package, row.name, verdicts]) + "\n")
        if options.update:
            write_expected(found)
    minutes = (time.perf_counter() - start) / 60
    print(f"{len(rows)} rows, {wrong} not as expected, {minutes:.1f} minutes")
    return 1 if wrong and not options.update else 0


if __name__ == "__main__":
    sys.exit(main())
