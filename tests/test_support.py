"""What docs/support.md says of a transform on a kind of rule is what happens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .support import matrix
from .support.declared import Note, Refused
from .support.kinds import KINDS, NotApplicable

# Of the backends, keras needs one of the frameworks too: the environment says which.
NEEDS = {"numpy": ()}


def cases() -> Iterator[Any]:
    for backend in matrix.backends():
        for transform in matrix.rows_of(backend)[0]:
            marks = [pytest.mark.needs(*NEEDS.get(backend, (backend,)))] * (backend != "numpy")
            yield pytest.param(backend, transform, marks=marks, id=f"{backend}: {transform}")


@pytest.mark.parametrize(("name", "transform"), list(cases()))
@pytest.mark.filterwarnings("ignore")
def test_each_kind_of_rule_does_what_the_table_says(name: str, transform: str) -> None:
    wrong = {kind: said for kind in KINDS if (said := outcome(name, transform, kind))}
    assert wrong == {}


def outcome(backend: str, transform: str, kind: str) -> str:
    """Return how a cell differs from what is declared of it; "" where it does not."""
    row = matrix.declared(backend, transform, kind)
    try:
        said = matrix.run(backend, transform, KINDS[kind])
    except NotApplicable:
        return "" if isinstance(row, Note) and row.absent else "has no meaning"
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if isinstance(row, Refused) and type(error).__name__ == row.error and row.text in text:
            return ""
        return text
    if isinstance(row, Refused):
        return "is not refused"
    return said


def test_the_page_is_what_the_table_says_now() -> None:
    written = matrix.PAGE.read_text(encoding="utf-8")
    assert written == matrix.render(), "type: python -m tests.support.matrix"


def test_every_row_covers_a_cell() -> None:
    for backend in matrix.backends():
        _, refused, notes = matrix.rows_of(backend)
        for row in (*refused, *notes):
            covered = [c for c in matrix.cells() if c[0] == backend and row.covers(*c[1:])]
            assert covered, row
