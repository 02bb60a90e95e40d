"""Audit kernels written in Triton, in its interpreter or on a GPU, and compare with the table.

Rows stand in `kernels.toml`: module:name and its inputs, as `--input` takes them, or `@name` of a
value that `cases_kernels.py` makes, or `!name` of one that is constant. What came of each law
stands in `kernels_audited.toml`.

    python tests/foreign/kernels.py [part of a name ...] [--update] [--report FILE]
    python tests/foreign/kernels.py --faults

Faults stand in `kernel_faults`, as code that runs on a GPU as it is, and here in the interpreter.
"""

from __future__ import annotations

import argparse
import importlib
import json
import runpy
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from multigrad.audit.audit import BROKEN, KEPT, LAWS, NOT_APPLICABLE, REFUSED
from multigrad.command.guessed_inputs import SEED, read_input
from multigrad.command.targets import place_inputs
from multigrad.command.worker import Apart
from multigrad.errors import MultigradError

HERE = Path(__file__).parent
ROWS, AUDITED = HERE / "kernels.toml", HERE / "kernels_audited.toml"
FAULTS = HERE / "kernel_faults"
SECONDS = 300.0  # for one row: the interpreter takes milliseconds for an instance of a kernel
WITHOUT = ("compiled",)  # the interpreter's kernels run outside of compiled code
REASON = 110  # characters that are kept
Table = dict[str, dict[str, str]]


def read_rows(chosen: list[str]) -> dict[str, list[str]]:
    """Return the inputs by name, of those that have one of the words in it."""
    rows = tomllib.loads(ROWS.read_text(encoding="utf-8"))["kernels"]
    return {
        name: [word.strip() for word in words.split(" ; ")]
        for name, words in rows.items()
        if not chosen or any(word in name for word in chosen)
    }


def import_triton() -> None:
    """Import Triton, for its interpreter where there is no GPU; in a process of its own."""
    sys.path[:0] = [str(HERE), str(HERE.parent / "support")]
    interpreter = importlib.import_module("triton_interpreter")
    interpreter.prepare()
    importlib.import_module("triton")
    interpreter.mend()
    place_inputs()


def audit_row(name: str, words: list[str]) -> dict[str, str]:
    """Return what came of each law; in a process of its own."""
    import multigrad as xg

    import_triton()
    generator = np.random.default_rng(SEED)
    inputs = [find(word[1:]) if word[0] in "@!" else read_input(word, generator) for word in words]
    laws = [law.name for law in LAWS if law.name not in WITHOUT]
    constant = [i for i, word in enumerate(words) if word[0] == "!"]
    fn, given = with_constants(find(name), inputs, constant)
    report = xg.audit(fn, *given, laws=laws)
    if report.problem:
        return {"problem": report.problem}
    found = {
        state: ", ".join(each.law for each in report.laws if each.state == state)
        for state in (BROKEN, REFUSED, NOT_APPLICABLE, KEPT)
    }
    said = {each.law: each.reason for each in report.laws if each.state in (BROKEN, REFUSED)}
    return {state: laws for state, laws in found.items() if laws} | said


def with_constants(fn: Any, inputs: list[Any], constant: list[int]) -> tuple[Any, list[Any]]:
    """Return a function of the other inputs, and these."""
    if not constant:
        return fn, inputs
    import torch

    fixed = {i: torch.from_numpy(np.array(inputs[i])) for i in constant}

    def with_fixed(*given: Any) -> Any:
        rest = iter(given)
        every = [fixed[i] if i in fixed else next(rest) for i in range(len(inputs))]
        return getattr(fn, "apply", fn)(*every)

    return with_fixed, [x for i, x in enumerate(inputs) if i not in fixed]


def find(name: str) -> Any:
    """Return what a row names, or a value of `cases_kernels.py`."""
    module, colon, path = name.rpartition(":")
    found: Any = importlib.import_module(module if colon else "cases_kernels")
    for part in path.split("."):
        found = getattr(found, part)
    return found


def run_fault(path: str) -> None:
    """Run a reproducer, which asserts that the fault is there; in a process of its own."""
    import_triton()
    runpy.run_path(path)


def run_faults(process: Apart) -> int:
    """Return how many reproducers do not show their fault, and say which."""
    gone = 0
    for path in sorted(FAULTS.glob("*/*.py")):
        try:
            process.call(run_fault, str(path))
            said = ""
        except MultigradError as error:
            said = f": the fault is gone: {error}"
        gone += bool(said)
        print(f"{'!' if said else ' '} {path.parent.name}/{path.name}{said}", flush=True)
    return gone


def read_audited() -> Table:
    return tomllib.loads(AUDITED.read_text(encoding="utf-8")) if AUDITED.exists() else {}


def write_audited(found: Table) -> None:
    """Write the table, with what is known of the rows that were not run."""
    known = {**read_audited(), **found}
    lines = ["# Written by `python tests/foreign/kernels.py --update`."]
    for name in read_rows([]):
        if name in known:
            lines += ["", f"[{json.dumps(name)}]"]
            for law, said in known[name].items():
                lines.append(f"{json.dumps(law)} = {json.dumps(shorten(law, said))}")
    AUDITED.write_text("\n".join(lines) + "\n", encoding="utf-8")


def shorten(law: str, said: str) -> str:
    return said if law in (BROKEN, REFUSED, NOT_APPLICABLE, KEPT) else said[:REASON].strip()


def states_of(found: dict[str, str]) -> list[Any]:
    """Return what is compared: reasons have numbers in them, which differ between machines."""
    return ["problem" in found, *map(found.get, (BROKEN, REFUSED, NOT_APPLICABLE, KEPT))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("chosen", nargs="*", help="parts of names; else every row")
    parser.add_argument("--update", action="store_true", help="write what is found to the table")
    parser.add_argument("--report", type=Path, help="write every answer to this file")
    parser.add_argument("--faults", action="store_true", help="run the reproducers alone")
    options = parser.parse_args()
    rows = {} if options.faults else read_rows(options.chosen)
    known, wrong, gone = read_audited(), 0, 0
    start = time.perf_counter()
    found: Table = {}
    with Apart(SECONDS) as process:
        for name, words in rows.items():
            try:
                found[name] = process.call(audit_row, name, words)
            except MultigradError as error:
                found[name] = {"problem": str(error)}
            differs = states_of(found[name]) != states_of(known.get(name, {}))
            wrong += differs
            said = found[name].get("problem") or found[name].get(BROKEN, "")
            print(f"{'!' if differs else ' '} {name}: {said}", flush=True)
            if options.report:
                with options.report.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([name, found[name]]) + "\n")
            if options.update:
                write_audited(found)
        if not options.chosen:
            gone = run_faults(process)
    minutes = (time.perf_counter() - start) / 60
    print(f"{len(rows)} audited, {wrong} not as in the table, {minutes:.1f} minutes")
    return 1 if (wrong and not options.update) or gone else 0


if __name__ == "__main__":
    sys.exit(main())
