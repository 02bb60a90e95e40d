"""An audit finds faults that were planted in sound gradients: one of each kind, of the 120 that
`python -m tests.audit.faults.found` runs whole, beside the frameworks' own checkers.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ..harness.hidden import run_python
from .faults.edits import EDITS, PLANTED
from .faults.found import broken

ROOT = Path(__file__).parents[2]
ONE_OF_EACH = {EDITS[row[2]][0]: row for row in reversed(PLANTED) if row[0] == "torch"}


def test_there_are_120_of_ten_kinds() -> None:
    assert len(PLANTED) == len(set(PLANTED)) == 120
    assert len(ONE_OF_EACH) == 10


@pytest.mark.needs("torch")
@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_a_fault_of_each_kind_is_found(kind: str) -> None:
    assert broken(*ONE_OF_EACH[kind])


@pytest.mark.needs("torch")
@pytest.mark.parametrize("base", ["relu", "bias", "softmax"])
def test_sound_gradients_are_not_accused(base: str) -> None:
    assert broken("torch", base, None) == []


@pytest.mark.needs("torch")
def test_faults_of_modes_and_of_what_is_kept_are_found_by_their_laws() -> None:
    # In a process of its own: what torch's older checkpoint refuses hangs on what ran before.
    done = run_python("-m", "tests.audit.faults.modes", cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
