"""What is kept across processes, for `multigrad cache`: how much of each kind, and how it goes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ....graph.machine.cache import VARIABLE, cache_root, check_private
from . import verdicts

# By folder: what a line of its file, or else one of its files, is.
KINDS = {verdicts.FOLDER: "proven captures", "native": "compiled libraries"}


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of one kind.

    Attributes:
        files: all of its files; nothing else is there that is ours.
    """

    kind: str
    files: tuple[Path, ...]
    count: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.kind}: {self.count:,} ({self.bytes:,} bytes)"


def describe_kept() -> str:
    """Return where things are kept, and how much, in lines.

    Raises:
        OSError: it cannot be read, or others may write into it.
    """
    root = cache_root()
    if root is None:
        return f"{VARIABLE} is off, so nothing is kept"
    return "\n".join([str(root), *[f"  {row}" for row in list_kept(root)]])


def clear_kept() -> str:
    """Delete what is kept, and say what that was; files that are not ours stay."""
    said, root = describe_kept(), cache_root()
    for row in [] if root is None else list_kept(root):
        for file in row.files:
            file.unlink(missing_ok=True)
    return said if root is None else f"cleared {said}"


def list_kept(root: Path) -> list[Kept]:
    """Return what is kept, by kind."""
    return [_look(root / folder, kind) for folder, kind in KINDS.items()]


def _look(folder: Path, kind: str) -> Kept:
    if not folder.is_dir():
        return Kept(kind, (), 0, 0)
    check_private(folder)
    files = tuple(path for path in sorted(folder.iterdir()) if path.is_file())
    count = len(files)
    if folder.name == verdicts.FOLDER:
        count = len(verdicts.read_keys(folder / verdicts.FILE)[0]) if files else 0
    return Kept(kind, files, count, sum(path.stat().st_size for path in files))
