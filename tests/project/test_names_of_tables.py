"""A name of a library's table means what the library computes: values, and gradients where it has
some; and which names programs use is known.

A sample of the names whose graphs are golden, and every name that is added; `python -m
tests.dtypes.names LIBRARY` runs all.
"""

from __future__ import annotations

import pytest

from names.rows import SHARED, unlisted

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


@pytest.mark.parametrize(
    "dialect",
    [
        *DIALECTS,
        pytest.param("jax", marks=pytest.mark.needs("jax")),
        pytest.param("keras", marks=pytest.mark.needs("keras")),
        SHARED,
    ],
)
def test_each_row_is_used_by_a_program_or_listed_as_unused(dialect: str) -> None:
    """`names_used.toml` names the rows that no program uses, which need a reason to stay."""
    assert not unlisted(dialect), "rows have come or gone; type: python tools/names unused"
