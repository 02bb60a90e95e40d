"""Ejected files: they run where multigrad is not, give the same bits, and can be read."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp

from .harness import ejected

FORWARDS = ("Linear", "ReLU", "Heaviside")
KEY = (3, 2**31 + 7)


def native(obj: Any, backend: str, **options: Any) -> Any:
    """Return what `lower` gives, as a function."""
    lowered = xg.lower(obj, backend, **options)
    return lowered.apply if backend == "torch" else lowered


def values_of(rule: str) -> tuple[Any, ...]:
    """Return the values of a random rule's params, its key last; none for another."""
    if "key" not in xg.source(rule, "numpy").partition("def backward(")[2].partition(")")[0]:
        return ()
    return (*[v for _, v in sorted(xg.get(rule).params.items())], KEY)


def run_apart(backend: str, folder: Path, calls: dict[str, Any]) -> dict[str, Any]:
    """Run files in a process that cannot import multigrad."""
    (folder / ejected.CALLS).write_bytes(pickle.dumps(calls))
    words = [sys.executable, "-P", ejected.__file__, backend, str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return pickle.loads((folder / ejected.RESULTS).read_bytes())


def test_every_rule_runs_without_multigrad_to_the_bit(backend: Any, tmp_path: Path) -> None:
    calls: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    inputs = ejected.make_inputs()
    for rule in xg.rules():
        for forward in FORWARDS:
            name = f"{rule}_{forward}".replace("(", "_").replace(")", "")
            text = xg.source(rule, backend.name, forward=forward, standalone=True)
            (tmp_path / f"{name}.py").write_text(text)
            chosen = inputs if forward == "ReLU" else inputs[1:4]
            calls[name] = [([x], values_of(rule)) for x in chosen]
            own = native(rule, backend.name, forward=forward)
            expected[name] = [ejected.run(backend.name, own, *call) for call in calls[name]]
    found = run_apart(backend.name, tmp_path, calls)
    differing = [name for name in calls if found[name] != expected[name]]
    assert not differing
    assert len(found) == 3 * len(xg.rules())


_ = np, pytest, xp
