"""What the pages say of the library in words is so: errors, commands, options, switches, counts."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import multigrad as xg

from ..harness.hidden import run_python

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
ALL = "\n".join(PAGES.values())
ERROR_ROW = re.compile(
    r"^\| `(xg\..*)` \| `(\w+Error|UnsupportedOp|BackendNotFound): (.*)` \|$", re.MULTILINE
)


@pytest.mark.needs("torch", "jax")
def test_the_errors_in_tables_are_those_that_are_raised() -> None:
    import jax.numpy as jnp
    import torch

    rows = ERROR_ROW.findall(ALL)
    assert len(rows) >= 10
    for written, kind, message in rows:
        with pytest.raises(xg.MultigradError) as raised:
            eval(written, {"xg": xg, "np": np, "torch": torch, "jnp": jnp})
        assert str(raised.value).startswith(message), written
        assert type(raised.value).__name__ == kind


@pytest.mark.needs("torch")
def test_every_switch_of_a_fast_kernel_that_is_named_exists() -> None:
    from multigrad.core.backend.discovery import load_backend

    words = re.findall(r'(?:without\("|MULTIGRAD_WITHOUT=)([\w.,]+)', ALL)
    named = {name for word in words for name in word.split(",")}
    rows = {
        row.name for name in ("numpy", "torch") for row in load_backend(name).kernels.fast.patterns
    }
    assert len(named) >= 2 and named <= rows


@pytest.fixture(scope="module")
def library() -> list[str]:
    """The rules of a fresh process: other tests register theirs in this one."""
    names = run_python("-c", "import multigrad as xg; print('\\n'.join(xg.rules()))").stdout.split()
    assert names
    return names


def test_every_rule_stands_in_the_table_with_its_params_and_defaults(library: list[str]) -> None:
    rows = re.findall(r"^\| `([^`]+)` \|(.*)$", PAGES["docs/rules.md"], re.MULTILINE)
    table = {name: row.replace(r"\|", "").split("|")[1] for name, row in rows}
    assert set(library) <= table.keys(), "type: python tools/write_pages.py"
    for name in library:
        defaults = [f"{key}={value!r}" for key, value in xg.get(name).params.items()]
        assert re.findall(r"`(\w+=[^`]*)`", table[name]) == defaults, name


def test_every_package_whose_rules_there_are_is_named_with_their_number(library: list[str]) -> None:
    counts = Counter(name.partition(".")[0] for name in library if "." in name)
    page = " ".join(PAGES["docs/how_to/coming_from.md"].split())
    listed = re.findall(r"`(\w+)` \((\d+)\)", page)
    assert {name: int(number) for name, number in listed} == counts


def test_every_activation_is_named() -> None:
    from multigrad.core.lowering.forwards import ACTIVATIONS

    assert f"Activations: {', '.join(ACTIVATIONS)}." in PAGES["docs/how_to/cheat_sheet.md"]


def test_every_extra_is_in_the_table_of_extras() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    declared = set(re.findall(r"^(\w+) = \[", section, re.MULTILINE))
    named = set(re.findall(r"^\| `(\w+)` \|", PAGES["docs/install.md"], re.MULTILINE))
    assert declared <= named


def test_every_environment_variable_that_is_named_is_read() -> None:
    sources = [
        path.read_text(encoding="utf-8")
        for folder in ("multigrad", "backends", "tests/conformance")
        for path in (ROOT / folder).rglob("*.py")
    ]
    code = "\n".join(sources)
    named = set(re.findall(r"\bMULTIGRAD_[A-Z_]+\b", ALL))
    assert len(named) >= 4
    assert {name for name in named if f'"{name}"' not in code} == set()


def test_the_glossary_is_short_and_its_words_are_those_of_the_code() -> None:
    section = PAGES["docs/concepts.md"].partition("## Glossary")[2]
    words = re.findall(r"^\| ([\w ]+) \|", section, re.MULTILINE)[1:]
    assert 20 <= len(words) <= 30
    code = "\n".join(
        path.read_text(encoding="utf-8").lower() for path in (ROOT / "multigrad").rglob("*.py")
    )
    assert [word for word in words if not re.search(rf"\b{word.lower()}s?\b", code)] == []
