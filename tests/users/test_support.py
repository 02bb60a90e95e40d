"""What docs/support.md says of a transform on a kind of rule is what happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..harness.distributed.ranks import names_in
from ..support import matrix
from ..support.declared import OF_ALL

# Of the backends, keras needs one of the frameworks too: the environment says which.
NEEDS = {"numpy": ()}
RANKS = Path(__file__).parents[1] / "ranks"


def cases() -> Iterator[Any]:
    for backend in matrix.backends():
        for transform, besides in matrix.rows_of(backend).here.items():
            needed = [*NEEDS.get(backend, (backend,)), *besides]
            marks = [pytest.mark.needs(*needed)] * bool(needed)
            yield pytest.param(backend, transform, marks=marks, id=f"{backend}: {transform}")


@pytest.mark.parametrize(("name", "transform"), list(cases()))
@pytest.mark.filterwarnings("ignore")
def test_each_kind_of_rule_does_what_the_table_says(name: str, transform: str) -> None:
    assert matrix.wrong(name, transform) == {}


def test_the_page_is_what_the_table_says_now() -> None:
    written = matrix.PAGE.read_text(encoding="utf-8")
    assert written == matrix.render(), "type: python -m tests.support.matrix"


def test_every_row_covers_a_cell() -> None:
    for backend in matrix.backends():
        for row in matrix.rows_of(backend).exceptions:
            cells = [c for c in matrix.cells() if backend == c[0] or row in OF_ALL]
            assert any(row.covers(*cell[1:]) for cell in cells), row


def test_every_row_on_devices_is_run_by_ranks() -> None:
    run = {name for path in RANKS.glob("*.py") for name in names_in(path)}
    for backend in matrix.backends():
        for transform in matrix.rows_of(backend).devices:
            assert f"each_kind_of_rule[{transform}]" in run, transform
