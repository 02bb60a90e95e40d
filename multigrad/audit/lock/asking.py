"""What probes give in a framework: `runner.py` is run in a process of its own, of any Python.

A call may end its process: that is its answer, and a new process goes on with the next one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from ...errors import MultigradError
from .probes import Probe
from .runner import NAMESPACES

Outcome = Mapping[str, Any]
RUNNER = Path(__file__).with_name("runner.py")
ENDS = "the end of its process"
SECONDS = 600.0  # of all probes of a framework
AT_ONCE = 2  # processes; each needs a core
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}


@dataclass(slots=True)
class Answer:
    """What a framework gives.

    Attributes:
        version: "" where it is absent.
        absent: why it cannot be imported.
    """

    version: str = ""
    absent: str = ""
    outcomes: dict[str, Outcome] = field(default_factory=dict)


class Asking:
    """Frameworks that are asked, each in a process of its own.

    Args:
        probes: what they are asked.
        python: the path of the Python that runs them; None: this one.
        note: is told of each answer, from any thread.

    Attributes:
        answers: what is known by now, also where `run` was interrupted.
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
        """Ask, and return the answers.

        Raises:
            MultigradError: that Python does not run, or a framework does not end.
        """
        order = sorted(self.own, key=lambda name: -len(self.own[name]))  # the longest first
        with ThreadPoolExecutor(AT_ONCE) as pool:
            try:
                for asked in [pool.submit(self._ask, name) for name in order]:
                    asked.result()
            finally:
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
            if not answer.version or code > 0 or not pending:
                last = (said.strip().splitlines() or ["it says nothing"])[-1]
                python = self._python or sys.executable
                raise MultigradError(f"{python} does not run {framework}: {last}")
            answer.outcomes[pending.pop(0)] = {"raises": ENDS}

    def _run(self, framework: str, probes: Mapping[str, Probe]) -> tuple[int, str]:
        """Take the answers as they come; return how the process ended, and what else it said."""
        rows = {name: {"call": each.call, "inputs": each.inputs} for name, each in probes.items()}
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
    """Return where this Python finds its modules, for another process of it."""
    if python is not None:
        return {}
    return {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _take(line: Mapping[str, Any], answer: Answer) -> bool:
    """Note a line, and return whether it answers a probe."""
    if "probe" in line:
        answer.outcomes[line["probe"]] = line["outcome"]
        return True
    answer.version = line.get("version", "")
    answer.absent = line.get("absent", "")
    return False


FRAMEWORKS = tuple(NAMESPACES)
