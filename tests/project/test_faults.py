"""Faults of packages: each file of tests/foreign/*faults says what it shows, in a few lines."""

from __future__ import annotations

import re
from pathlib import Path

FAULTS = sorted((Path(__file__).parents[1] / "foreign").glob("*faults/*/*.py"))
FIRST = re.compile(r"# [\w.-]+==[\w.]+, [\w ]+: .+\.")
MOST_LINES = 20


def test_each_reproducer_names_its_package_and_law_and_is_short() -> None:
    assert len(FAULTS) >= 40
    for path in FAULTS:
        text = path.read_text(encoding="utf-8")
        assert FIRST.fullmatch(text.partition("\n")[0]), path.name
        assert text.count("\n") <= MOST_LINES, path.name
        assert "assert" in text or "AssertionError" in text, path.name
        assert "multigrad" not in text, path.name
