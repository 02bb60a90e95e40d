"""The classes that are timed against themselves converted: each converts, and gives its numbers."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")


@pytest.mark.usefixtures("unproven")
def test_a_ratio_is_measured_of_each_class(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.figures import converted as bench

    monkeypatch.setattr(bench, "SIZES", {24: (4, 6)})
    monkeypatch.setattr(bench, "ROUNDS", {24: 2})
    monkeypatch.setattr(bench, "REPETITIONS", {24: 1})
    monkeypatch.setattr(bench, "keep_memory", bool)  # it would hold for the tests after this one
    threads = torch.get_num_threads()
    bench.main([])
    torch.set_num_threads(threads)
    rows = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert rows.keys() == {*bench.CLASSES, "median", "worst"}
    assert all(float(ratio) > 0 for ratio in rows.values())
