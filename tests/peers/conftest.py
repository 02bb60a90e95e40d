"""Tests beside real packages: they run where they are asked for by their folder's name, as the tox
environment `peers` does, and else are not collected.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))  # for `declare_ops`, which a process of its own imports too

import declare_ops  # noqa: F401


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    asked = [str(argument).partition("::")[0] for argument in config.args]
    return None if any(FOLDER.name in Path(each).parts for each in asked) else True
