"""A column of the demo that a backend brings: an entry point of the group `multigrad.demo`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from multigrad.demo.frameworks import brought

pytestmark = pytest.mark.needs("typer", "rich", "sklearn", "matplotlib")
COLUMNS = [
    pytest.param(each.name, marks=pytest.mark.needs(each.name), id=each.name) for each in brought()
]


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_that_a_backend_brings_has_the_numbers_of_numpy(name: str, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from multigrad.command.app import app

    words = ["demo", "--frameworks", f"numpy,{name}", "--epochs", "2", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert len(results["parity"]) == 8  # four rules under two activations
    for row in results["parity"]:
        assert row["worst"]["predictions"] <= 1
        for difference in row["to_reference"]:
            assert difference["second"] == name
            assert difference["gradient"] <= 4e-6 * row["largest_gradient"]
