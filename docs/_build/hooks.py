"""What `mkdocs build` adds to the pages: the gallery, its curves in the tables of rules, files that
stand at the root, words to find a page by, and on the front page the version and the repository, both from pyproject.toml.

CHANGELOG, CONTRIBUTING and SECURITY are read on GitHub too. Their links go out from the root; in
the site each goes to the page of the same file, and one to no page becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
GALLERY = "rules_and_estimators.html"
INCLUDED = re.compile(r'^--8<-- "([^"]+\.md)"$', re.MULTILINE)
DRAWN = {"rules.md": "", "estimators.md": "estimators."}  # pages, what their names begin with
ROW = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)
CURVES: dict[str, str] = {}  # of the cards of the gallery, while a site is built
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
PAGES = {"README.md": "index.md", "LICENSE": ""}
FRONT = "index.md"
VERSION, REPOSITORY = "{version}", "{repository}"
# What people type into the search, and the page that they look for: it has to come first.
# `tests/check_site.py` asks the site's own search.
WORDS = {
    "attribution.md": ("LRP", "relevance"),
    "eject.md": ("export", "ONNX"),
    "estimators.md": ("gradient reversal",),
    "how_to/audit.md": ("audit",),
    "how_to/build_time.md": ("build time",),
    "how_to/compiled_code.md": ("compile", "torch.compile", "jit"),
    "how_to/memory.md": ("memory",),
    "how_to/parameters.md": ("clip gradient",),
    "how_to/saving.md": ("save model", "load model", "checkpoint"),
    "install.md": ("install", "pip"),
    "recipes/check_a_gradient.md": ("check gradient", "gradcheck"),
    "recipes/quantize.md": ("quantize", "quantization", "LSQ", "QAT"),
    "recipes/torch_class.md": ("vmap", "autograd.Function"),
    "schedules.md": ("schedule", "anneal"),
    "tutorials/explain_a_model.md": ("heatmap", "heat map", "saliency"),
    "tutorials/from_freegrad_or_snntorch.md": ("spiking", "snnTorch", "SNN"),
    "tutorials/straight_through.md": ("straight through", "STE"),
    "tutorials/surrogate_gradient.md": ("surrogate",),
}


def on_files(files: Any, config: Any) -> Any:
    """Add the page that `tools/write_gallery.py` writes."""
    sys.path.insert(0, str(ROOT / "tools"))
    from pages.gallery.cards import make_cards
    from pages.gallery.page import render_gallery
    from pages.gallery.svg import draw_small

    cards = make_cards()
    CURVES.update({card.key: card.picture and draw_small(card.picture) or "" for card in cards})
    files.append(File.generated(config, GALLERY, content=render_gallery(cards)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Put root files where a page includes them, their links changed to pages of the site."""
    del config
    page.meta["tags"] = list(WORDS.get(page.file.src_uri, ()))
    if page.file.src_uri == FRONT:
        return complete_front(markdown)
    if page.file.src_uri in DRAWN:
        return ROW.sub(lambda row: draw_row(row, DRAWN[page.file.src_uri]), markdown)
    here = posixpath.dirname(page.file.src_uri)

    def include(found: re.Match[str]) -> str:
        text = (ROOT / found[1]).read_text(encoding="utf-8")
        if re.match("# ", markdown):
            text = re.sub(r"\A# .*\n", "", text)  # the page has a title
        return LINK.sub(lambda link: to_page(link, here, files), text)

    return INCLUDED.sub(include, markdown)


def draw_row(row: re.Match[str], prefix: str) -> str:
    """Return the start of a row with the curve of its rule, and a link to its card."""
    name = row[1].partition("(")[0] if prefix else row[1]  # a Function stands with its arguments
    if (key := prefix + name) not in CURVES:
        return row[0]
    return f"| [`{row[1]}`{CURVES[key]}]({GALLERY}#{key}) |"


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
    """Return the front page with the version, and with a link to the repository if it has one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = project.get("urls", {}).get("Repository")
    button = f"[Repository]({address}){{ .md-button }}" if address else ""
    return markdown.replace(VERSION, project["version"]).replace(REPOSITORY, button)
