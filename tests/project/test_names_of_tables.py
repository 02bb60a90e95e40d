"""A name of a library's table means what the library computes: values, and gradients where it has
some; and which names programs use is known.

A sample of the names whose graphs are golden, and every name that is added; all of them each week,
and by `python -m tests.dtypes.names LIBRARY`.
"""

from __future__ import annotations

from typing import Any

import pytest

from names.rows import SHARED, unlisted

from ..conftest import find_backend
from ..dtypes import everyday, table
from ..dtypes.names import compare, ways_of
from ..support.sampling import WHOLE

NEEDING = [
    pytest.param(name, marks=pytest.mark.needs(name)) for name in ("torch", "jax", "tensorflow")
]
DIALECTS = ["numpy", *NEEDING]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_name_means_what_the_library_computes(
    dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "0")  # the comparison with the library is here
    with find_backend(dialect).precision("float64"):
        outcome = compare(dialect, ways_of(dialect, 1 if WHOLE else 8))
    assert not outcome.differing, (
        "each is captured, for the library's own: correct the row, give the function a meaning of "
        "its own in the backend's `dialect`, or say in DIFFERENT of tests/dtypes/names.py why the "
        "numbers are others"
    )
    assert outcome.counts["equal"] > 3 * len(outcome.refused), outcome.refused


@pytest.mark.parametrize(
    "dialect",
    [
        *DIALECTS,
        pytest.param("keras", marks=pytest.mark.needs("keras")),
        SHARED,
    ],
)
def test_each_row_is_used_by_a_program_or_listed_as_unused(dialect: str) -> None:
    """`names_used.toml` names the rows that no program uses, which need a reason to stay."""
    assert not unlisted(dialect), "rows have come or gone; type: python tools/names unused"


# Everyday expressions come out of a capture in the dtype and with the value of the library.


PART = 1.0 if WHOLE else 0.3  # of each share below
# Of the cases: all where they are quick, a share where each compiles.
SHARES = {"numpy": 1.0, "torch": 0.4, "tensorflow": 0.1, "jax": 0.05}
# Of the names, and of the cases of each.
SHARES_OF_NAMES = {
    "numpy": (0.2, 0.05),
    "torch": (0.1, 0.05),
    "tensorflow": (0.1, 0.03),
    "jax": (0.05, 0.01),
}


@pytest.mark.backends("numpy", "torch", "jax", "tensorflow")
@pytest.mark.filterwarnings("ignore")
def test_everyday_expressions_have_the_librarys_dtype_and_value(backend: Any) -> None:
    with backend.precision("float64"):
        outcome = everyday.run(backend.name, PART * SHARES[backend.name])
    assert outcome.differing == []
    tried = outcome.counts["equal"] + outcome.counts["refused"]
    assert outcome.counts["refused"] <= 0.05 * tried, outcome.refused


@pytest.mark.backends("numpy", "torch", "jax", "tensorflow")
@pytest.mark.filterwarnings("ignore")
def test_captured_names_are_equal_to_the_librarys_or_refused(backend: Any) -> None:
    with backend.precision("float64"):
        names, share = SHARES_OF_NAMES[backend.name]
        outcome = table.run(backend.name, share, PART * names)
    assert outcome.differing == []
    assert outcome.counts["equal"] > 0
