"""One process of the corpus: reads rows from stdin, answers each with its verdicts as JSON."""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))  # builders: cases_*.py
COMPILED = ("jax", "tensorflow")
LIBRARIES: list[object] = []  # must live


def mend_imports() -> None:
    """Let packages be imported that ask for what these frameworks do not have here.

    torchvision 0.28: CUDA's operators beside a torch for CPUs; distrax 0.1.9 (TFP's substrate): a
    table that jax 0.10 has removed.
    """
    import jax
    import torch

    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    LIBRARIES.append(library)
    removed = jax._src.core.pytype_aval_mappings
    for module in (jax.core, jax.interpreters.xla):
        vars(module).setdefault("pytype_aval_mappings", removed)


def find(name: str) -> object:
    """Return the object that a row names."""
    module, _, path = name.partition(":")
    found = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def judge(name: str, words: list[str], _: Sequence[str]) -> dict[str, str]:
    """Return the verdict of a row on each backend."""
    from multigrad.command.guessed_inputs import SEED, read_input
    from multigrad.engine.backend.statuses import backends
    from multigrad.engine.functions.importers import find_custom
    from multigrad.look.convert import EQUAL, convert

    names = [row.name for row in backends() if row.installed]
    try:
        obj = find(name)
    except Exception as error:
        return dict.fromkeys(names, f"absent: {type(error).__name__}: {error}"[:300])
    generator = np.random.default_rng(SEED)
    inputs = [find(word[1:]) if word[0] == "@" else read_input(word, generator) for word in words]
    report = convert(obj, *inputs, compiled=COMPILED)
    if report.problem:
        return dict.fromkeys(names, f"needs input: {report.problem}")
    what = "custom gradient" if find_custom(obj) is not None else "function"
    verdicts = {v.backend: str(v).replace(EQUAL, "equal") for v in report.verdicts}
    return {"kind": f"{report.home} {what}", **verdicts}


def audit(name: str, words: list[str], laws: Sequence[str]) -> dict[str, str]:
    """Return what came of laws, each where none is named, and of those that conversion mends."""
    import multigrad as xg
    from multigrad.audit.audit import BROKEN, KEPT, REFUSED
    from multigrad.audit.gate import Side
    from multigrad.command.guessed_inputs import SEED, choose_inputs, read_input
    from multigrad.core.backend.discovery import load_backend
    from multigrad.errors import MultigradError
    from multigrad.look.subject import as_array

    try:
        fn = find(name)
    except Exception as error:
        return {"problem": f"absent: {type(error).__name__}: {error}"[:300]}
    generator = np.random.default_rng(SEED)
    inputs = [find(word[1:]) if word[0] == "@" else read_input(word, generator) for word in words]
    try:
        inputs = inputs or choose_inputs(name, fn, (), None, Side)[1]
    except MultigradError as error:
        return {"problem": str(error)}
    report = xg.audit(fn, *inputs, laws=laws or None)
    if report.problem:
        return {"problem": report.problem}
    found = {"home": report.home}
    found |= {each.law: f"{each.state}: {each.reason}".rstrip(": ") for each in report.laws}
    asked = [each.law for each in report.laws if each.state in (BROKEN, REFUSED)]
    if asked:
        make = load_backend(report.home).tensors.from_numpy
        arrays = (as_array(each) for each in inputs)
        tensors = [make(np.array(a)) if isinstance(a, np.ndarray) else a for a in arrays]
        try:
            converted = xg.audit(xg.convert(fn), *tensors, laws=asked)
        except Exception:  # it is not converted
            return found
        kept = [each.law for each in converted.laws if each.state == KEPT]
        found["mended"] = ", ".join(kept)
    return found


def gain(name: str, words: list[str], _: Sequence[str]) -> dict[str, str]:
    """Return what conversion gives a torch gradient, on torch itself."""
    from gains import measure

    from multigrad.command.guessed_inputs import SEED, read_input

    generator = np.random.default_rng(SEED)
    given = [find(word[1:]) if word[0] == "@" else read_input(word, generator) for word in words]
    return measure(find(name), given)


TASKS = {"convert": judge, "audit": audit, "gain": gain}


def main() -> None:
    judge = TASKS[sys.argv[1]]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what packages print is no answer
    warnings.simplefilter("ignore")
    mend_imports()
    if judge is not TASKS["convert"]:
        import torch

        # Inductor would translate C++ for each: what it changes is no law of a gradient.
        torch.compiler.set_default_backend("aot_eager")
    for line in sys.stdin:
        name, words = json.loads(line)
        if judge is audit:
            torch.compiler.reset()  # what others compiled counts against a limit of Dynamo's
        try:
            verdicts = judge(name, words, sys.argv[2:])
        except Exception as error:
            said = f"{type(error).__name__}: {error}"[:300]
            verdicts = {"numpy" if judge is TASKS["convert"] else "problem": said}
        answers.write(json.dumps(verdicts) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
