"""The verdicts of earlier processes: one line for each capture that was found to be what was
written.

A line is a digest of all that the verdict rests on, so that a damaged line stands for nothing that
there is. Lines are only ever appended, whichever processes do so at once; where there are too many,
the newer half is written anew.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....backend.finding.discovery import in_use
from ....capture.code.modes import modes
from ....capture.code.table import registered_dialects
from ....errors import CacheWarning
from ....graph.machine.cache import VARIABLE, cache_root, check_private, open_folder, write_file
from ..setting import ALL, how_much
from .content import digest_of, own_folders, own_roots, plain_rows, stamp_folder

FORMAT = "multigrad verdicts 1"
FOLDER, FILE = "verdicts", "proven"
MOST = 10_000  # lines
DIGITS = 64  # of a key
LINE = DIGITS + 2  # bytes
_known: dict[Path, set[str]] = {}  # by the file: the keys in it
_environments: dict[tuple[str, ...], str] = {}
_warned: set[str] = set()


def is_keeping() -> bool:
    """Return whether verdicts are kept, and those that are kept are used."""
    return cache_root() is not None and how_much() != ALL


def key_of(contents: Sequence[Any]) -> str | None:
    """Return the key of a verdict that rests on these values, and on all that is installed; None
    where some content cannot be told.
    """
    content = digest_of(plain_rows(modes()), *contents)
    if content is None:
        return None
    return hashlib.sha256(f"{_environment()} {content}".encode()).hexdigest()


def is_kept(key: str) -> bool:
    """Return whether an earlier process, or this one, has found out that it holds."""
    path = _path()
    return path is not None and key in _read(path)


def keep(key: str) -> None:
    """Keep what was found out for later processes."""
    try:
        folder = open_folder(FOLDER)
        if folder is None:
            return
        path = folder / FILE
        known = _read(path)
        if key not in known:  # a function that calls itself is proven in its own proof
            known.add(key)
            _append(path, key)
    except (OSError, RuntimeError) as error:
        warn_once(f"What was proven is not kept for later processes: {error}")


def read_keys(path: Path) -> tuple[list[str], int]:
    """Return the keys in a file, the oldest first, and how many lines are none.

    Raises:
        OSError: it cannot be read, or others may write into it.
    """
    for each in (path.parent.parent, path.parent, path):
        check_private(each)
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 2 * MOST * LINE))
        rows = file.read().decode("ascii", "replace").split()
    keys = [row for row in rows if len(row) == DIGITS]
    return keys, len(rows) - len(keys)


def warn_once(message: str) -> None:
    """Warn of a reason once in a process."""
    if message not in _warned:
        _warned.add(message)
        text = f"{message}. All else works; {VARIABLE}=off keeps nothing and says nothing"
        warnings.warn(text, CacheWarning, stacklevel=2)


def _path() -> Path | None:
    root = cache_root()
    return None if root is None else root / FOLDER / FILE


def _read(path: Path) -> set[str]:
    """Return the keys in a file; it is read once in a process."""
    known = _known.get(path)
    if known is None:
        keys: list[str] = []
        try:
            keys, damaged = read_keys(path)
            if damaged:
                warn_once(f"{path} has {damaged} damaged lines, whose proofs are made again")
                _write(path, keys)
        except FileNotFoundError:
            pass
        except (OSError, RuntimeError) as error:
            warn_once(f"What earlier processes have proven is proven again: {error}")
        known = _known.setdefault(path, set(keys))
    return known


def _append(path: Path, key: str) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    handle = os.open(path, flags, 0o600)
    try:
        # First the end of what another process may have left unfinished.
        os.write(handle, f"\n{key}\n".encode())
        is_long = os.fstat(handle).st_size > MOST * LINE
    finally:
        os.close(handle)
    if is_long:
        _write(path, read_keys(path)[0][-MOST // 2 :])


def _write(path: Path, keys: Sequence[str]) -> None:
    write_file(path, "".join(f"\n{key}\n" for key in keys).encode())


def _environment() -> str:
    """Return a digest of the versions and files that run here: ours, the frameworks', Python's."""
    roots = sorted({*registered_dialects(), *(backend.name for backend in in_use())})
    names = [name for root in roots for name in (root, f"{root}lib") if name in sys.modules]
    versions = [f"{name} {getattr(sys.modules[name], '__version__', '')}" for name in names]
    key = tuple(versions)
    known = _environments.get(key)
    if known is None:
        folders = own_folders(tuple(own_roots()))
        stamps = [each for folder in folders for each in stamp_folder(folder)]
        machine = (sys.version, sys.platform, platform.machine(), sys.byteorder)
        text = "\n".join((FORMAT, *machine, *versions, *stamps))
        known = _environments[key] = hashlib.sha256(text.encode()).hexdigest()
    return known
