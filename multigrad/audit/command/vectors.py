"""`multigrad vectors`: exact results of rules, ops and Functions as a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from multigrad.audit.vectors.document import vectors_of, write
from multigrad.graph.support.files import write_whole
from multigrad.look.command.named import find


def write_vectors(
    names: Sequence[str], dtypes: Sequence[str], out: str, echo: Callable[[str], None]
) -> None:
    """Write the vectors of what is named, or of all, to a file or, for "-", to the terminal.

    Raises:
        NoVectors: the file that ships has none of one, or there is no such dtype.
        OSError: the file cannot be written.
    """
    # A Function is an object of a module, or a saved file.
    objects = [find(name) if ":" in name or name.endswith(".json") else name for name in names]
    text = write(vectors_of(*objects, dtypes=dtypes))
    if out == "-":
        echo(text.rstrip("\n"))
    else:
        write_whole(Path(out), text)
        echo(f"{out}: {len(text):,} bytes")
