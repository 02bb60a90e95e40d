"""What `mkdocs build` adds to the pages: the gallery, and files that stand at the root.

CHANGELOG, CONTRIBUTING and SECURITY are read on GitHub too. Their links go out from the root; in
the site each goes to the page of the same file, and one to no page becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
GALLERY = "rules_and_estimators.html"
INCLUDED = re.compile(r'^--8<-- "([^"]+\.md)"$', re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
PAGES = {"README.md": "index.md", "LICENSE": ""}


def on_files(files: Any, config: Any) -> Any:
    """Add the page that `multigrad plot --gallery` writes."""
    from multigrad.look.plotting.gallery import render_gallery

    files.append(File.generated(config, GALLERY, content=render_gallery()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Put root files where a page includes them, their links changed to pages of the site."""
    del config
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
