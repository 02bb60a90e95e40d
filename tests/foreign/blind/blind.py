"""60 wrong and 60 right kernels that somebody wrote who knew neither the laws nor other sets, and
what the gate says of them. They stand in `kind01.txt` to `kind10.txt`, by what they compute:

    === REF name            the reference, `Model` and its inputs; `| f` behind it: a function f
    --- probes              inputs at which a fault shows, for whoever looks at a case by hand
    === CASE name | reference | R or W
    @from name              an edit of that case, by blocks <<<< ==== >>>>
    --- fault: ...          of a wrong one
    --- where: ...          at which inputs it shows

python -m tests.foreign.blind.blind [part of a name ...]
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from multigrad.command.gate import GateRequest, gate_files
from multigrad.errors import MultigradError

HERE = Path(__file__).parent
TORCH = """
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable
"""
JAX = """
import jax
import jax.numpy as jnp
import numpy as np
"""
EDIT = re.compile(r"^<<<<\n(.*?)\n?====\n(.*?)\n?>>>>$", re.MULTILINE | re.DOTALL)


class Case(NamedTuple):
    """A kernel with its reference; `fault` is empty for a right one."""

    name: str
    reference: str
    kernel: str
    is_right: bool
    fault: str


def cases() -> Iterator[Case]:
    references, kernels = dict[str, str](), dict[str, str]()
    for path in sorted(HERE.glob("kind*.txt")):
        for block in re.split(r"^=== ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            head, _, body = block.partition("\n")
            code, *notes = re.split(r"^--- ", body, flags=re.MULTILINE)
            (kind, name), *words = head.partition("|")[0].split(), *head.split("|")[1:]
            if kind == "REF":
                references[name] = code
                continue
            if origin := re.match(r"@from (\S+)\n", code):
                edits, code = EDIT.findall(code), kernels[origin[1]]
                for old, new in edits:
                    code = code.replace(old, new)
            kernels[name] = code
            reference = references[words[0].strip()]
            imports = JAX if "jnp." in reference else TORCH
            fault = next((n.removeprefix("fault:").strip() for n in notes if n[:5] == "fault"), "")
            is_right = words[1].strip() == "R"
            yield Case(name, imports + reference, imports + code, is_right, fault)


def judge(case: Case) -> str:
    """Return "right", "first order", "wrong", or why nobody knows."""
    with TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("kernel.py", "reference.py")]
        for path, text in zip(paths, (case.kernel, case.reference), strict=True):
            path.write_text(text)
        try:
            verdict = gate_files(GateRequest(str(paths[0]), str(paths[1])))
        except MultigradError as error:
            return f"not judged: {error}"
    if verdict.ok or verdict.first_order:
        return "right" if verdict.ok else "first order"
    return "wrong" if verdict.judged else f"not judged: {verdict.failures[0]}"


def main() -> None:
    counts = Counter[str]()
    for case in cases():
        if len(sys.argv) > 1 and not any(word in case.name for word in sys.argv[1:]):
            continue
        answer = judge(case)
        is_told = answer in ("right", "first order") if case.is_right else answer == "wrong"
        counts["right" if case.is_right else "wrong"] += 1
        counts["right, and told so" if case.is_right else "wrong, and found"] += is_told
        if not is_told:
            print(f"{case.name}: {answer}{f'; {case.fault}' if case.fault else ''}", flush=True)
    print(", ".join(f"{count} {what}" for what, count in counts.items()))


if __name__ == "__main__":
    main()
