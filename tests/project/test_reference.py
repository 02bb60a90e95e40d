"""The reference holds: every public name stands in it, has an example, and the examples run."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..harness import public

EXAMPLES = list(public.examples())
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
needs_all = pytest.mark.needs("torch", "jax", "tensorflow", "keras", "optax")


def cases() -> Iterator[Any]:
    for example in EXAMPLES:
        marks = [pytest.mark.needs(*example.needs)] if example.needs else []
        yield pytest.param(example, id=example.where, marks=marks)


@pytest.mark.usefixtures("registry_as_found")
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


@needs_all
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
    text = (public.PAGES / page).read_text(encoding="utf-8")
    return re.search(rf"`(?:[\w.]*\.)?{last}`", text) is not None


@needs_all
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
