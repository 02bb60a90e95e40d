"""Tests beside real packages: they run where they are asked for by their folder's name, as the tox
environment `peers` does, and else are not collected.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .models import declare_ops  # noqa: F401

FOLDER = Path(__file__).parent


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    asked = [str(argument).partition("::")[0] for argument in config.args]
    return None if any(FOLDER.name in Path(each).parts for each in asked) else True
