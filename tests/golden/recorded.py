"""A plugin that keeps all source that is emitted while tests run, each text once.

`python -m pytest -p tests.golden.recorded --golden=A tests/rules/library` on the commit before a
change, the same with another folder on that after it, `git diff --no-index A B`: whatever was
captured or lowered in any test is in it. Tests that draw their cases differ from run to run.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .digests import digest
from .graphs import without_places


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", type=Path, help="the folder that emitted sources are written to")


def pytest_configure(config: pytest.Config) -> None:
    folder: Path | None = config.getoption("--golden")
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)

    def keep(event: str, given: tuple[object, ...]) -> None:
        if event == "compile" and str(given[1]).startswith("<multigrad"):
            source = given[0]
            assert isinstance(source, bytes)  # as CPython tells it to auditors
            text = without_places(source.decode())
            (folder / f"{digest(text)}.txt").write_text(text, encoding="utf-8")

    sys.addaudithook(keep)
