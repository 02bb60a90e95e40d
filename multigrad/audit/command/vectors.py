"""`multigrad vectors`: exact results of rules, ops and Functions as a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from multigrad.graph.machine.files import write_whole
from multigrad.look.command.named import find
from multigrad.look.command.options import Progress, place_of_part
from multigrad.testing.test_vectors.document import (
    document_of,
    every_subject,
    read_dtypes,
    subject_of,
    write,
)


def write_vectors(
    names: Sequence[str], dtypes: Sequence[str], out: str, echo: Callable[[str], None]
) -> bool:
    """Write the vectors of what is named, or of all, to a file or, for "-", to the terminal.

    Return whether all of them were: Ctrl-C leaves those that are done.

    Raises:
        NoVectors: there is no formula of one, or no such dtype.
        OSError: the file cannot be written.
    """
    formats = read_dtypes(list(dtypes) or None)
    wanted, done = list(names) or every_subject(), []
    with Progress() as progress:
        for name in progress.each(wanted):
            # A Function is an object of a module, or a saved file.
            is_object = ":" in name or name.endswith(".json")
            done.append(subject_of(find(name) if is_object else name, formats))
    text = write(document_of(done))
    if out == "-":
        echo(text.rstrip("\n"))
    else:
        path = place_of_part(Path(out)) if progress.stopped else Path(out)
        write_whole(path, text)
        of_all = f", {len(done)} of {len(wanted)} subjects" if progress.stopped else ""
        echo(f"{path}: {len(text):,} bytes{of_all}")
    return not progress.stopped
