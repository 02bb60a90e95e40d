"""`multigrad vectors`: exact results of rules and ops as a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from multigrad.look.vectors.document import vectors_of, write


def write_vectors(
    names: Sequence[str], dtypes: Sequence[str], out: str, echo: Callable[[str], None]
) -> None:
    """Write the vectors of what is named, or of all, to a file or, for "-", to the terminal."""
    text = write(vectors_of(*names, dtypes=list(dtypes) or None))
    if out == "-":
        echo(text.rstrip("\n"))
    else:
        Path(out).write_text(text, encoding="utf-8")
        echo(f"{out}: {len(text):,} bytes")
