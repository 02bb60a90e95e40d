"""Digests of golden texts: one short line for each, beside which a change of any stands out.

They are of the releases in `constraints.txt`. What a newer release has otherwise, or no longer, is
in a file of its own: `torch_graphs_since_2.14.txt`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from multigrad.core.support.installed import is_older

FOLDER = Path(__file__).parent / "digests"
GONE = "-"  # instead of the digest of a name that a newer release does not have


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def path_of(kind: str, library: str) -> Path:
    return FOLDER / f"{library}_{kind}.txt"


def paths_of(kind: str, library: str) -> list[Path]:
    """Return the file, and those of what the installed release and older ones have otherwise."""
    base = path_of(kind, library)
    since = sorted(FOLDER.glob(f"{base.stem}_since_*.txt"))
    version = metadata.version(library) if since else ""
    return [base, *(path for path in since if not is_older(version, path.stem.rpartition("_")[2]))]


def write(kind: str, library: str, texts: Iterable[tuple[str, str]]) -> None:
    """Write the digests, for a newer release those that it has otherwise."""
    FOLDER.mkdir(exist_ok=True)
    *former, path = paths_of(kind, library)
    known = _read(former)
    found = {key: digest(text) for key, text in texts}
    if former:
        names = [key for key in known if known[key] != found.get(key)]
        found = {key: found.get(key, GONE) for key in names}
    lines = [f"{each} {key}\n" for key, each in found.items()]
    path.write_text("".join(lines), encoding="utf-8")


def read(kind: str, library: str) -> Mapping[str, str]:
    """Return the digests by key, as the installed release has them."""
    return _read(paths_of(kind, library))


def _read(paths: Iterable[Path]) -> dict[str, str]:
    lines = (line for path in paths for line in path.read_text(encoding="utf-8").splitlines())
    found = {key: each for each, _, key in (line.partition(" ") for line in lines)}
    return {key: each for key, each in found.items() if each != GONE}


def differing(known: Mapping[str, str], texts: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the texts that are not as they were, those that are gone with "" for them."""
    found = dict(texts)
    changed = {key: text for key, text in found.items() if known.get(key) != digest(text)}
    return changed | dict.fromkeys(known.keys() - found.keys(), "")
