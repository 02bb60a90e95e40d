"""An audit finds one planted fault of each kind, and none where none is; `planted` has them all."""

from __future__ import annotations

import pytest

from .planted import ANYWHERE, IN_TORCH, SOUND, Fault

pytestmark = pytest.mark.needs("torch")
KINDS = (*SOUND["square"].broken, *ANYWHERE, *IN_TORCH)
NAMES = [name for name, sound in SOUND.items() if sound.framework == "torch"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_audit_finds_a_fault_of_each_kind(kind: str) -> None:
    assert Fault("square", kind).audit().findings


@pytest.mark.parametrize("name", NAMES)
def test_an_audit_accuses_no_gradient_in_which_no_fault_is_planted(name: str) -> None:
    assert Fault(name, "").audit().ok
