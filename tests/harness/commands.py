"""The command `multigrad`, run in this process, which saves its start."""

from __future__ import annotations

from typing import Any


def invoke(*words: object, width: int = 200) -> Any:
    """Run the command with these words on a screen of so many columns, and return its result."""
    from typer.testing import CliRunner

    from multigrad.command.app import app

    return CliRunner(env={"COLUMNS": str(width)}).invoke(app, [*map(str, words)])
