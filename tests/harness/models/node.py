"""JavaScript that node runs beside the gallery's own functions."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pages.gallery.javascript import RUNTIME

needs_node = pytest.mark.skipif(
    shutil.which("node") is None, reason="node, which runs JavaScript, is not installed"
)


def run_node(tmp_path: Path, program: str) -> Any:
    """Return what a program logs as JSON, with words for what JSON lacks."""
    path = tmp_path / "program.js"
    path.write_text(f"{RUNTIME.read_text()}\n{program}", encoding="utf-8")
    result = subprocess.run(["node", str(path)], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout)


TOLD = """
const words = (_, x) => (typeof x !== "number" || Number.isFinite(x) ? x : String(x));
console.log(JSON.stringify(results, words));
"""


def as_numbers(row: Any) -> np.ndarray:
    return np.array([float(x) for x in row])
