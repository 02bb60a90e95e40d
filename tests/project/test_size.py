"""The project does not grow: each room has a budget of lines, which falls."""

from __future__ import annotations

from pathlib import Path

import pytest

import size
from size import ROOT, budget, measured

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git lists the files")
ADVICE = "write tools/size.txt anew by `python tools/size.py`"


def test_each_room_has_a_row_of_the_budget() -> None:
    assert sorted(measured()) == sorted(budget()), ADVICE


def test_no_room_is_larger_than_its_budget_and_no_budget_is_loose() -> None:
    rows = budget()
    found = {
        name: (rows[name].lines, lines)
        for name, lines in measured().items()
        if name in rows and not rows[name].holds(lines)
    }
    assert found == {}, (
        f"where lines came, remove as many, or say in the row what they bought: {ADVICE}"
    )


def test_rows_that_hold_are_left_and_those_that_rise_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(size, "TABLE", tmp_path / "size.txt")
    monkeypatch.setattr(size, "measured", lambda: {"a": 995, "b": 1001})
    size.TABLE.write_text("a | 1000 | 900 | why\nb | 1000 | 1000 |\n")
    size.write()
    assert budget() == {"a": size.Row(1000, 900, "why"), "b": size.Row(1001, 1000, "")}
    assert capsys.readouterr().out.startswith("b rose from 1000 to 1001 lines")


def test_a_row_above_its_fewest_says_what_it_bought() -> None:
    silent = [name for name, row in budget().items() if row.lines > row.fewest and not row.bought]
    assert silent == [], "say it in the last column of tools/size.txt"
