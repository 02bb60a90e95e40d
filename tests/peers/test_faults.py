"""docs/peers_faults.md stays true: each block of it runs with the package and version it names."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

pytestmark = pytest.mark.peers

PAGE = Path(__file__).parent.parent.parent / "docs" / "peers_faults.md"
SECTION = re.compile(
    r"^## (?P<title>(?P<package>\w+) (?P<version>[\w.]+): .*?)$.*?```python\n(?P<code>.*?)```",
    re.MULTILINE | re.DOTALL,
)
SECTIONS = {found["title"]: found for found in SECTION.finditer(PAGE.read_text(encoding="utf-8"))}


def test_each_heading_names_a_package_and_a_version_and_has_its_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(SECTIONS) == text.count("\n## ") == text.count("```python\n") > 10


@pytest.mark.parametrize("title", SECTIONS)
def test_a_fault_is_there_in_the_version_that_is_named(title: str) -> None:
    section = SECTIONS[title]
    try:
        found = version(section["package"])
    except PackageNotFoundError:
        pytest.skip(f"{section['package']} is not installed")
    assert found == section["version"], "the page names another version than the pinned one"
    exec(compile(section["code"], title, "exec"), {"__name__": "reproducer"})  # noqa: S102
