"""Cut a release: `python scripts/cut_release.py 1.1.0` writes the version where it stands.

That is pyproject.toml, those of the backends that are distributions of their own, CITATION.cff, and
the changelog, whose [Unreleased] lines become the version's. CONTRIBUTING.md says what comes before
and after. `python scripts/cut_release.py --notes ADDRESS` prints the notes of the version that
stands there, for the page of the release; ADDRESS is that of the repository.
"""

from __future__ import annotations

import datetime
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ADDED = ("backends/multigrad_mlx", "tests/conformance")
VERSION = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
UNRELEASED = "## [Unreleased]\n"


def cut(root: Path, version: str, day: datetime.date) -> None:
    """Write a version into the files of a folder.

    Raises:
        SystemExit: it is no version, or it was released before, or nothing was written since.
    """
    if not VERSION.fullmatch(version):
        sys.exit(f"{version!r} is no version; expected one such as 1.1.0 or 1.1.0rc1")
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if f"## [{version}]" in changelog:
        sys.exit(f"the changelog has a section [{version}] already")
    before, found, after = changelog.partition(UNRELEASED)
    if not found or not after.partition("\n## [")[0].strip():
        sys.exit("the changelog has nothing under [Unreleased]")
    head = f"{UNRELEASED}\n## [{version}] - {day}\n"
    (root / "CHANGELOG.md").write_text(f"{before}{head}{after}", encoding="utf-8")
    for folder in ("", *ADDED):
        file = root / folder / "pyproject.toml"
        replace(file, r'(?m)^version = ".*"$', f'version = "{version}"')
        if folder:
            replace(file, r'"multigrad-rules==[^"]*"', f'"multigrad-rules=={version}"')
    replace(root / "CITATION.cff", r"(?m)^version: .*$", f"version: {version}")
    replace(root / "CITATION.cff", r"(?m)^date-released: .*$", f"date-released: {day}")


def notes(root: Path, address: str) -> str:
    """Return what the changelog says of the version in pyproject.toml, with links that work
    outside the repository.
    """
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    version = text.partition('\nversion = "')[2].partition('"')[0]
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    _, found, after = changelog.partition(f"\n## [{version}]")
    if not found:
        sys.exit(f"the changelog has no section [{version}]")
    section = after.partition("\n## [")[0].partition("\n")[2].strip()
    return re.sub(r"\]\((?!https?:|#)", f"]({address}/blob/v{version}/", section) + "\n"


def replace(path: Path, pattern: str, line: str) -> None:
    """Replace the one line that a pattern finds."""
    text, count = re.subn(pattern, line, path.read_text(encoding="utf-8"))
    if count != 1:
        sys.exit(f"{path.name} has {count} lines as {pattern}; expected one")
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--notes", address]:
            print(notes(ROOT, address), end="")
        case [version]:
            cut(ROOT, version, datetime.datetime.now(datetime.UTC).date())
        case _:
            sys.exit("usage: python scripts/cut_release.py VERSION, or --notes ADDRESS")
