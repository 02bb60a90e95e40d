"""`xg.doctor`: known silent faults of the installed frameworks, found by running them.

A table of versions would be wrong for a patched build, so the code of each fault runs, in one
process for each framework; one that ends its process is told, and the rest goes on in another.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

from ..core.backend.discovery import OWN, entry_points
from ..core.support.installed import install_line, requirements_of
from ..engine.backend.differences import Fault
from ..engine.support.extras import load_alone
from ..errors import MultigradError, RuleTypeError, suggest
from ..look.subject import Report

PRESENT, ABSENT = "present", "absent"
# Reads a framework's name and the codes as JSON, and prints its version and a line after each code.
# TensorFlow's package has two names.
RUNNER = """
import importlib.metadata, json, sys, warnings
warnings.simplefilter("ignore")
def ask(code, wrap):
    space = {}
    exec(code, space)
    return bool(space["found"](wrap))
def answer(code):
    try:
        told = {"found": ask(code, lambda f: f)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    try:
        import multigrad
        told["ours"] = "wrong too" if ask(code, multigrad.convert) else "right"
    except Exception as error:
        told["ours"] = "refused"
    return told
framework, codes = json.load(sys.stdin)
names = (framework, framework + "-cpu")
installed = [(str(d.metadata["Name"]), d.version) for d in importlib.metadata.distributions()]
version = next((v for name, v in installed if name.lower().replace("_", "-") in names), "")
print("@" + json.dumps({"version": version}))
for code in codes if version else ():
    print("\\n@" + json.dumps(answer(code)), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What came of one fault.

    Attributes:
        fault: its name.
        framework, version: where it was asked.
        state: "present", "absent", or why its code did not run.
        converted: what multigrad's conversion does where the fault is present: "right", "refused"
            (with an error) or "wrong too"; "" elsewhere.
        title: what goes wrong.
        avoid: what to do instead.
    """

    fault: str
    framework: str
    version: str
    state: str
    converted: str
    title: str
    avoid: str

    def __str__(self) -> str:
        if self.state != PRESENT:
            return f"{self.fault}: {self.state}"
        ours = {"right": "xg.convert gives the right gradient",
                "refused": "xg.convert refuses it with an error",
                "wrong too": "xg.convert does not help"}  # fmt: skip
        return f"{self.fault}: {self.title}\n    instead: {self.avoid} ({ours[self.converted]})"


@dataclass(frozen=True, slots=True, repr=False)
class DoctorReport(Report):
    """What `xg.doctor` found: true if no fault is present, and printed by framework.

    Attributes:
        rows: the faults that were asked for.
        missing: frameworks that are not installed.
    """

    rows: tuple[Diagnosis, ...]
    missing: tuple[str, ...] = ()

    @property
    def present(self) -> tuple[Diagnosis, ...]:
        """The faults that are present."""
        return tuple(row for row in self.rows if row.state == PRESENT)

    @property
    def ok(self) -> bool:
        return not self.present

    def __str__(self) -> str:
        lines: list[str] = []
        for framework in dict.fromkeys(row.framework for row in self.rows):
            rows = [row for row in self.rows if row.framework == framework]
            count = sum(row.state == PRESENT for row in rows)
            lines.append(f"{framework} {rows[0].version}: {count} of {len(rows)} known faults")
            lines += [f"  {row}" for row in sorted(rows, key=lambda row: row.state != PRESENT)]
        if self.missing:
            rows = [row for name in self.missing for row in requirements_of(name, OWN)]
            line = install_line("them", OWN, rows)
            lines.append(f"not installed: {', '.join(self.missing)}; type: {line}")
        return "\n".join(lines)

    def _fields(self) -> dict[str, Any]:
        return {"faults": [asdict(row) for row in self.rows], "missing": self.missing}


def doctor(*frameworks: str, python: str | None = None) -> DoctorReport:
    """Ask the installed frameworks for known silent faults of gradients.

    Each fault's code of at most 20 lines is run, in another process, so that nothing is imported
    here; a version that is patched is told right. It takes some seconds for each framework.

    Examples:
        >>> report = xg.doctor("torch")
        >>> any("drops its backward" in row.title for row in report.present)
        True

    Args:
        *frameworks: "torch", "jax", "tensorflow"; none: those that are installed.
        python: the interpreter whose frameworks are asked; None: this one.

    Raises:
        RuleTypeError: there is no framework of that name.
        MultigradError: the interpreter does not run.
    """
    faults = known_faults()
    for name in frameworks:
        if name not in faults:
            raise RuleTypeError(
                f"no faults of {name!r} are known; there are those of "
                f"{', '.join(faults)}{suggest(name, faults)}"
            )
    groups = {name: _diagnose(name, faults[name], python) for name in frameworks or faults}
    rows = tuple(row for group in groups.values() for row in group)
    return DoctorReport(rows, tuple(name for name, group in groups.items() if not group))


def known_faults() -> dict[str, tuple[Fault, ...]]:
    """Return the known faults of each framework, from its backend's package."""
    packages = {name: point.module.partition(".")[0] for name, point in entry_points().items()}
    files = {name: load_alone(f"{package}.known_faults") for name, package in packages.items()}
    return {name: file.KNOWN_FAULTS for name, file in files.items() if file is not None}


def _diagnose(framework: str, faults: tuple[Fault, ...], python: str | None) -> list[Diagnosis]:
    rows: list[Diagnosis] = []
    while len(rows) < len(faults):
        remaining_faults = faults[len(rows) :]
        run = subprocess.run(
            [python or sys.executable, "-c", RUNNER],
            input=json.dumps([framework, [fault.code for fault in remaining_faults]]),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        lines = [json.loads(line[1:]) for line in run.stdout.splitlines() if line.startswith("@{")]
        if not lines:
            last = (run.stderr.strip().splitlines() or ["it says nothing"])[-1]
            raise MultigradError(f"{python or sys.executable} does not run {framework}: {last}")
        if not lines[0]["version"]:
            return []  # it is not installed
        version = lines.pop(0)["version"]
        lines.append({"error": f"its process ended with {run.returncode}"})
        for fault, answer in zip(remaining_faults, lines, strict=False):
            state = answer.get("error") or (PRESENT if answer["found"] else ABSENT)
            converted = answer["ours"] if state == PRESENT else ""
            rows.append(Diagnosis(fault.name, framework, version, state, converted, *fault[1:3]))
    return rows
