"""The pages in docs are up to date, and say of every op, rule, fast kernel and difference what is
so.
"""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core import ops
from multigrad.core.backend.discovery import load_backend
from multigrad.core.rules.rule_names import OWN
from multigrad_conformance.differences import kept
from pages import captured, docs, typed

from ..harness import public
from ..harness.hidden import run_python
from ..rules.model.test_activations import NATIVE_FORMULAS, NATIVE_GRADIENTS

FOLDER = Path(__file__).parents[2] / "docs"
BACKENDS = docs.BACKENDS
needs_all = pytest.mark.needs("torch", "jax", "tensorflow", "keras")


NEED_ONE = {f"dialects/{name}.md": pytest.mark.needs(name) for name in ("jax", "tensorflow")}
# Their tables are those of frameworks; `command_docs` needs typer.
OF_FRAMEWORKS = re.compile(
    r"(ops|dialects|fast_kernels|differences|first_call|.*/(torch|jax|tensorflow|keras|command))\.md"
)


@pytest.mark.always
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=NEED_ONE.get(n, needs_all if OF_FRAMEWORKS.match(n) else ()))
        for n in docs.PAGES
    ],
)
def test_a_page_is_what_the_tables_say_now(name: str) -> None:
    written = (FOLDER / name).read_text(encoding="utf-8")
    assert written == docs.PAGES[name](), "type: python tools/write_pages.py"


@pytest.mark.parametrize("file", typed.MODULES)
def test_the_stub_and_examples_are_what_the_tables_say_now(file: str) -> None:
    written = (typed.ROOM / file).read_text(encoding="utf-8")
    assert written == typed.MODULES[file](), "type: python tools/write_sources.py"


@needs_all
def test_the_table_in_readme_is_what_was_measured() -> None:
    written = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    assert written == docs.render_readme(written), "type: python tools/write_pages.py"


@needs_all
@pytest.mark.needs("typer", "rich")
def test_the_tool_writes_every_page(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    tool = FOLDER.parent / "tools" / "write_pages.py"
    done = run_python(tool, "--out", folder)
    assert done.returncode == 0, done.stderr
    written = {path.relative_to(folder).as_posix() for path in folder.rglob("*.md")}
    assert written == set(docs.PAGES)


def test_the_page_that_runs_torch_stays_where_it_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(docs, "PAGES", {"first_call.md": docs.PAGES["first_call.md"]})
    left = f"left {tmp_path / 'first_call.md'}: No module named 'torch'"
    assert list(docs.write_docs(tmp_path)) == [left]


@pytest.mark.parametrize("op", ops.CALLABLE_OPS, ids=lambda op: op.name)
def test_a_name_for_rules_is_one_of_the_neutral_dialect(op: ops.Op) -> None:
    name = docs.xp_name(op).strip("`")
    assert hasattr(xg.xp, name) or name in ("*in VJPs*", "*by keys*")


@needs_all
def test_every_op_and_fast_kernel_has_a_row() -> None:
    pages = {name: (FOLDER / name).read_text(encoding="utf-8") for name in docs.PAGES}
    assert all(f"| `{op.name}` |" in pages["ops.md"] for op in ops.CALLABLE_OPS)
    rows = [row for name in BACKENDS for row in load_backend(name).kernels.fast.patterns]
    assert all(f"| `{row.name}` |" in pages["fast_kernels.md"] for row in rows)


@needs_all
@pytest.mark.parametrize("library", captured.PLACES)
def test_every_captured_function_has_a_row_under_all_its_names(library: str) -> None:
    page = (FOLDER / captured.page_of(library)).read_text(encoding="utf-8")
    shown = set()
    for names, _ in captured.captured_names(library):
        assert f"| {docs.code(names)} |" in page
        place, _, name = names[0].rpartition(".")
        shown.add(id(getattr(captured.find_place(captured.PLACES[library][place]), name)))
    table = captured.load(library)
    operators = [
        getattr(table.tensors.tensor, n) for n in dir(table.tensors.tensor) if n.startswith("__")
    ]
    hidden = [
        f for f in table.names.aliases if id(f) not in shown and not any(f is o for o in operators)
    ]
    assert not hidden, "no place in pages.captured.PLACES shows these"


@needs_all
def test_what_a_page_says_of_a_missing_input_is_what_the_rule_does() -> None:
    grad_out = np.array([1.5, -2.0])
    page = (FOLDER / "rules.md").read_text(encoding="utf-8")
    listed = page.partition("## Without tin")[2].partition("\n## ")[0]
    own = [name for name in xg.rules() if xg.get(name).__module__.startswith(OWN)]
    unlisted = [xg.get(name) for name in own if f"`{name}`" not in listed]
    assert 0 < len(unlisted) < len(own)
    for rule in unlisted:
        np.testing.assert_array_equal(rule(None, grad_out, None), grad_out)


@needs_all
def test_the_gradients_that_frameworks_take_themselves_are_declared() -> None:
    tested = {(key[0], key[1]) for key in (*NATIVE_GRADIENTS, *NATIVE_FORMULAS)}
    declared = {(name, row.what) for name in BACKENDS for row in kept(name, "own gradient")}
    assert declared == tested


# The reference holds: every public name stands in it, has an example, and the examples run.


EXAMPLES = list(public.examples())
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
needs_all_reference = pytest.mark.needs("torch", "jax", "tensorflow", "keras", "optax")


def cases() -> Iterator[Any]:
    for example in EXAMPLES:
        marks = [pytest.mark.needs(*example.needs)] if example.needs else []
        # What a docstring prints can change from anywhere; a framework makes it slow.
        marks += [] if example.needs else [pytest.mark.always]
        yield pytest.param(example, id=example.where, marks=marks)


@pytest.mark.parametrize("example", list(cases()))
def test_an_example_prints_what_it_promises(
    example: public.Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"np": np, "xg": xg, "xp": xg.xp, "__name__": "example"}
    test = doctest.DocTestParser().get_doctest(example.text, names, example.where, None, 0)
    said: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append)
    assert not said, "".join(said)


@pytest.mark.always
@needs_all_reference
def test_every_public_name_stands_on_its_page() -> None:
    names = public.public_names()
    shown = {page: public.directives(page) for page in set(names.values())}
    # A name is shown where it stands, or under another of its names.
    objects = {
        page: {id(public.find(each)) for each in each_page} for page, each_page in shown.items()
    }
    missing = [
        name
        for name, page in names.items()
        if name not in shown[page]
        and id(public.find(name)) not in objects[page]
        and not is_named(name, page)
    ]
    assert missing == []


def is_named(name: str, page: str) -> bool:
    """Return whether a page names a method under its class, or a value in a table or a list."""
    last = re.escape(name.rpartition(".")[2])
    return re.search(rf"`(?:[\w.]*\.)?{last}`", public.text_of(page)) is not None


@pytest.mark.always
@needs_all_reference
def test_every_public_name_has_an_example() -> None:
    by_place = {example.where for example in EXAMPLES}
    lacking = []
    for name, page in public.public_names().items():
        value = public.find(name) if name.rpartition(".")[0] not in public.CLASSES else None
        own = getattr(value, "__doc__", None) or ""
        in_page = name.rpartition(".")[2] in public.words_in_blocks(page)
        if name not in by_place and ">>>" not in own and not in_page:
            lacking.append(name)
    assert lacking == []


def test_an_example_that_prints_something_else_is_seen() -> None:
    test = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    said: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append)
    assert "Expected" in "".join(said)
