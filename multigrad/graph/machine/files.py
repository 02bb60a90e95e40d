"""Files that are written whole or not at all: until a new one is complete, the old one stays."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

Path = str | os.PathLike[str]


@contextmanager
def replacing(path: Path) -> Iterator[str]:
    """Give a path to write to, of the same name; what is there at the end replaces the file, unless
    something raises. A device, which is never replaced, is given itself.

    Raises:
        OSError: there is no such folder.
    """
    target = os.path.realpath(os.fspath(path))  # a link stays a link
    is_there = os.path.exists(target)
    if is_there and not os.path.isfile(target):
        yield target
        return
    folder, name = os.path.split(target)
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
    beside = tempfile.mkdtemp(prefix=".", suffix=".tmp", dir=folder)
    try:
        temporary = os.path.join(beside, name)
        yield temporary
        if is_there:
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, all of it or nothing.

    Raises:
        OSError: it cannot be written.
    """
    raw = content.encode("utf-8") if isinstance(content, str) else content
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(raw)
        file.flush()
        if os.path.isfile(temporary):
            os.fsync(file.fileno())
