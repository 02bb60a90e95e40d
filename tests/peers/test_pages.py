"""The pages of the docs that need a package of this environment run and keep their promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..harness.pages import Page, needs, run_page, unkept
from ..project.test_docs_code import PAGES, needs_peers

pytestmark = pytest.mark.peers


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=pytest.mark.needs(*sorted(needs(page))))
        for page in PAGES
        if needs_peers(page)
    ],
)
def test_a_page_runs_beside_the_packages_that_it_names(page: Page, tmp_path: Path) -> None:
    done = run_page(page, tmp_path)
    assert done.returncode == 0, f"{page.name}\n{done.errors}"
    assert unkept(page.script, done.printed) == [], page.name
