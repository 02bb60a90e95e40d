"""`--threads both`: a process for each, since most frameworks fix their threads when they start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from multigrad.command import STOPPED
from multigrad.command.options import FAILED, Interruption
from multigrad.errors import MultigradError

from . import results
from .cases import Options, count_threads
from .results import Results, describe_machine

WORDS = ("one", "all")
KNOWN_ENDS = (0, FAILED, STOPPED)
TURNS = 5  # of each checkout
HERE, BENCH = Path(__file__).parents[2], Path("tools/bench")


def measure_both(options: Options) -> Results:
    """Measure with one thread, then with all; the overheads with one."""
    found = Results(machine=describe_machine())
    with TemporaryDirectory() as folder:
        # On a single processor both are the same.
        for word in WORDS if count_threads("all") > 1 else WORDS[:1]:
            path = Path(folder) / f"{word}.json"
            found.interrupted |= run_process([*list_words(options, word), "--json", str(path)])
            if path.exists():
                found.extend(results.read(path))
            if found.interrupted:
                break
    return found


def measure_in_turns(options: Options, other: Path) -> tuple[Results, Results]:
    """Measure another checkout and this one in turns: best and spread of the processes' best."""
    if not (other / BENCH / "processes.py").is_file():
        raise MultigradError(f"{other} is not a checkout of multigrad: {BENCH} is not the bench")
    pair = [(other.resolve(), list[Results]()), (HERE, list[Results]())]
    stopped = False
    with TemporaryDirectory() as folder:
        path = Path(folder) / "turn.json"
        for turn in range(TURNS):
            for place, found in pair if turn % 2 == 0 else reversed(pair):
                words = [*list_words(options, options.threads), "--json", str(path)]
                stopped = stopped or run_process(words, place)
                if not stopped:
                    found.append(results.read(path))
    if not all(found for _, found in pair):
        raise MultigradError("stopped before both were measured")
    then, now = (results.best_of(found) for _, found in pair)
    now.interrupted = stopped
    return then, now


def list_words(options: Options, threads: str) -> Iterator[str]:
    yield from ("--threads", threads)
    yield from ("--rules", ",".join(dict.fromkeys(case.rule for case in options.cases)))
    yield from ("--sizes", ",".join(str(size) for size in options.sizes))
    yield from ("--backends", ",".join(options.backends))
    yield from ("--only", ",".join(options.parts))
    if options.quick:
        yield "--quick"
    if not options.overheads or threads != WORDS[0]:
        yield "--no-overheads"


def run_process(words: list[str], place: Path | None = None) -> bool:
    """Run the command with these words, of a checkout; return whether it was interrupted.

    Its tables are left out, its progress is not. An interrupt from the terminal is handed on: in a
    session of its own the process gets it once, and writes its file.
    """
    command = [sys.executable, str((place or HERE) / BENCH), *words]
    interrupted = False
    paths = [] if place is None else [str(place), str(place / "backends")]
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        cwd=place,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    with Interruption() as interruption:
        process.wait()
    if interruption.requested:
        interrupted = True
        process.send_signal(signal.SIGINT)
        process.wait()
    if process.returncode not in KNOWN_ENDS and not interrupted:
        raise MultigradError(
            f"the process for --threads {words[1]} ended with code {process.returncode}"
        )
    return interrupted or process.returncode == STOPPED
