"""An audit finds faults that were planted in sound gradients: one of each kind, of the 120 that
`python -m tests.look.audit.faults.found` runs whole, beside the frameworks' own checkers.
"""

from __future__ import annotations

import pytest

from .faults import modes
from .faults.edits import EDITS, PLANTED
from .faults.found import broken

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
    found = {row[:2]: modes.broken(row) for row in modes.PLANTED}
    assert [row for row, laws in found.items() if row[0] and row[0] not in laws] == []
    assert {row[1]: laws for row, laws in found.items() if not row[0] and laws} == {}
