"""The measurement of our draws beside the frameworks' own: it prints a ratio for each of them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bench.figures import draws as bench
from multigrad.errors import BackendNotFound

OWN = {"numpy": 4, "torch": 3, "jax": 2, "tensorflow": 6}


@pytest.mark.backends(*OWN)
def test_a_ratio_is_printed_for_each_of_the_frameworks_own_ways(
    backend: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "ROUNDS", {1000: 2})
    monkeypatch.setattr(bench, "keep_memory", bool)  # it would hold for the tests after this one
    bench.main([backend.name])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == OWN[backend.name]
    for line in lines:
        ours, _, ratio = map(float, re.findall(r"\d+\.\d+", line)[-3:])
        assert line.startswith(backend.name) and ours > 0 and ratio > 0


def test_a_framework_that_is_none_of_ours_is_refused() -> None:
    with pytest.raises(BackendNotFound, match="did you mean 'torch'"):
        bench.main(["torhc"])
