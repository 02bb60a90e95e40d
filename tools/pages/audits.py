"""The page about published gradients held against laws, written from the committed table.

The table stands in `tests/foreign/audited.toml`, what is no fault in `meant.toml`, faults as code
in `faults/`; `tests/foreign/audit.py` holds the pinned packages to them. Those of kernels stand in
`kernels_audited.toml` and `kernel_faults/`, which `kernels.py` holds. The page needs no package.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from multigrad.audit.audit import BROKEN, KEPT, LAWS, NOT_APPLICABLE, REFUSED
from multigrad.audit.doctor import PRESENT, known_faults

from .conversions import FOLDER, OF_USERS
from .markdown import table

MEANT = "by design"
HEADING = re.compile(r"# (?P<package>[\w.-]+)==(?P<version>[\w.]+), (?P<law>[\w ]+): (?P<said>.+)")
STATES = (KEPT, BROKEN, MEANT, REFUSED, NOT_APPLICABLE)
MEANINGS = {
    BROKEN: "the numbers silently differ from what the law says; for `bytes` and `saved`, what is "
    "kept for the backward does. This is only a measurement; [known bugs](audit.md#faults) lists "
    "those that were investigated",
    MEANT: "they differ, and the author says so, in a docstring, a comment or the name, or with "
    "None for an argument: a straight-through estimator, a clipped gradient, a random spike",
    REFUSED: "the code, or the framework on its behalf, raises an error: it is not supported",
    "fixed": "broken or refused as published, and kept after `xg.convert`, on the same framework",
}  # fmt: skip
STEPS = (
    "tox -e audit  # everything except kernels\ntox -e audit -- entmax  # one package\n"
    "tox -e audit -- --faults\ntox -e kernels  # the kernels, and their faults"
)
RELEASES = Path("tests/versions/known_faults.json")
GATES = ("allclose", "kernelbench", "gradcheck", "audit")
KERNELS = {"liger_kernel": "liger_kernel", "fla": "fla_core"}  # distributions by module


@dataclass(frozen=True, slots=True)
class Audited:
    """One row of the table.

    Attributes:
        laws: what came of each, "broken: reason" and the like.
        mended: the laws that it keeps once it is converted.
        is_converted: whether that was tried; kernels stay what they are.
    """

    package: str
    name: str
    inputs: str
    problem: str
    laws: Mapping[str, str]
    mended: Sequence[str] = field(default=())
    is_converted: bool = True

    def state_of(self, law: str) -> str:
        return self.laws.get(law, "").partition(":")[0]

    def count(self, state: str) -> int:
        return sum(self.state_of(law) == state for law in self.laws)


@dataclass(frozen=True, slots=True)
class Fault:
    """A reproducer: what its first line says, and its code."""

    file: str
    package: str
    version: str
    law: str
    said: str
    code: str


def read_audited() -> list[Audited]:
    known, meant = (_read(name) for name in ("audited.toml", "meant.toml"))
    rows: dict[str, list[Audited]] = {}
    for cases in ("cases.toml", "audit_cases.toml"):
        for package, names in _read(cases).items():
            own = rows.setdefault(package, [])
            for name, inputs in names.items():
                if name in known:
                    own.append(_row(package, name, inputs, known[name], meant))
    return [row for own in rows.values() for row in own]


def read_kernels() -> list[Audited]:
    """Return the committed table of kernels, whose reasons stand beside lists of laws by state."""
    known, meant = _read("kernels_audited.toml"), _read("meant.toml")
    rows = []
    for name, inputs in _read("kernels.toml")["kernels"].items():
        if name in known:
            found = dict(known[name])
            for state in (BROKEN, REFUSED):
                for law in filter(None, found.pop(state, "").split(", ")):
                    found[law] = f"{state}: {found[law]}"
            package = KERNELS[name.partition(".")[0]]
            rows.append(replace(_row(package, name, inputs, found, meant), is_converted=False))
    return rows


def _read(name: str) -> dict[str, dict[str, str]]:
    return tomllib.loads((FOLDER / name).read_text(encoding="utf-8"))


def _row(
    package: str,
    name: str,
    inputs: str,
    found: Mapping[str, str],
    meant: Mapping[str, Mapping[str, str]],
) -> Audited:
    laws = {}
    for law in LAWS:
        for state in (KEPT, NOT_APPLICABLE):
            if law.name in found.get(state, "").split(", "):
                laws[law.name] = state
        if law.name in found:
            laws[law.name] = found[law.name]
    own = {**meant.get(package, {}), **meant.get(name, {})}
    for law_name, reason in own.items():
        if laws.get(law_name, "").startswith(BROKEN):
            laws[law_name] = f"{MEANT}: {reason}"
    mended = [each for each in found.get("mended", "").split(", ") if each]
    return Audited(package, name, inputs, found.get("problem", ""), laws, mended)


def read_faults() -> list[Fault]:
    faults = []
    for path in sorted(FOLDER.glob("*faults/*/*.py")):
        first, _, code = path.read_text(encoding="utf-8").partition("\n")
        found = HEADING.fullmatch(first)
        assert found is not None, f"{path} does not begin with '# package==version, law: sentence'"
        faults.append(
            Fault(f"{path.parent.name}/{path.stem}", **found.groupdict(), code=code.strip())
        )
    return sorted(faults, key=lambda fault: (fault.package.lower(), fault.file))


def title_of(fault: Fault) -> str:
    return f"{fault.package} {fault.version}: {fault.file.partition('/')[2]}"


def bug_rows(faults: Sequence[Fault]) -> Iterator[tuple[str, ...]]:
    """Yield for each fault its package, its law, and what is wrong, with a link to its code."""
    for fault in faults:
        anchor = re.sub(r"[^\w -]", "", title_of(fault).lower()).replace(" ", "-")
        name = title_of(fault).partition(": ")
        link = f"{name[0]}, [`{name[2]}`](audited/faults.md#{anchor})"
        yield link, f"`{fault.law}`", as_text(fault.said)


def fault_section(fault: Fault) -> str:
    return f"## {title_of(fault)}\n\n`{fault.law}`: {fault.said}\n\n```text\n{fault.code}\n```"


def by_law(rows: Sequence[Audited]) -> Iterator[tuple[str, ...]]:
    """Yield for each law how many keep it, break it and so on, and how many conversion mends."""
    for law in LAWS:
        counts = Counter(row.state_of(law.name) for row in rows)
        if not any(counts[state] for state in STATES):
            continue  # a law that is newer than the table
        open_ = [
            law.name in row.mended
            for row in rows
            if row.is_converted and row.state_of(law.name) in (BROKEN, REFUSED)
        ]
        counted = (str(counts[state] or "") for state in STATES)
        yield f"`{law.name}`", *counted, f"{sum(open_)} of {len(open_)}" if open_ else ""


def by_package(rows: Sequence[Audited], faults: Sequence[Fault]) -> Iterator[tuple[str, ...]]:
    """Yield for each package how many of its gradients break a law, and how many faults stand."""
    counts = Counter(_word(fault.package) for fault in faults)
    for package in dict.fromkeys(row.package for row in rows):
        own = [row for row in rows if row.package == package]
        broken = sum(row.count(BROKEN) > 0 for row in own)
        refused = sum(row.count(REFUSED) > 0 for row in own)
        mended = sum(len(row.mended) for row in own)
        of = sum(row.count(BROKEN) + row.count(REFUSED) for row in own if row.is_converted)
        yield (
            _shown(package), str(len(own)), str(broken or ""), str(refused or ""),
            f"{mended} of {of}" if of else "", str(counts[_word(package)] or ""),
        )  # fmt: skip


def _shown(package: str) -> str:
    return "functions of users" if package == OF_USERS else package


def _word(package: str) -> str:
    return package.lower().replace("-", "_")


def as_text(words: str) -> str:
    """Return words of a report in which a page sees neither code nor a link, as in 0[1][2]."""
    return words.replace("`", "'").replace("[", "\\[")


def sections_by_package(state: str) -> Iterator[str]:
    """Yield for each package a table of the laws that are in a state, with what was seen."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    for row in (*read_audited(), *read_kernels()):
        for law, said in row.laws.items():
            found, _, reason = said.partition(": ")
            if found == state:
                mended = ("yes" if law in row.mended else "",) if state == BROKEN else ()
                cells = (f"`{row.name}`", f"`{row.inputs}`", f"`{law}`", as_text(reason), *mended)
                rows.setdefault(_shown(row.package), []).append(cells)
    header = ("what", "inputs", "law", "observation", *(["fixed"] if state == BROKEN else []))
    for package, own in rows.items():
        yield f"## {package}\n\n{table(header, own)}"


