"""A name of a library's table means what the library computes: values, and gradients where it has
some.

A sample of the names whose graphs are golden, and every name that is added; `python -m
tests.dtypes.names LIBRARY` runs all.
"""

from __future__ import annotations

import pytest

from ..dtypes.names import compare, ways_of

NEEDS = {name: pytest.mark.needs(name) for name in ("torch", "tensorflow")}
DIALECTS = ["numpy", *(pytest.param(name, marks=mark) for name, mark in NEEDS.items())]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_name_means_what_the_library_computes(
    dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "0")  # the comparison with the library is here
    ways = list(ways_of(dialect, 8))
    outcome = compare(dialect, ways)
    assert not outcome.differing
    assert outcome.counts["equal"] > 3 * len(outcome.refused), outcome.refused
