"""Probes: calls of a framework's functions at points without a derivative, or with more than one,
where each framework chooses. `probes.txt` is the table.

`runner.py` runs them in a process of its own, under any Python. A call may end its process: that is
its answer, and a new process continues with the next probe.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from ...errors import MultigradError
from .runner import NAMESPACES, framework_of, hex_of

TABLE = Path(__file__).with_name("probes.txt")
# Where a function that is not in the table is probed.
ANYWHERE = """
at 0 {"x": 0}
at -0.0 {"x": -0.0}
at 1 {"x": 1}
at -1 {"x": -1}
at 0.5 {"x": 0.5}
at -0.5 {"x": -0.5}
at 3 {"x": 3}
at -3 {"x": -3}
at 6 {"x": 6}
at 20 {"x": 20}
at 100 {"x": 100}
at -100 {"x": -100}
at inf {"x": Infinity}
at -inf {"x": -Infinity}
at NaN {"x": NaN}
"""


@dataclass(frozen=True, slots=True)
class Probe:
    """One call at one place.

    Attributes:
        at: the place in words, to follow "its derivative".
        inputs: by the letters in the call, hex floats or nested lists of them.
    """

    call: str
    at: str
    inputs: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.call} {self.at}"

    @property
    def framework(self) -> str:
        return framework_of(self.call)

    @property
    def path(self) -> str:
        return self.call.partition("(")[0]


@functools.cache
def read_table() -> Mapping[str, Probe]:
    return {probe.name: probe for probe in read_probes(TABLE.read_text("utf-8"))}


def read_probes(text: str) -> Iterator[Probe]:
    """Yield the probes of a table's text: lines of places, then indented lines of calls."""
    places: list[tuple[str, Mapping[str, Any]]] = []
    have_calls = False
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        if not line.startswith(" "):
            # Places hold for all calls that follow; a place after a call begins a new group.
            places = [] if have_calls else places
            have_calls = False
            at, _, inputs = line.partition(" {")
            numbers = json.loads("{" + inputs)
            places.append((at, {letter: _as_hex(number) for letter, number in numbers.items()}))
        else:
            have_calls = True
            for at, given in places:
                yield Probe(line.strip(), at, given)


def _as_hex(number: Any) -> Any:
    return [_as_hex(each) for each in number] if isinstance(number, list) else hex_of(float(number))


def find_probes(frameworks: Sequence[str] = tuple(NAMESPACES)) -> dict[str, Probe]:
    return {name: probe for name, probe in read_table().items() if probe.framework in frameworks}


def probes_of(path: str) -> dict[str, Probe]:
    """Return the table's probes of a function. If it takes one tensor, or the table does not have
    it, add probes at the common kinks.
    """
    known = {name: probe for name, probe in read_table().items() if probe.path == path}
    call = f"{path}(x)"
    if known and all(probe.call != call for probe in known.values()):
        return known
    return {**{probe.name: probe for probe in read_probes(f"{ANYWHERE}    {call}")}, **known}


# --- what they give -------------------------------------------------------------------------------


Outcome = Mapping[str, Any]
RUNNER = Path(__file__).with_name("runner.py")
ENDS = "the end of its process"
SECONDS = 600.0  # of all probes of a framework
AT_ONCE = 2  # processes; each needs a core
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}


@dataclass(slots=True)
class Answer:
    """The answers of a framework.

    Attributes:
        version: "" if it is absent.
        absent: why it cannot be imported.
    """

    version: str = ""
    absent: str = ""
    outcomes: dict[str, Outcome] = field(default_factory=dict)


class Asking:
    """A run of probes, each framework in a process of its own.

    Args:
        probes: by name.
        python: the path of the Python that runs them; None: this one.
        note: called with the framework's name after each answer, from any thread.

    Attributes:
        answers: those so far, also after `run` was interrupted.
    """

    def __init__(
        self,
        probes: Mapping[str, Probe],
        frameworks: Sequence[str],
        python: str | None = None,
        note: Callable[[str], object] = str,
    ) -> None:
        self.own = {
            framework: {n: probe for n, probe in probes.items() if probe.framework == framework}
            for framework in frameworks
        }
        self.answers = {name: Answer() for name in frameworks}
        self._python, self._note = python, note
        self._processes: list[subprocess.Popen[str]] = []
        self._ended = False

    def run(self) -> dict[str, Answer]:
        order = sorted(self.own, key=lambda name: -len(self.own[name]))  # the longest first
        with ThreadPoolExecutor(AT_ONCE) as pool:
            try:
                for asked in [pool.submit(self._ask, name) for name in order]:
                    asked.result()
            finally:
                # Also on Ctrl-C: the threads wait for these processes.
                self._ended = True
                pool.shutdown(wait=False, cancel_futures=True)
                for process in self._processes:
                    process.kill()
        return self.answers

    def _ask(self, framework: str) -> None:
        answer, probes = self.answers[framework], self.own[framework]
        pending = sorted(probes)
        while not self._ended:
            code, said = self._run(framework, {name: probes[name] for name in pending})
            pending = [name for name in pending if name not in answer.outcomes]
            if code == 0 or answer.absent or self._ended:
                return
            # A negative code is a signal; a positive one is an error of the runner itself.
            if not answer.version or code > 0 or not pending:
                last = (said.strip().splitlines() or ["it says nothing"])[-1]
                python = self._python or sys.executable
                raise MultigradError(f"{python} does not run {framework}: {last}")
            # Probes run in sorted order: the first without an answer ended the process.
            answer.outcomes[pending.pop(0)] = {"raises": ENDS}

    def _run(self, framework: str, probes: Mapping[str, Probe]) -> tuple[int, str]:
        rows = {name: {"call": each.call, "inputs": each.inputs} for name, each in probes.items()}
        # Files, not pipes: a full pipe of stderr would block the process.
        with TemporaryFile("w+") as asked, TemporaryFile("w+", errors="replace") as said:
            json.dump({"framework": framework, "probes": rows}, asked)
            asked.seek(0)
            try:
                process = subprocess.Popen(
                    [self._python or sys.executable, str(RUNNER)],
                    stdin=asked,
                    stdout=subprocess.PIPE,
                    stderr=said,
                    text=True,
                    env={**QUIET, **os.environ, **_paths(self._python)},
                )
            except OSError as error:
                raise MultigradError(f"{self._python} cannot be run: {error}") from error
            # Reading lines has no timeout, so that a timer kills the process.
            late = threading.Event()
            timer = threading.Timer(SECONDS, lambda: (late.set(), process.kill()))
            timer.daemon = True
            timer.start()
            self._processes.append(process)
            if self._ended:  # while it was started
                process.kill()
            with process:
                assert process.stdout is not None
                for line in process.stdout:
                    if _take(json.loads(line), self.answers[framework]):
                        self._note(framework)
            timer.cancel()
            if late.is_set():
                raise MultigradError(f"{framework} does not end within {SECONDS:g} s")
            said.seek(0)
            return process.returncode, said.read()


def _paths(python: str | None) -> dict[str, str]:
    if python is not None:
        return {}
    return {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _take(line: Mapping[str, Any], answer: Answer) -> bool:
    if "probe" in line:
        answer.outcomes[line["probe"]] = line["outcome"]
        return True
    answer.version = line.get("version", "")
    answer.absent = line.get("absent", "")
    return False


FRAMEWORKS = tuple(NAMESPACES)
