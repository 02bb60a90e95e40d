"""The project does not grow: each room has a budget of lines, which falls."""

from __future__ import annotations

import pytest

from size import LOOSE, ROOT, budget, measured

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git lists the files")
ADVICE = "write tools/size.txt anew by `python tools/size.py`"


def test_each_room_has_a_row_of_the_budget() -> None:
    assert sorted(measured()) == sorted(budget()), ADVICE


def test_no_room_is_larger_than_its_budget_and_no_budget_is_loose() -> None:
    found = measured()
    rows = {name: row for name, row in budget().items() if name in found}
    above = {name: found[name] for name, row in rows.items() if found[name] > row.lines}
    assert above == {}, (
        f"remove as many lines as came, or {ADVICE}, and say in each row that rose what it bought"
    )
    loose = {
        name: found[name] for name, row in rows.items() if row.lines > found[name] * (1 + LOOSE) + 1
    }
    assert loose == {}, f"lines went: {ADVICE}"


def test_a_row_above_its_fewest_says_what_it_bought() -> None:
    silent = [name for name, row in budget().items() if row.lines > row.fewest and not row.bought]
    assert silent == [], "say it in the last column of tools/size.txt"
