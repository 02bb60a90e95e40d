"""`python -m tests.golden (write FOLDER | update | compare) [library ...]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from multigrad.core.backend.discovery import load_backend
from multigrad.errors import BackendNotFound

from . import digests
from .graphs import captured_texts, emitted_texts

DIALECTS = ("numpy", "torch", "jax", "tensorflow", "keras", "mlx")
KINDS = {"graphs": captured_texts, "sources": emitted_texts}


def chosen(names: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each kind with a library that is installed, of those that are named or of all."""
    for name in names or DIALECTS:
        if name != "keras":
            try:
                load_backend(name)
            except BackendNotFound:
                continue
            yield "sources", name
        yield "graphs", name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=["write", "update", "compare"])
    parser.add_argument("names", nargs="*", help="libraries; after `write` first the folder")
    given = parser.parse_args()
    folder = Path(given.names.pop(0)) if given.verb == "write" else None
    changed = 0
    for kind, library in chosen(given.names):
        texts = KINDS[kind](library)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            whole = "".join(f"=== {key}\n{text}\n" for key, text in texts)
            (folder / f"{library}_{kind}.txt").write_text(whole, encoding="utf-8")
        elif given.verb == "update":
            digests.write(kind, library, texts)
        else:
            found = digests.differing(digests.read(kind, library), texts)
            changed += len(found)
            for key, text in found.items():
                print(f"{library} {kind}: {key}\n{text}\n")
    sys.exit(1 if changed else 0)


if __name__ == "__main__":
    main()
