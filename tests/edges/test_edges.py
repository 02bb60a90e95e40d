"""Indices at the edge: outside, negative, repeated, none, as the library itself has it."""

from __future__ import annotations

from typing import Any

import pytest

from . import table

CASES = 12  # of the whole table, which runs weekly


@pytest.mark.backends("numpy", "torch", "jax", "tensorflow")
@pytest.mark.filterwarnings("ignore")
def test_indexed_expressions_are_the_librarys_at_their_edges(backend: Any) -> None:
    backends = dict.fromkeys(("numpy", backend.name))
    outcome = table.run(backend.name, tuple(backends), most=CASES)
    assert outcome.faults == []
    assert outcome.counts["equal"] > 0


@pytest.mark.needs("torch", "jax", "tensorflow")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("library", ["numpy", "torch", "jax", "tensorflow"])
def test_indexed_expressions_are_the_same_on_every_backend(library: str) -> None:
    outcome = table.run(library, ("torch", "jax", "tensorflow"), most=CASES)
    assert outcome.faults == []
