"""The pages in docs are up to date, and say of every op, rule, fast kernel and difference what is
so.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import multigrad as xg
from multigrad.backend.finding.discovery import load_backend
from multigrad.graph import ops
from multigrad_conformance.differences import kept

from ..rules.model.test_activations import NATIVE_FORMULAS, NATIVE_GRADIENTS

pytest.importorskip("tomllib", reason="Python has tomllib from 3.11 on")
from pages import captured, docs

OWN = "multigrad.rules.library."
FOLDER = Path(__file__).parents[2] / "docs"
BACKENDS = docs.BACKENDS
needs_all = pytest.mark.needs("torch", "jax", "tensorflow", "keras")


@needs_all
@pytest.mark.parametrize("name", docs.PAGES)
def test_a_page_is_what_the_tables_say_now(name: str) -> None:
    written = (FOLDER / name).read_text(encoding="utf-8")
    assert written == docs.PAGES[name](), "type: python tools/write_pages.py"


@needs_all
def test_the_table_in_readme_is_what_was_measured() -> None:
    written = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    assert written == docs.render_readme(written), "type: python tools/write_pages.py"


@needs_all
@pytest.mark.weekly
@pytest.mark.needs("typer", "rich")
def test_the_tool_writes_every_page(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    tool = FOLDER.parent / "tools" / "write_pages.py"
    words = [sys.executable, str(tool), "--out", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    written = {path.relative_to(folder).as_posix() for path in folder.rglob("*.md")}
    assert written == set(docs.PAGES)


@pytest.mark.parametrize("op", ops.CALLABLE_OPS, ids=lambda op: op.name)
def test_a_name_for_rules_is_one_of_the_neutral_dialect(op: ops.Op) -> None:
    name = docs.xp_name(op).strip("`")
    assert hasattr(xg.xp, name) or name in ("*in VJPs*", "*by keys*")


@needs_all
def test_every_op_rule_and_fast_kernel_has_a_row() -> None:
    pages = {name: (FOLDER / name).read_text(encoding="utf-8") for name in docs.PAGES}
    assert all(f"| `{op.name}` |" in pages["ops.md"] for op in ops.CALLABLE_OPS)
    own = [name for name in xg.rules() if xg.get(name).__module__.startswith(OWN)]
    assert all(f"| `{name}` |" in pages["rules.md"] for name in own)
    rows = [row for name in BACKENDS for row in load_backend(name).kernels.fast.patterns]
    assert all(f"| `{row.name}` |" in pages["fast_kernels.md"] for row in rows)


@needs_all
@pytest.mark.parametrize("library", docs.LIBRARIES)
def test_every_captured_function_has_a_row_under_all_its_names(library: str) -> None:
    page = (FOLDER / "dialects.md").read_text(encoding="utf-8")
    shown = set()
    for names, _ in captured.captured_names(library):
        assert f"| {docs.code(names)} |" in page
        place, _, name = names[0].rpartition(".")
        shown.add(id(getattr(captured.find_place(captured.PLACES[library][place]), name)))
    table = captured.load(library)
    operators = [getattr(table.tensor, n) for n in dir(table.tensor) if n.startswith("__")]
    hidden = [f for f in table.aliases if id(f) not in shown and not any(f is o for o in operators)]
    assert not hidden, "no place in pages.captured.PLACES shows these"


@needs_all
def test_what_a_page_says_of_a_missing_input_is_what_the_rule_does() -> None:
    grad_out = np.array([1.5, -2.0])
    page = (FOLDER / "rules.md").read_text(encoding="utf-8")
    for line in (line for line in page.splitlines() if "| `grad_out`, unchanged |" in line):
        rule = xg.get(line.split("`")[1])
        np.testing.assert_array_equal(rule(None, grad_out, None), grad_out)
    assert "| `grad_out`, unchanged |" in page


@needs_all
def test_the_gradients_that_frameworks_take_themselves_are_declared() -> None:
    tested = {(key[0], key[1]) for key in (*NATIVE_GRADIENTS, *NATIVE_FORMULAS)}
    declared = {(name, row.what) for name in BACKENDS for row in kept(name, "own gradient")}
    assert declared == tested
