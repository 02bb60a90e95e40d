"""`xg.doctor`: known silent faults of the installed frameworks, found by running them.

A table of versions would be wrong for a patched build, so the code of each fault runs, in one
process for each framework; one that ends its process is told, and the rest goes on in another.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ...errors import RuleTypeError, suggest
from ...look.subject import Report
from .known_faults import KNOWN_FAULTS, Fault

PRESENT, ABSENT = "present", "absent"
DISTRIBUTIONS = {
    "torch": ("torch",),
    "jax": ("jax",),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
}
# Reads the codes as JSON, and prints a line of JSON after each.
RUNNER = """
import json, sys, warnings
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
for code in json.load(sys.stdin):
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
            lines.append(f"not installed: {', '.join(self.missing)}")
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return the report as one line of JSON."""
        return json.dumps({"faults": [asdict(row) for row in self.rows], "missing": self.missing})


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
    """
    for name in frameworks:
        if name not in DISTRIBUTIONS:
            raise RuleTypeError(
                f"no faults of {name!r} are known; there are those of "
                f"{', '.join(DISTRIBUTIONS)}{suggest(name, DISTRIBUTIONS)}"
            )
    asked = frameworks or tuple(DISTRIBUTIONS)
    versions = {name: _version_of(name, python) for name in asked}
    there = [name for name in asked if versions[name]]
    rows = [row for name in there for row in _diagnose(name, versions[name], python)]
    return DoctorReport(tuple(rows), tuple(name for name in asked if name not in there))


def _diagnose(framework: str, release: str, python: str | None) -> Iterator[Diagnosis]:
    faults = [fault for fault in KNOWN_FAULTS if fault.framework == framework]
    for fault, told in zip(faults, _answers(faults, python), strict=True):
        state = told.get("error") or (PRESENT if told["found"] else ABSENT)
        converted = told["ours"] if state == PRESENT else ""
        yield Diagnosis(
            fault=fault.name, framework=framework, version=release, state=state,
            converted=converted, title=fault.title, avoid=fault.avoid,
        )  # fmt: skip


def _answers(faults: Iterable[Fault], python: str | None) -> Iterator[dict[str, Any]]:
    codes = [fault.code for fault in faults]
    while codes:
        ran = subprocess.run(
            [python or sys.executable, "-c", RUNNER],
            input=json.dumps(codes), capture_output=True, text=True, check=False,
        )  # fmt: skip
        told = [json.loads(line[1:]) for line in ran.stdout.splitlines() if line.startswith("@{")]
        yield from told
        codes = codes[len(told) :]
        if codes:
            yield {"error": f"its process ended with {ran.returncode}"}
            codes = codes[1:]


def _version_of(framework: str, python: str | None) -> str:
    if python is not None:
        # The same question, asked of the other interpreter.
        code = (
            "import importlib.metadata as m; "
            f"found = {{d.metadata['Name']: d.version for d in m.distributions()}}; "
            f"print(next((found[n] for n in {DISTRIBUTIONS[framework]!r} if n in found), ''))"
        )
        asked = [python, "-c", code]
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    for distribution in DISTRIBUTIONS[framework]:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return ""
