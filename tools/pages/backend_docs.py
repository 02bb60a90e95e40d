"""The page of one backend, written from what it declares: what it lacks and does differently.

What stands above the notice is written by hand, and kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from multigrad.core.backend.discovery import load_backend

from .docs import dtypes_of, reason_of, what_of
from .markdown import NOTICE, code, table


def write_backend_page(name: str, folder: Path) -> Path:
    path = folder / f"{name}.md"
    path.write_text(render_backend(name, path.read_text("utf-8")), encoding="utf-8")
    return path


def render_backend(name: str, page: str) -> str:
    """Return a backend's page: the head of what stands there, and the tables of what is so."""
    head = page.partition(NOTICE)[0].rstrip()
    return "\n\n".join([head, NOTICE, *parts(name)]) + "\n"


def parts(name: str) -> list[str]:
    backend = load_backend(name)
    rows = backend.differences
    lacking = [(code([op.name]), reason(why)) for op, why in backend.kernels.unsupported.items()]
    kept = [(what_of(r), r.kind, dtypes_of(r), r.figure, reason_of(r)) for r in rows.kept]
    mended = [(f"`{row.kernel}`", row.dtypes, row.figure) for row in rows.mended]
    measured = f"Measured with {rows.measured}; [differences](differences.md) has the kinds."
    errors = "Our rows replace these kernels. Errors are in eps unless stated otherwise."
    said = f"{len(lacking)} ops. A rule that uses one raises an error that names it."
    return [
        f"## What is unsupported\n\n{said if lacking else 'No op is missing.'}",
        *([table(("op", "reason"), lacking)] if lacking else []),
        f"## Differences\n\n{measured}",
        table(("what", "kind", "dtypes", "figure", "reason"), kept),
        f"## What is fixed\n\n{errors}",
        table(("kernel", "where", "its error"), mended),
    ]


def reason(why: str | Mapping[str, str]) -> str:
    if isinstance(why, str):
        return why
    return "; ".join(f"{dtype}: {text}" for dtype, text in why.items())
