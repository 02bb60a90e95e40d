"""What `mkdocs build` adds to the pages: the gallery, files that stand at the root, and on the
front page the version and the repository that the site is built from.

CHANGELOG, CONTRIBUTING and SECURITY are read on GitHub too. Their links go out from the root; in
the site each goes to the page of the same file, and one to no page becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
GALLERY = "rules_and_estimators.html"
INCLUDED = re.compile(r'^--8<-- "([^"]+\.md)"$', re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
PAGES = {"README.md": "index.md", "LICENSE": ""}
FRONT = "index.md"
VERSION, REPOSITORY = "{version}", "[Repository](contributing.md)"
REMOTE = re.compile(r"(?:(?:https|ssh)://(?:[^@/]*@)?|git@)([\w.-]+)(?::\d+/|[:/])(.+?)(?:\.git)?/?")


def on_files(files: Any, config: Any) -> Any:
    """Add the page that `tools/write_gallery.py` writes."""
    sys.path.insert(0, str(ROOT / "tools"))
    from pages.gallery.page import render_gallery

    files.append(File.generated(config, GALLERY, content=render_gallery()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Put root files where a page includes them, their links changed to pages of the site."""
    del config
    if page.file.src_uri == FRONT:
        return complete_front(markdown)
    here = posixpath.dirname(page.file.src_uri)

    def include(found: re.Match[str]) -> str:
        text = (ROOT / found[1]).read_text(encoding="utf-8")
        if re.match("# ", markdown):
            text = re.sub(r"\A# .*\n", "", text)  # the page has a title
        return LINK.sub(lambda link: to_page(link, here, files), text)

    return INCLUDED.sub(include, markdown)


def to_page(link: re.Match[str], here: str, files: Any) -> str:
    """Return a root file's link as it must be on a page of the folder `here`."""
    words, target, anchor = link[1], posixpath.normpath(link[2]), link[3] or ""
    name = PAGES.get(target, target.removeprefix("docs/"))
    if not target.startswith("docs/") and target not in PAGES:
        name = target.lower()
    if files.get_file_from_path(name) is None:
        return words
    return f"[{words}]({posixpath.relpath(name, here or '.')}{anchor})"


def complete_front(markdown: str) -> str:
    """Return the front page with the version, and with a link to the repository if it is known."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    command = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
    try:
        remote = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:  # there is no git
        remote = ""
    address = to_address(remote.strip())
    link = f"[Repository]({address})" if address else REPOSITORY
    return markdown.replace(VERSION, project["version"]).replace(REPOSITORY, link)


def to_address(remote: str) -> str | None:
    """Return the page of a remote repository, without what git logs in with; None: a local one."""
    found = REMOTE.fullmatch(remote)
    return f"https://{found[1]}/{found[2]}" if found else None
