"""Digests of golden texts: one short line for each, beside which a change of any stands out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

FOLDER = Path(__file__).parent / "digests"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def path_of(kind: str, library: str) -> Path:
    return FOLDER / f"{library}_{kind}.txt"


def write(kind: str, library: str, texts: Iterable[tuple[str, str]]) -> None:
    lines = [f"{digest(text)} {key}\n" for key, text in texts]
    FOLDER.mkdir(exist_ok=True)
    path_of(kind, library).write_text("".join(lines), encoding="utf-8")


def read(kind: str, library: str) -> Mapping[str, str]:
    """Return the digests by key."""
    lines = path_of(kind, library).read_text(encoding="utf-8").splitlines()
    return {key: found for found, _, key in (line.partition(" ") for line in lines)}


def differing(known: Mapping[str, str], texts: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the texts that are not as they were, those that are gone with "" for them."""
    found = dict(texts)
    changed = {key: text for key, text in found.items() if known.get(key) != digest(text)}
    return changed | dict.fromkeys(known.keys() - found.keys(), "")