# --- known faults ---------------------------------------------------------------------------------


def known_fault_parts() -> tuple[str, ...]:
    releases = json.loads(RELEASES.read_text(encoding="utf-8"))
    sections, faults = [], known_faults()
    for framework, own in faults.items():
        versions = sorted(releases[framework], key=lambda name: [int(n) for n in name.split(".")])
        rows = (
            (each.name, *(_at(releases[framework][v], each.name) for v in versions)) for each in own
        )
        sections += [f"## {framework}", table(("fault", *versions), rows)]
        sections += [
            f"### {fault.name.capitalize()}\n\nWhat: {fault.title}.\n\nWhat to do: "
            f"{fault.avoid}.{fault.reported and f' Reported: {fault.reported}.'}\n\n"
            f"```text\n{fault.code.strip()}\n```"
            for fault in own
        ]
    said = (
        f"{sum(map(len, faults.values()))} gradients that PyTorch, JAX or TensorFlow silently "
        "gets wrong. `multigrad doctor` and `xg.doctor()` run the code of each in your installed "
        "versions, for the function as written and for what `xg.convert` makes of it, so that a "
        "patched build is judged correctly. The tables show some releases, with the result of the "
        "converted function in brackets; `-`: the fault is absent, or its code raises an error; "
        "`?`: not asked."
    )
    return said, *sections


def _at(told: Mapping[str, str], fault: str) -> str:
    state, _, converted = told.get(fault, "?").partition(", ")
    return f"present ({converted})" if state == PRESENT else state if state == "?" else "-"


# --- gates --------------------------------------------------------------------------------------


def gate_rows() -> Iterator[tuple[str, ...]]:
    """Yield for each family of cheats how many there are, and how many each gate finds."""
    table = tomllib.loads((FOLDER / "cheats" / "gates.toml").read_text(encoding="utf-8"))
    families = dict.fromkeys(row["family"] for row in table.values())
    for family in (*families, "all"):
        rows = [row for row in table.values() if family in (row["family"], "all")]
        found = (sum(row[gate] != "passes" for row in rows) for gate in GATES)
        yield family, str(len(rows)), *map(str, found)
