"""What probes give in a framework: `runner.py` is run in a process of its own, of any Python.

A call may end its process: that is its answer, and a new process goes on with the next one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
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


def ask(
    probes: Mapping[str, Probe], frameworks: Sequence[str], python: str | None = None
) -> dict[str, Answer]:
    """Return what each framework answers, run by a Python's path, or by this one.

    Raises:
        MultigradError: that Python does not run, or a framework does not end.
    """
    own = {
        framework: {n: probe for n, probe in probes.items() if probe.framework == framework}
        for framework in frameworks
    }
    with ThreadPoolExecutor(AT_ONCE) as pool:
        order = sorted(frameworks, key=lambda name: -len(own[name]))  # the longest first
        asked = {name: pool.submit(_ask, name, own[name], python) for name in order}
        return {name: asked[name].result() for name in frameworks}


def _ask(framework: str, probes: Mapping[str, Probe], python: str | None) -> Answer:
    answer = Answer()
    pending = sorted(probes)
    while True:
        done = _run(framework, {name: probes[name] for name in pending}, python)
        for line in done.stdout.splitlines():
            _take(json.loads(line), answer)
        pending = [name for name in pending if name not in answer.outcomes]
        if done.returncode == 0 or answer.absent:
            return answer
        if not answer.version or done.returncode > 0 or not pending:
            last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
            raise MultigradError(f"{python or sys.executable} does not run {framework}: {last}")
        answer.outcomes[pending.pop(0)] = {"raises": ENDS}


def _run(
    framework: str, probes: Mapping[str, Probe], python: str | None
) -> subprocess.CompletedProcess[str]:
    rows = {name: {"call": each.call, "inputs": each.inputs} for name, each in probes.items()}
    try:
        return subprocess.run(
            [python or sys.executable, str(RUNNER)],
            input=json.dumps({"framework": framework, "probes": rows}),
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
            env={**QUIET, **os.environ, **_paths(python)},
        )
    except OSError as error:
        raise MultigradError(f"{python} cannot be run: {error}") from error
    except subprocess.TimeoutExpired:
        raise MultigradError(f"{framework} does not end within {SECONDS:g} s") from None


def _paths(python: str | None) -> dict[str, str]:
    """Return where this Python finds its modules, for another process of it."""
    if python is not None:
        return {}
    return {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _take(line: Mapping[str, Any], answer: Answer) -> None:
    if "probe" in line:
        answer.outcomes[line["probe"]] = line["outcome"]
    else:
        answer.version = line.get("version", "")
        answer.absent = line.get("absent", "")


FRAMEWORKS = tuple(NAMESPACES)
