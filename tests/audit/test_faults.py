"""An audit finds what is planted in sound gradients: one fault of each edit, by its laws, of those
that `python -m tests.audit.faults.found` runs whole, beside the frameworks' own checkers.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from ..harness.hidden import run_python
from .faults.found import broken, gradients

ROOT = Path(__file__).parents[2]
ALL = list(gradients())
FAULTS = [gradient for gradient in ALL if gradient.laws]
EDITED = [
    gradient for gradient in ALL if gradient.framework == "torch" and gradient.group != "modes"
]
ONE_OF_EACH = {row.name.partition(", ")[2]: row for row in reversed(EDITED) if row.laws}
SOUND = {row.name: row for row in EDITED if not row.laws}


def test_the_page_has_the_figures_of_each_set_and_no_fault_counts_twice() -> None:
    page = ROOT.joinpath("docs", "how_to", "audit.md").read_text("utf-8")
    rows = re.findall(
        r"\| `python -m tests.audit.faults.found --set (\w+)` \| (\d+) \| (\d+)", page
    )
    planted = Counter(gradient.group for gradient in FAULTS)
    assert rows == [(group, str(count), str(count)) for group, count in planted.items()]
    assert (
        f"Of {len(FAULTS)} faults planted in correct gradients, an audit finds {len(FAULTS)};"
        in page
    )
    assert len({(gradient.framework, gradient.name) for gradient in FAULTS}) == len(FAULTS)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("edit", ONE_OF_EACH)
def test_a_fault_of_each_edit_is_found_by_its_laws(edit: str) -> None:
    laws = tuple(ONE_OF_EACH[edit].laws.split(", "))
    assert {*laws} <= {*broken(ONE_OF_EACH[edit], laws)}


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", SOUND)
def test_sound_gradients_are_not_accused(name: str) -> None:
    assert broken(SOUND[name]) == []


@pytest.mark.needs("torch")
def test_faults_of_modes_and_of_what_is_kept_are_found_by_their_laws() -> None:
    # In a process of its own: what torch's older checkpoint refuses hangs on what ran before.
    done = run_python("-m", "tests.audit.faults.found", "--set", "modes", cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
