"""What libraries' names become and what is emitted for each rule is as the digests have it.

Where a change means to change that, `python -m tests.golden compare` shows the texts, and
`python -m tests.golden update` writes the digests anew.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from ..golden import digests
from ..golden.graphs import captured_texts
from ..golden.sources import emitted_texts

NEEDS = {name: pytest.mark.needs(name) for name in ("torch", "jax", "tensorflow")}
DIALECTS = ["numpy", *(pytest.param(name, marks=mark) for name, mark in NEEDS.items())]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_name_of_a_library_becomes_the_graph_that_it_was(
    dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "0")
    if dialect == "torch" and not importlib.import_module("multigrad_torch.versions").COMPILES:
        pytest.skip("the digests have the kinks and the names of a newer torch")
    known = digests.read("graphs", dialect)
    if dialect == "jax":  # which compiles what it is asked: the command has them all
        known = dict(list(known.items())[::8])
    assert not digests.differing(known, captured_texts(dialect, list(known)))


def test_what_is_emitted_for_every_rule_is_the_source_that_it_was(backend: Any) -> None:
    if not digests.path_of("sources", backend.name).exists():
        pytest.skip(f"{backend.name} is an author's backend: its sources are its own tests' matter")
    assert not digests.differing(digests.read("sources", backend.name), emitted_texts(backend.name))
