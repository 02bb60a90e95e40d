"""`xg.doctor`: known faults of frameworks, each asked by running its code."""

from __future__ import annotations

import json
from typing import Any

import pytest

import multigrad as xg
from multigrad.audit import doctor as room
from multigrad.core.support.installed import is_older
from multigrad.engine.backend.differences import Fault
from multigrad.errors import MultigradError, RuleTypeError

from ..harness.hidden import python
from ..versions import known_faults

TAMED = [Fault("gone", "", "", "def found(wrap): return False")]
MOST_LINES = 20


def test_each_fault_has_a_name_of_its_own_and_a_short_code() -> None:
    faults = [fault for own in room.known_faults().values() for fault in own]
    names = [fault.name for fault in faults]
    assert len({*names}) == len(names)
    assert max(len(fault.code.splitlines()) for fault in faults) <= MOST_LINES


EACH = [
    pytest.param(name, marks=pytest.mark.needs(name)) for name in ("torch", "jax", "tensorflow")
]


@pytest.mark.parametrize("framework", EACH)
def test_the_code_of_each_fault_runs_on_the_installed_framework(framework: str) -> None:
    report = xg.doctor(framework)
    assert len(report.rows) == len(room.known_faults()[framework])
    known = json.loads(known_faults.FILE.read_text(encoding="utf-8"))[framework]
    releases = [each for each in known if not is_older(report.rows[0].version, each)]
    told = known[max(releases, key=lambda each: [int(part) for part in each.split(".")])]
    for row in report.rows:
        # A fault that has become an error is silent no more.
        assert row.state in ("present", "absent") or told[row.fault] == known_faults.ERROR, row
    for row in report.present:
        assert row.converted in ("right", "refused", "wrong too")
        assert row.title in str(report)
    told = json.loads(report.to_json())
    assert [row["state"] for row in told["faults"]] == [row.state for row in report.rows]


@pytest.mark.needs("torch")
def test_a_code_that_ends_its_process_is_told_and_the_rest_goes_on(monkeypatch: Any) -> None:
    ends = Fault("ends", "", "", "import os\nos._exit(3)")
    fails = Fault("fails", "", "", "def found(wrap): raise ValueError('no')")
    faults = {"torch": (*TAMED, ends, fails, *TAMED)}
    monkeypatch.setattr(room, "known_faults", lambda: faults)
    states = [row.state for row in xg.doctor("torch").rows]
    assert states == ["absent", "its process ended with 3", "ValueError: no", "absent"]


def test_a_framework_that_is_not_installed_is_named_and_a_typo_is_an_error(
    monkeypatch: Any,
) -> None:
    nothing = room.RUNNER.replace("importlib.metadata.distributions()", "()")
    monkeypatch.setattr(room, "RUNNER", nothing)
    report = xg.doctor("torch")
    assert report.ok and str(report).startswith("not installed: torch; type: pip install 'torch")
    with pytest.raises(RuleTypeError, match="did you mean 'torch'"):
        xg.doctor("torhc")


def test_a_python_that_does_not_run_is_an_error_and_no_clean_bill(monkeypatch: Any) -> None:
    monkeypatch.setattr(room, "RUNNER", "raise SystemExit('no space left')")
    with pytest.raises(MultigradError, match="does not run torch: no space left"):
        xg.doctor("torch")


def test_the_faults_are_read_without_an_import_of_their_framework() -> None:
    code = (
        "import sys; from multigrad.audit.doctor import known_faults; print([*known_faults()]); "
        "assert not {'torch', 'jax', 'tensorflow'} & sys.modules.keys()"
    )
    assert python("-c", code).strip() == "['jax', 'tensorflow', 'torch']"
