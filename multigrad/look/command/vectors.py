"""`multigrad vectors`: exact results of rules, ops and Functions as a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from multigrad.look.vectors.document import vectors_of, write

from .named import find


def write_vectors(
    names: Sequence[str], dtypes: Sequence[str], out: str, echo: Callable[[str], None]
) -> None:
    """Write the vectors of what is named, or of all, to a file or, for "-", to the terminal."""
    # A Function is an object of a module, or a saved file.
    found = [find(name) if ":" in name or name.endswith(".json") else name for name in names]
    text = write(vectors_of(*found, dtypes=list(dtypes) or None))
    if out == "-":
        echo(text.rstrip("\n"))
    else:
        Path(out).write_text(text, encoding="utf-8")
        echo(f"{out}: {len(text):,} bytes")
