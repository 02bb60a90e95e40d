"""The to-do list of a backend that is being written, which the conformance suite ends with."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from ..backend.contract import Backend
from ..backend.finding.installed import is_importable
from ..backend.finding.unwritten import fields_to_write, ops_to_write

WIDTH = 96


def is_begun(backend: Backend) -> bool:
    """Return whether enough is written that tests can say something: all fields, and some rows."""
    return not fields_to_write(backend) and bool(backend.kernels.rows)


def list_todo(backend: Backend) -> str:
    """Return what is to be written, in the order in which to write it; "" where nothing is."""
    return "\n".join(_lines(backend))


def _lines(backend: Backend) -> Iterator[str]:
    needed, missing = fields_to_write(backend), ops_to_write(backend)
    if not needed and not missing:
        return
    yield f"to do, for the backend {backend.name!r}:"
    if not is_importable(backend.name):
        yield _item(f"install the framework: `import {backend.name}` finds nothing")
    if needed:
        yield f"  {len(needed)} needed fields; `multigrad.backend` says what each is called with"
        for name, asked in needed.items():
            yield _item(f"{name}: {asked}", "    ")
    if missing:
        count = sum(map(len, missing.values()))
        yield f"  {count} ops, by family: a row of OPS for each, or its reason in UNSUPPORTED"
        for family, rows in missing.items():
            names = ", ".join(op.name for op in rows)
            yield _item(f"{family} ({len(rows)}): {names}", "    ")


def _item(text: str, indent: str = "  ") -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=f"{indent}[ ] ", subsequent_indent=f"{indent}    "
    )
