"""Audit the custom gradients of published packages, and compare with the committed table.

Rows stand in `cases.toml` and, for those that are not converted too, `audit_cases.toml`; what came
of each law in `audited.toml`; what is meant by its author, and so is no fault, in `meant.toml`;
faults as code that runs in `faults/`.

    python tests/foreign/audit.py [PACKAGE or module:name ...] [--update] [--report FILE]
    python tests/foreign/audit.py --law NAME [--law NAME ...] --update  # what is new, into the rest
    python tests/foreign/audit.py --faults
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from run import CASES, FRAGMENT, HERE, QUIET, Row, Task, Verdicts, read_cases, run_rows
from run import ENVIRONMENT as OF_PACKAGES

from multigrad.audit.audit import LAWS

MORE, AUDITED, FAULTS = HERE / "audit_cases.toml", HERE / "audited.toml", HERE / "faults"
AUDIT = Task("audit", lambda reason: {"problem": reason})
PROCESSES = 2
TOO_SLOW = "it takes longer"
MOST_SECONDS = 300  # for one row: some take 100 on a machine that does something else, too
LISTED = ("kept", "does not apply")  # states whose laws stand in one line
PLAIN = ("home", "problem", "mended")  # what is no law


def read_audited() -> dict[str, Verdicts]:
    """Return the committed table."""
    if not AUDITED.exists():
        return {}
    return tomllib.loads(AUDITED.read_text(encoding="utf-8"))


def write_audited(found: dict[str, Verdicts], rows: list[Row]) -> None:
    """Write the table, in the order of the rows."""
    known = {**read_audited(), **found}
    lines = ["# Written by `python tests/foreign/audit.py --update`.", ""]
    for row in rows:
        if row.name in known:
            lines.append(f"[{json.dumps(row.name)}]")
            lines += [f"{json.dumps(k)} = {json.dumps(v)}" for k, v in known[row.name].items()]
            lines.append("")
    AUDITED.write_text("\n".join(lines), encoding="utf-8")


def fold(verdicts: Verdicts) -> Verdicts:
    """Return verdicts by law with the laws of a state in one line where no reason is of use."""
    folded = {name: verdicts[name][:FRAGMENT] for name in PLAIN if verdicts.get(name)}
    laws = {name: said.partition(": ") for name, said in verdicts.items() if name not in PLAIN}
    for listed in LISTED:
        names = [name for name, (state, _, _) in laws.items() if state == listed]
        if names:
            folded[listed] = ", ".join(names)
    for name, (state, colon, reason) in laws.items():
        if state not in LISTED:
            folded[name] = f"{state}{colon}{reason[:FRAGMENT].rstrip()}"
    return folded


def unfold(folded: Verdicts) -> Verdicts:
    """Return verdicts by law of what `fold` made."""
    verdicts = {name: said for name, said in folded.items() if name not in LISTED}
    for state in LISTED:
        verdicts |= dict.fromkeys(filter(None, folded.get(state, "").split(", ")), state)
    return verdicts


def merge(found: Verdicts, known: Verdicts) -> Verdicts:
    """Return what is known, with what was found of some laws in its place; in the laws' order."""
    if "problem" in found:
        return found
    before = {name: said for name, said in unfold(known).items() if name != "problem"}
    mended = {*before.get("mended", "").split(", ")} - found.keys()
    mended |= {*found.get("mended", "").split(", ")} - {""}
    both = {**before, **found, "mended": ", ".join(law.name for law in LAWS if law.name in mended)}
    order = ("home", *(law.name for law in LAWS), "mended")
    return {name: both[name] for name in order if name in both}


def differ(found: Verdicts, known: Verdicts) -> list[str]:
    """Return what has another state than is known; reasons have numbers in them, which move."""
    return [
        f"{name}: {found.get(name, 'no more')}, was {known.get(name, 'not there')}"
        for name in dict.fromkeys([*found, *known])
        if state_of(name, found) != state_of(name, known)
    ]


def state_of(name: str, verdicts: Verdicts) -> str:
    """Return what is compared: a list as it is, a state, whether there is a problem."""
    said = verdicts.get(name, "")
    return said if name in (*LISTED, "mended", "home") else said.partition(":")[0]


# --- faults ---------------------------------------------------------------------------------------


def run_fault(path: Path) -> str:
    """Return why a reproducer does not run, "" where the fault stands as it says."""
    environment = {**os.environ, **QUIET, **OF_PACKAGES.get(path.parent.name, {})}
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, env=environment, check=False
    )
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def run_faults() -> int:
    """Run every reproducer; return how many do not show their fault."""
    paths = sorted(FAULTS.glob("*/*.py"))
    with ThreadPoolExecutor(PROCESSES) as pool:
        gone = 0
        for path, said in zip(paths, pool.map(run_fault, paths), strict=True):
            name = f"{path.parent.name}/{path.name}"
            print(f"! {name}: the fault is gone: {said}" if said else f"  {name}", flush=True)
            gone += bool(said)
    print(f"{len(paths)} faults, {gone} gone")
    return gone


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("chosen", nargs="*", help="packages, or rows as module:name")
    parser.add_argument("--law", action="append", default=[], help="ask this one alone")
    parser.add_argument("--update", action="store_true", help="write what is found to the table")
    parser.add_argument("--report", type=Path, help="write every answer to this file")
    parser.add_argument("--seconds", type=float, default=MOST_SECONDS, help="for one row")
    parser.add_argument("--faults", action="store_true", help="run the reproducers alone")
    options = parser.parse_args()
    start, known, found, wrong = time.perf_counter(), read_audited(), {}, 0
    files = (CASES, MORE)
    rows = [] if options.faults else read_cases(options.chosen, files)
    if not options.chosen:  # what is known to take too long is run by its name alone
        slow = {name for name, row in known.items() if row.get("problem", "").startswith(TOO_SLOW)}
        rows = [row for row in rows if row.name not in slow]
    task = replace(AUDIT, options=tuple(options.law))
    for row, verdicts in run_rows(rows, options.seconds, task, PROCESSES):
        if options.law:
            verdicts = merge(verdicts, known.get(row.name, {}))
        found[row.name] = fold(verdicts)
        changes = differ(found[row.name], known.get(row.name, {}))
        wrong += bool(changes)
        print(f"{'! ' if changes else '  '}{row.name}", *changes, sep="\n      ", flush=True)
        if options.report:
            with options.report.open("a", encoding="utf-8") as file:
                file.write(json.dumps([row.package, row.name, verdicts]) + "\n")
        if options.update:
            write_audited(found, read_cases(files=files))
    minutes = (time.perf_counter() - start) / 60
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (used.ru_utime + used.ru_stime) / 60
    print(
        f"{len(rows)} audited, {wrong} not as in the table, {minutes:.1f} minutes, "
        f"{cpu:.1f} of a CPU"
    )
    gone = 0 if options.chosen else run_faults()
    return 1 if (wrong and not options.update) or gone else 0


if __name__ == "__main__":
    sys.exit(main())
