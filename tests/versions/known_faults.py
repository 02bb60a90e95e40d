"""Writes known_faults.json: in which releases of the frameworks each known fault is present.

python -m tests.versions.known_faults OLD/bin/python NEW/bin/python ...

Each Python has one release of a framework, and what multigrad needs. Without one, the releases that
are installed are told, and those that the file has are held against it: the weekly job does so on
the oldest and the newest releases, and on nightlies.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import multigrad as xg
from multigrad.audit.doctor import ABSENT, PRESENT

FILE = Path(__file__).with_name("known_faults.json")
ERROR = "does not run"
Table = dict[str, dict[str, dict[str, str]]]  # by framework, version and fault


def main(pythons: list[str]) -> int:
    table: Table = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    answers = [xg.doctor(python=python) for python in pythons] or [xg.doctor()]
    is_wrong = False
    for row in (row for answer in answers for row in answer.rows):
        state = row.state if row.state in (PRESENT, ABSENT) else ERROR
        said = f"{state}, {row.converted}" if row.converted else state
        version = row.version.partition("+")[0]  # without the kind of build
        told = table.setdefault(row.framework, {}).setdefault(version, {})
        if not pythons:
            beside = told.get(row.fault, said)
            is_wrong |= beside != said
            told_else = f"; the table has {beside}" if beside != said else ""
            print(f"{row.framework} {row.version}: {row.fault}: {said}{told_else}")
        told[row.fault] = said
    if pythons:
        FILE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
