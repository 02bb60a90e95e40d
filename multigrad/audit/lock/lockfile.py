"""The file `gradients.lock`, and the probes whose answers it holds: calls of frameworks' functions
at points without a derivative, or with more than one, where each framework chooses.

`probes.txt` is the table of probes. `runner.py` runs them in a process of its own, under any
Python. A call may end its process: that is its answer, and a new process continues with the next
probe. The file is plain JSON, sorted, a probe on a line; docs/format.md specifies it. It is checked
as a whole before any of its calls is run.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from ...engine.functions.documents.format import check_numbers, check_version, digest, parse
from ...engine.passes.serialize import fail, read_fields, read_object, read_text
from ...errors import FormatError, MultigradError
from .runner import NAMESPACES, RefusedProbe, framework_of, hex_of, read_call

TABLE = Path(__file__).with_name("probes.txt")
FRAMEWORKS = tuple(NAMESPACES)
# The places of a function that is not in the table.
ANYWHERE = (0, -0.0, 1, -1, 0.5, -0.5, 3, -3, 6, 20, 100, -100, math.inf, -math.inf, "NaN")


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
    """Yield the probes of a table's text: lines of places, then indented lines of calls, such as
    `jax: nn.relu(x); numpy.power(x, 0.5)`.
    """
    places: list[tuple[str, Mapping[str, Any]]] = []
    have_calls = False
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        if not line.startswith(" "):
            # Places hold for all calls that follow; a place after a call begins a new group.
            places = [] if have_calls else places
            have_calls = False
            at, _, json_text = line.partition(" {")
            numbers = json.loads("{" + json_text)
            places.append((at, {letter: _as_hex(number) for letter, number in numbers.items()}))
        else:
            have_calls = True
            module, _, calls = line.strip().partition(": ")
            for call in calls.split("; "):
                for at, inputs in places:
                    yield Probe(f"{module}.{call}", at, inputs)


def _as_hex(number: Any) -> Any:
    return [_as_hex(each) for each in number] if isinstance(number, list) else hex_of(float(number))


def find_probes(frameworks: Sequence[str] = tuple(NAMESPACES)) -> dict[str, Probe]:
    return {name: probe for name, probe in read_table().items() if probe.framework in frameworks}


def probes_of(path: str) -> dict[str, Probe]:
    """Return the table's probes of a function. If it takes one tensor, or the table does not have
    it, add probes at the common kinks.
    """
    table_probes = {name: probe for name, probe in read_table().items() if probe.path == path}
    call = f"{path}(x)"
    if table_probes and all(probe.call != call for probe in table_probes.values()):
        return table_probes
    probes = [Probe(call, f"at {number}", {"x": hex_of(float(number))}) for number in ANYWHERE]
    return {**{probe.name: probe for probe in probes}, **table_probes}


Outcome = Mapping[str, Any]
RUNNER = Path(__file__).with_name("runner.py")
ENDS = "the end of its process"
SECONDS = 600.0  # of all probes of a framework
AT_ONCE = 2  # processes; each needs a core
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}


@dataclass(slots=True)
class Answer:
    """A framework's version, or why it cannot be imported; and what its probes gave."""

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
                for future in [pool.submit(self._ask, name) for name in order]:
                    future.result()
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
            code, stderr = self._run(framework, {name: probes[name] for name in pending})
            pending = [name for name in pending if name not in answer.outcomes]
            if code == 0 or answer.absent or self._ended:
                return
            # A negative code is a signal; a positive one is an error of the runner itself.
            if not answer.version or code > 0 or not pending:
                last_line = (stderr.strip().splitlines() or ["it says nothing"])[-1]
                python = self._python or sys.executable
                raise MultigradError(f"{python} does not run {framework}: {last_line}")
            # Probes run in sorted order: the first without an answer ended the process.
            answer.outcomes[pending.pop(0)] = {"raises": ENDS}

    def _run(self, framework: str, probes: Mapping[str, Probe]) -> tuple[int, str]:
        rows = {name: {"call": each.call, "inputs": each.inputs} for name, each in probes.items()}
        # Our modules, for this Python alone.
        variables = {} if self._python else {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        # Files, not pipes: a full pipe of stderr would block the process.
        with TemporaryFile("w+") as request, TemporaryFile("w+", errors="replace") as stderr:
            json.dump({"framework": framework, "probes": rows}, request)
            request.seek(0)
            try:
                process = subprocess.Popen(
                    [self._python or sys.executable, str(RUNNER)],
                    stdin=request, stdout=subprocess.PIPE, stderr=stderr, text=True,
                    env={**QUIET, **os.environ, **variables},
                )  # fmt: skip
            except OSError as error:
                raise MultigradError(f"{self._python} cannot be run: {error}") from error
            # Reading lines has no timeout, so that a timer kills the process.
            timed_out = threading.Event()
            timer = threading.Timer(SECONDS, lambda: (timed_out.set(), process.kill()))
            timer.daemon = True
            timer.start()
            self._processes.append(process)
            if self._ended:  # while it was started
                process.kill()
            with process:
                assert process.stdout is not None
                answer = self.answers[framework]
                for line in map(json.loads, process.stdout):
                    if "probe" in line:
                        answer.outcomes[line["probe"]] = line["outcome"]
                        self._note(framework)
                    else:
                        answer.version = line.get("version", "")
                        answer.absent = line.get("absent", "")
            timer.cancel()
            if timed_out.is_set():
                raise MultigradError(f"{framework} does not end within {SECONDS:g} s")
            stderr.seek(0)
            return process.returncode, stderr.read()


# --- the file -------------------------------------------------------------------------------------
Data = Any
FORMAT, VERSION = "multigrad-lock", 1
FIELDS = ("format", "version", "hash", "frameworks", "objects")
# A float as C prints it by %a; float64 has at most 13 hex digits.
LETTER = re.compile(r"[a-z]")
OUTCOMES = {"missing": bool, "raises": str}
MOST_NESTED = 6  # levels of lists in an input, as a file may come from anywhere


@dataclass(slots=True)
class LockFile:
    """The content of a lock file: probes by name, what each framework gave, and the entries of
    rules and Functions, by the words that name them.
    """

    probes: dict[str, Probe] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    objects: dict[str, dict[str, Data]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Data]:
        frameworks: dict[str, Data] = {}
        for framework, answer in self.answers.items():
            if answer.absent:
                continue
            places: dict[str, Data] = {}
            for name, outcome in answer.outcomes.items():
                probe = self.probes[name]
                place = places.setdefault(probe.at, {"inputs": dict(probe.inputs), "calls": {}})
                place["calls"][probe.call] = dict(outcome)
            frameworks[framework] = {"version": answer.version, "places": places}
        data: dict[str, Data] = {"format": FORMAT, "version": VERSION, "frameworks": frameworks}
        data["objects"] = self.objects
        # The hash covers all other fields, so that an edit by hand is noticed.
        return {**data, "hash": digest(data)}


def format_lock(lock: LockFile) -> str:
    return "\n".join(_lines(lock.to_dict(), "", "")) + "\n"


def _lines(data: Data, name: str, indent: str) -> Iterator[str]:
    # One line for each probe, so that a diff of two locks shows single probes.
    head = f"{indent}{json.dumps(name)}: " if name else indent
    if _depth(data) <= 2:  # no more than an outcome
        yield head + json.dumps(data, sort_keys=True, ensure_ascii=False)
        return
    is_object = isinstance(data, dict)
    items = sorted(data.items()) if is_object else [("", item) for item in data]
    yield head + ("{" if is_object else "[")
    for i, (key, item) in enumerate(items):
        *lines, last = _lines(item, key, f"{indent}  ")
        yield from lines
        yield last + ("," if i < len(items) - 1 else "")
    yield indent + ("}" if is_object else "]")


def _depth(data: Data) -> int:
    if isinstance(data, dict):
        return 1 + max(map(_depth, data.values()), default=0)
    return max(map(_depth, data), default=0) if isinstance(data, list) else 0


def read_lock(path: str | Path) -> LockFile:
    try:
        data = parse(Path(path).read_bytes())
    except FileNotFoundError:
        advice = "write one by multigrad lock, or name the file"
        raise FileNotFoundError(f"there is no lock file {str(path)!r} here: {advice}") from None
    except FormatError as error:
        advice = "verify takes what multigrad lock wrote, gradients.lock if it is not named"
        raise FormatError(f"{path} is no lock file ({error}): {advice}") from error
    if type(data) is not dict or data.get("format") != FORMAT:
        fail(str(path), f'this is not a lock file: it has "format": "{FORMAT}"')
    check_version(data.get("version"), f"{path}: version", "the lock has version", VERSION)
    try:
        return _decode(data)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error


def _decode(data: Data) -> LockFile:
    read_fields(data, "", FIELDS)
    stored_hash = data["hash"]
    # Before anything is decoded: an edited file is refused as a whole.
    if digest({name: data[name] for name in FIELDS if name != "hash"}) != stored_hash:
        fail("hash", "the lock is not as it was written: write it again, by multigrad lock")
    lock = LockFile(objects=read_object(data["objects"], "objects"))
    for name, entry in lock.objects.items():
        read_object(entry, f"objects.{name}")
    for framework, framework_data in read_object(data["frameworks"], "frameworks").items():
        where = f"frameworks.{framework}"
        if framework not in FRAMEWORKS:
            fail(where, f"expected one of {', '.join(FRAMEWORKS)}")
        fields = read_fields(framework_data, where, ("version", "places"))
        answer = Answer(version=read_text(fields["version"], f"{where}.version"))
        lock.answers[framework] = answer
        for at, place in read_object(fields["places"], f"{where}.places").items():
            for probe, outcome in _decode_place(place, f"{where}.places.{at}", at, framework):
                lock.probes[probe.name] = probe
                answer.outcomes[probe.name] = outcome
    return lock


def _decode_place(
    data: Data, where: str, at: str, framework: str
) -> Iterator[tuple[Probe, dict[str, Data]]]:
    read_text(at, where)
    fields = read_fields(data, where, ("inputs", "calls"))
    inputs = read_object(fields["inputs"], f"{where}.inputs")
    for letter, number in inputs.items():
        if not LETTER.fullmatch(letter):
            fail(f"{where}.inputs", f"{letter!r:.60} is no letter")
        check_numbers(number, f"{where}.inputs.{letter}", MOST_NESTED)
    for call, outcome in read_object(fields["calls"], f"{where}.calls").items():
        try:
            # Parsed and checked against the functions that a probe may call; nothing runs.
            read_call(call)
            owner = framework_of(call)
        except RefusedProbe as error:
            fail(f"{where}.calls", str(error))
        if owner != framework:
            fail(f"{where}.calls", f"{call} is a call of {owner}")
        yield Probe(call, at, inputs), _decode_outcome(outcome, f"{where}.calls.{call}", inputs)


def _decode_outcome(data: Data, where: str, inputs: Mapping[str, Data]) -> dict[str, Data]:
    for name, kind in OUTCOMES.items():
        if type(data) is dict and list(data) == [name] and type(data[name]) is kind:
            return data
    fields = read_fields(data, where, ("value", "derivative"))
    check_numbers(fields["value"], f"{where}.value", 1)
    derivative = read_fields(fields["derivative"], f"{where}.derivative", tuple(inputs))
    for letter, numbers in derivative.items():
        if numbers is not None:
            check_numbers(numbers, f"{where}.derivative.{letter}", 1)
    return fields
