"""Files written whole or not at all, and the directory of what is kept between processes.

A file of the user's (`write_whole`) replaces what was there, keeps its mode, and is on the disk
when the function returns. One in the cache (`write_file`) may be lost, but is never seen half
written.

The cache is `$MULTIGRAD_CACHE`, else `multigrad` in `$XDG_CACHE_HOME` or `~/.cache`;
`MULTIGRAD_CACHE=off` keeps nothing. What is read from it may be run, so it must belong to the user,
and nobody else may write. Nothing in it is ever needed: it can be deleted at any time.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

AnyPath = str | os.PathLike[str]


@contextmanager
def replacing(path: AnyPath) -> Iterator[str]:
    """Yield a path of the same name to write to; what is there at the end replaces the file, unless
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
    scratch = tempfile.mkdtemp(prefix=".", suffix=".tmp", dir=folder)
    try:
        temporary = os.path.join(scratch, name)
        yield temporary
        if is_there:
            # In the same folder, so that replacing is atomic.
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def write_whole(path: AnyPath, content: str | bytes) -> None:
    """Write a file, all of it or nothing; raise OSError if it cannot be written."""
    raw = content.encode("utf-8") if isinstance(content, str) else content
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(raw)
        file.flush()
        if os.path.isfile(temporary):
            os.fsync(file.fileno())


VARIABLE = "MULTIGRAD_CACHE"
LIBRARIES = "native"  # the folder of compiled libraries
OFF = ("off", "0", "no", "false")


def cache_root() -> Path | None:
    """Return the cache directory, which need not exist, or None if nothing is kept."""
    setting = os.environ.get(VARIABLE, "")
    if setting.lower() in OFF:
        return None
    if setting:
        return Path(setting).expanduser().absolute()
    local = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME", "")
    # A relative one is to be ignored: XDG Base Directory Specification 0.8.
    base = Path(local) if os.path.isabs(local) else Path("~/.cache").expanduser()
    return base / "multigrad" if base.is_absolute() else None  # a user without a home


def open_folder(name: str) -> Path | None:
    """Return a folder of the cache, made if it does not exist, or None if nothing is kept.

    Raises:
        OSError: it cannot be made, belongs to another user, or others may write into it.
    """
    root = cache_root()
    if root is None:
        return None
    root.parent.mkdir(parents=True, exist_ok=True)
    # Both are checked: whoever may write into the root can replace the folder.
    for folder in (root, root / name):
        folder.mkdir(mode=0o700, exist_ok=True)
        check_private(folder)
    return root / name


def check_private(path: Path) -> None:
    """Raise PermissionError if another user owns a file or folder, or may write into it."""
    if os.name == "nt":  # the profile's folders are private, and modes say nothing
        return
    status = path.stat()
    if status.st_uid != os.getuid():
        raise PermissionError(
            f"{path} does not belong to you: set {VARIABLE} to a folder that does"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(
            f"others may write into {path}: type chmod go-w {path}, or set {VARIABLE} to a folder "
            "of your own"
        )


def write_file(path: Path, content: bytes) -> None:
    """Write a file that readers see complete or not at all, even with several writers."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def describe_kept() -> str:
    """Return the place and size of the cache, in lines; raise OSError if others may write there."""
    root = cache_root()
    if root is None:
        return f"{VARIABLE} is off, so nothing is kept"
    files = list_libraries(root)
    size = sum(path.stat().st_size for path in files)
    return f"{root}\n  compiled libraries: {len(files):,} ({size:,} bytes)"


def clear_kept() -> str:
    """Delete the compiled libraries in the cache and report what they were; other files stay."""
    report, root = describe_kept(), cache_root()
    for file in [] if root is None else list_libraries(root):
        file.unlink(missing_ok=True)
    return report if root is None else f"cleared {report}"


def list_libraries(root: Path) -> list[Path]:
    folder = root / LIBRARIES
    if not folder.is_dir():
        return []
    check_private(folder)
    return [path for path in sorted(folder.iterdir()) if path.is_file()]
