"""Whoever runs a captured form asks `decide` how: no door stands beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from multigrad.engine.functions import decision

ROOT = Path(decision.__file__).parents[3]
FOLDERS = [ROOT / "multigrad", *(ROOT / "backends").glob("multigrad_*")]
FILES = [path for folder in FOLDERS for path in folder.rglob("*.py")]
# They capture, or take up what was captured, and run nothing; those of calls hand it to `decide`,
# unless it is the whole of its code (`Variant.is_whole`).
CAPTURING = {
    "multigrad/core/functions/function.py",
    "multigrad/core/rules/activation_function.py",
    "multigrad/core/rules/specialization.py",
    "multigrad/core/rules/vjp.py",
    "multigrad/engine/functions/decision.py",
    "multigrad/engine/functions/entries.py",
    "multigrad/engine/functions/known_forms.py",
    "multigrad/engine/functions/saving.py",
    "backends/multigrad_torch/compile/function_calls.py",
    "backends/multigrad_torch/core/compile/calls.py",
}
pytestmark = pytest.mark.skipif(
    not (ROOT / "backends").exists(), reason="the tests run beside an installed package"
)


def test_no_call_runs_a_captured_form_unasked() -> None:
    taking = re.compile(r"captures\.for_(answers|call|facts|known)\(")
    found = {path.relative_to(ROOT).as_posix() for path in FILES if taking.search(path.read_text())}
    assert found == CAPTURING


def test_every_door_is_one_that_code_goes_through() -> None:
    doors = {name for name, each in vars(decision).items() if isinstance(each, decision.Door)}
    text = "".join(path.read_text() for path in FILES if path.name != "decision.py")
    assert {door for door in doors if not re.search(rf"\b{door}\b", text)} == set()
