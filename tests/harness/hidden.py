"""Python in a process of its own, also where modules that are installed seem not to be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HIDE = """
import sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        hidden = name.partition(".")[0] in HIDDEN
        return None if hidden else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
import runpy
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
ROOT = Path(__file__).parents[2]


def run_python(
    *words: object, cwd: Path | None = None, timeout: float | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with these words; what it prints is text."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=timeout,
        env={**os.environ, **environment},
    )


def python(*words: object, timeout: float = 120, **options: Any) -> str:
    """Return what Python prints, run with these words, and assert that it ends well."""
    done = run_python(*words, timeout=timeout, **options)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def run_without(
    modules: list[str], program: str, *words: object
) -> subprocess.CompletedProcess[str]:
    return run_python("-c", f"HIDDEN = {modules!r}{HIDE}", ROOT / program, *words)
