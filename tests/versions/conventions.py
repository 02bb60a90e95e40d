"""Writes conventions.json: what functions of frameworks give at kinks, release by release.

python -m tests.versions.conventions torch=OLD/bin/python,NEW/bin/python jax=...

Each Python has one release of the framework, and needs nothing else; the oldest comes first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from multigrad.audit.lock.lockfile import Answer, Asking, Outcome, find_probes, read_table
from multigrad.audit.lock.verify import compare, say

FILE = Path(__file__).with_name("conventions.json")
# What the page shows of the newest releases beside each other.
BESIDE = {
    "clip at its lower bound": ("torch.clamp(x, 0.0, 1.0)", "jax.numpy.clip(x, 0.0, 1.0)",
        "tf.clip_by_value(x, 0.0, 1.0)", "multigrad.xp.clip(x, 0.0, 1.0)"),
    "relu at 0": ("torch.relu(x)", "jax.nn.relu(x)", "tf.nn.relu(x)", "multigrad.xp.relu(x)"),
    "abs at 0": ("torch.abs(x)", "jax.numpy.abs(x)", "tf.abs(x)", "multigrad.xp.abs(x)"),
    "sqrt at 0": ("torch.sqrt(x)", "jax.numpy.sqrt(x)", "tf.sqrt(x)", "multigrad.xp.sqrt(x)"),
    "maximum of equal operands": ("torch.maximum(x, y)", "jax.numpy.maximum(x, y)",
        "tf.maximum(x, y)", "multigrad.xp.maximum(x, y)"),
    "max where all are equal": ("torch.amax(x, 0)", "jax.numpy.max(x)", "tf.reduce_max(x)",
        "multigrad.xp.max(x)"),
    "sort where all are equal": ("torch.sort(x)[0]", "jax.numpy.sort(x)", "tf.sort(x)",
        "multigrad.xp.sort(x)"),
    "norm at a vector of zeros": ("torch.linalg.norm(x)", "jax.numpy.linalg.norm(x)", "tf.norm(x)",
        "multigrad.xp.norm(x)"),
    "std where all are equal": ("torch.std(x)", "jax.numpy.std(x)", "tf.math.reduce_std(x)"),
    "prod where one is 0": ("torch.prod(x)", "jax.numpy.prod(x)", "tf.reduce_prod(x)",
        "multigrad.xp.prod(x)"),
    "pow at (0, 0)": ("torch.pow(x, y)", "jax.numpy.power(x, y)", "tf.pow(x, y)",
        "multigrad.xp.pow(x, y)"),
    "atan2 at (0, 0)": ("torch.atan2(x, y)", "jax.numpy.arctan2(x, y)", "tf.atan2(x, y)",
        "multigrad.xp.atan2(x, y)"),
    "xlogy at (0, 0)": ("torch.xlogy(x, y)", "jax.scipy.special.xlogy(x, y)",
        "tf.math.xlogy(x, y)", "multigrad.xp.xlogy(x, y)"),
    "logsumexp where all are -inf": ("torch.logsumexp(x, 0)", "jax.nn.logsumexp(x)",
        "tf.reduce_logsumexp(x)", "multigrad.xp.logsumexp(x)"),
    "round at 0.5": ("torch.round(x)", "jax.numpy.round(x)", "tf.round(x)",
        "multigrad.xp.round(x)"),
    "relu at NaN": ("torch.relu(x)", "jax.nn.relu(x)", "tf.nn.relu(x)", "multigrad.xp.relu(x)"),
}  # fmt: skip


def differences(answers: Sequence[Answer]) -> Iterator[dict[str, Any]]:
    """Yield what is not the same in all releases, with the places where it is said alike."""
    rows: dict[str, dict[str, Any]] = {}
    for name, probe in read_table().items():
        if name not in answers[0].outcomes:
            continue
        outcomes = [answer.outcomes[name] for answer in answers]
        for what, cells in _parts(outcomes):
            row = {"function": probe.path, "call": probe.call, "what": what, "cells": cells}
            if what == "function":
                row["call"] = ""
            rows.setdefault(json.dumps(row), {**row, "at": []})["at"].append(probe.at)
    yield from rows.values()


def _parts(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, list[str]]]:
    missing = ["missing" in each for each in outcomes]
    if any(missing):
        if not all(missing):
            yield "function", ["-" if each else "there" for each in missing]
        return
    raised = [each.get("raises", "") for each in outcomes]
    if any(raised):
        if len(set(raised)) > 1:
            yield "derivative", [f"raises {each}" if each else "runs" for each in raised]
        return
    letters = list(outcomes[0]["derivative"])
    columns = {"value": [each["value"] for each in outcomes]}
    for letter in letters:
        what = f"derivative for {letter}" if len(letters) > 1 else "derivative"
        columns[what] = [each["derivative"][letter] for each in outcomes]
    for what, column in columns.items():
        if not all(compare(column[0], each)[0] for each in column):
            yield what, [say(each) for each in column]


def beside(newest: Mapping[str, Answer]) -> dict[str, list[str]]:
    """Return the derivatives of the calls of BESIDE, a text for each."""
    found = {}
    for words, calls in BESIDE.items():
        name = words[words.index(" ") + 1 :]
        found[words] = []
        for call in calls:
            probe = read_table()[f"{call} {name}"]
            derivative = newest[probe.framework].outcomes[probe.name]["derivative"]
            texts = [say(each) for each in derivative.values()]
            found[words].append(f"{probe.path}: {'; '.join(texts)}")
    return found


def main(words: Sequence[str]) -> None:
    newest, told = {}, {}
    for word in words:
        framework, _, pythons = word.partition("=")
        probes = find_probes([framework])
        answers = [
            Asking(probes, [framework], each or None).run()[framework]
            for each in pythons.split(",")
        ]
        newest[framework] = answers[-1]
        rows = list(differences(answers)) if len(answers) > 1 else []
        versions = [answer.version for answer in answers]
        told[framework] = {"probes": len(probes), "versions": versions, "differences": rows}
    data = {"frameworks": told, "beside": beside(newest)}
    FILE.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
