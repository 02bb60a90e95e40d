"""An audit finds cheats, which pass a naive test, and accuses none of their right twins.

A share is asked again, for the law that `gates.toml` has; `tests/foreign/cheats/gates.py` asks all.
"""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import multigrad as xg

from ..support.sampling import sample

pytestmark = [pytest.mark.needs("torch"), pytest.mark.filterwarnings("ignore")]
TABLE = Path(__file__).parents[1] / "foreign" / "cheats" / "gates.toml"
ROWS: dict[str, dict[str, str]] = tomllib.loads(TABLE.read_text(encoding="utf-8"))
FOUND = {name: row["audit"] for name, row in ROWS.items() if row["audit"] != "passes"}


def gates() -> Any:
    """Return the module of the gates, which imports torch."""
    return import_module("...foreign.cheats.gates", __name__)


def test_the_table_has_every_cheat_and_each_passes_a_naive_test() -> None:
    assert [cheat.name for cheat in gates().cheats()] == list(ROWS)
    assert [
        name for name, row in ROWS.items() if all(row[gate] != "passes" for gate in gates().NAIVE)
    ] == []


@pytest.mark.parametrize("name", sample(FOUND, 0.15))
def test_an_audit_finds_what_the_table_says(name: str) -> None:
    (cheat,) = (each for each in gates().cheats() if each.name == name)
    gates().HELD.clear()
    assert not xg.audit(cheat.wrong, *cheat.twin.inputs, laws=[FOUND[name]]).ok


def test_an_audit_accuses_no_right_twin() -> None:
    twins = {each.twin.name: each.twin for each in gates().cheats()}
    found = {
        name: xg.audit(twin.as_class(), *twin.inputs, laws=gates().CHEAP).findings
        for name, twin in sample(twins.items(), 0.15)
    }
    assert {name: findings for name, findings in found.items() if findings} == {}
