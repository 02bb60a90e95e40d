"""docs/format.md is enough: a reader without multigrad and the schemas agree with what is saved."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import multigrad as xg
from multigrad.audit.lock.lockfile import LockFile, format_lock
from multigrad.audit.lock.probes import Answer, Probe
from multigrad.audit.lock.verify import make_entry
from multigrad.functions.documents import format as documents
from tests.harness.schemas import fits

ROOT = Path(__file__).parents[3]
READER = ROOT / "examples" / "read_lock.py"
SCHEMAS = Path(documents.__file__).with_name("schema")
xp = xg.xp


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of saved rules and a Function, with a lock."""
    folder = tmp_path_factory.mktemp("files")
    for name in ("triangular", "rectangular", "sigmoid_surrogate", "clip_norm", "noise"):
        xg.save(name, folder / f"{name}.json")
    xg.save(xg.compose("clip_norm", "noise"), folder / "composed.json")
    soft = xg.function(
        lambda x, y: (xp.tanh(x) * y, xp.maximum(x, y)),
        lambda g, x, y: (g[0] * y * (1 - xp.tanh(x) ** 2) + g[1], g[0] * xp.tanh(x)),
    )
    soft(np.ones(2), np.ones(2))
    xg.save(soft, folder / "soft.json")
    probe = Probe("torch.abs(x)", "at 0", {"x": "0x0p+0"})
    outcome = {"value": ["0x0p+0"], "derivative": {"x": ["0x0p+0"]}}
    lock = LockFile(
        {probe.name: probe}, {"torch": Answer("2.13.0", outcomes={probe.name: outcome})}
    )
    lock.objects["triangular.json"] = make_entry(str(folder / "triangular.json"), None)
    (folder / "gradients.lock").write_text(format_lock(lock))
    return folder


def read(*files: Path) -> subprocess.CompletedProcess[str]:
    """Run the reader where there is the standard library alone."""
    return subprocess.run(
        [sys.executable, "-S", "-I", str(READER), *map(str, files)],
        check=False, capture_output=True, text=True,
    )  # fmt: skip


def test_a_reader_without_multigrad_agrees(files: Path) -> None:
    done = read(*sorted(files.glob("*.json")), files / "gradients.lock")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines.count("2 of 2 vectors were run") == 3
    assert lines.count("1 of 1 vectors were run") == 1
    assert "a vector is not run, for 'norm'" in lines
    assert sum(line.endswith("as it was written") for line in lines) == 8


@pytest.mark.parametrize(
    ("name", "was", "becomes", "problem"),
    [
        ("triangular.json", '"value": 1e-06', '"value": 1e-05', "its hash is another"),
        ("triangular.json", '"op": "sub"', '"op": "add"', "a vector gives other numbers"),
        ("soft.json", '"0x1p+0", "-0x1p-1"', '"0x1p+1", "-0x1p-1"', "gives other numbers"),
        ("gradients.lock", '"op_set": 1', '"op_set": 2', "its hash is another"),
    ],
)
def test_the_reader_sees_what_was_tampered_with(
    files: Path, tmp_path: Path, name: str, was: str, becomes: str, problem: str
) -> None:
    text = (files / name).read_text()
    assert was in text
    (tmp_path / name).write_text(text.replace(was, becomes, 1))
    done = read(tmp_path / name)
    assert done.returncode == 1, done.stdout + done.stderr
    assert problem in done.stdout


def test_the_reader_is_short_and_imports_nothing_else() -> None:
    text = READER.read_text()
    assert len(text.splitlines()) <= 200
    imported = set(re.findall(r"^ *(?:import|from) ([a-z]+)", text, re.MULTILINE))
    assert imported <= sys.stdlib_module_names


# --- schemas -------------------------------------------------------------------------------------


def test_what_is_saved_fits_the_schema(files: Path) -> None:
    schema = json.loads((SCHEMAS / "document.json").read_text())
    old = sorted((ROOT / "tests" / "data" / "v0.1.0").glob("*/*.json"))
    for file in [*files.glob("*.json"), *old]:
        assert fits(json.loads(file.read_text("utf-8")), schema, schema), file.name
    data = json.loads((files / "triangular.json").read_text())
    for name, value in {"version": 2, "evidence": {}, "name": 1, "graphs": [1]}.items():
        assert not fits({**data, name: value}, schema, schema), name


def test_a_lock_fits_the_schema(files: Path) -> None:
    schema = json.loads((SCHEMAS / "lock.json").read_text())
    data = json.loads((files / "gradients.lock").read_text())
    assert fits(data, schema, schema)
    for name, value in {"version": 2, "hash": "sha256:0", "objects": {"a": {}}, "more": 1}.items():
        assert not fits({**data, name: value}, schema, schema), name
