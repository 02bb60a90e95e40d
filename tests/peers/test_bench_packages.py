"""What `multigrad bench --only packages` times: theirs and ours are the same function."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("rich")
from multigrad.bench.harness import load
from multigrad.bench.packages import ROWS, Beside

pytestmark = [pytest.mark.peers, pytest.mark.needs("torch", "typer", "rich")]


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_theirs_and_ours_give_the_same_numbers(row: Beside) -> None:
    pytest.importorskip(row.package)
    harness = load("torch")
    tensors = harness.make_inputs(*row.make_arrays(3072))
    theirs, ours = (harness.build_step(each, *tensors)() for each in (row.find(), row.make_ours()))
    for expected, given in zip(theirs, ours, strict=True):
        assert expected.abs().max() > 0
        torch.testing.assert_close(given, expected, rtol=1e-5, atol=1e-6)


def test_the_command_writes_a_contest_for_each_installed(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from multigrad.command.app import app

    pytest.importorskip("brevitas")
    path = tmp_path / "bench.json"
    words = ["bench", "--only", "packages", "--quick", "--backend", "torch", "--sizes", "1e3"]
    result: Any = CliRunner().invoke(app, [*words, "--json", str(path)])
    assert result.exit_code == 0, result.output
    contests = {row["backend"]: row for row in json.loads(path.read_text())["contests"]}
    assert set(contests["brevitas.round_ste"]["timings"]) == {"native", "multigrad"}
