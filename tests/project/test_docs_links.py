"""The links of README, the docs and the docstrings lead somewhere; the built site is checked by
`check_site.py`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from .. import check_site

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted(path for top in ("multigrad", "backends") for path in (ROOT / top).rglob("*.py"))
FENCED = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1`* *$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)|^\[[^\]^]+\]: +(\S+)", re.MULTILINE)
INCLUDED = re.compile(r'^--8<-- "([^"]+)"$', re.MULTILINE)
# What mkdocs makes of a page that is written when the site is built.
BUILT = {"docs/rules_and_estimators.html"}


def prose(text: str) -> str:
    """Return a page without its code."""
    return re.sub(r"`[^`\n]+`", "`code`", FENCED.sub("", text))


def links(text: str) -> list[str]:
    return [inner or named for inner, named in LINK.findall(prose(text))]


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings that are the same on GitHub and in the site."""
    text = FENCED.sub("", path.read_text(encoding="utf-8"))
    text = INCLUDED.sub(lambda found: (ROOT / found[1]).read_text(encoding="utf-8"), text)
    found = set(re.findall(r"\{ ?#([\w.-]+)[^}]*\}", text)) | set(re.findall(r'id="([^"]+)"', text))
    for heading in re.findall(r"^#+ +(.*?) *#*$", text, re.MULTILINE):
        words = re.sub(r"[^\w\s-]", "", heading.replace("`", "").lower()).strip()
        if not re.search(r"[-\s]{2}", words):
            found.add(re.sub(r"\s", "-", words))
    found |= {f"{named}" for named in re.findall(r"^::: ([\w.]+)", text, re.MULTILINE)}
    return found


def not_found(path: Path) -> Iterator[str]:
    """Yield the relative links of a page that lead nowhere."""
    for link in links(path.read_text(encoding="utf-8")):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = path if not parts.path else (path.parent / parts.path).resolve()
        if target.relative_to(ROOT).as_posix() in BUILT:
            continue
        if not target.exists():
            yield f"{link}: no such file"
        elif parts.fragment and target.suffix == ".md" and not is_anchor(parts.fragment, target):
            yield f"{link}: no such heading"


def is_anchor(fragment: str, path: Path) -> bool:
    """Whether a page has an anchor; those of documented names are checked in the built site."""
    text = path.read_text(encoding="utf-8")
    return fragment in anchors(path) or ("\n::: " in text and "." in fragment)


@pytest.mark.parametrize("path", PAGES, ids=[path.relative_to(ROOT).as_posix() for path in PAGES])
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(path: Path) -> None:
    assert list(not_found(path)) == []


def test_every_link_to_another_host_is_well_formed() -> None:
    found = {link for path in PAGES for link in links(path.read_text(encoding="utf-8"))}
    elsewhere = {link for link in found if urlsplit(link).scheme or urlsplit(link).netloc}
    shape = re.compile(r"https://[a-z0-9-]+(\.[a-z0-9-]+)+(/[^\s\"<>]*)?|mailto:\S+@\S+")
    assert sorted(link for link in elsewhere if not shape.fullmatch(link)) == []


def test_a_page_or_file_that_a_docstring_or_an_error_names_is_there() -> None:
    missing = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named = re.findall(r"\b((?:docs|examples)/[\w/]+\.(?:md|py))\b", node.value)
                missing += [f"{path.name}: {name}" for name in named if not (ROOT / name).is_file()]
    assert missing == []


@pytest.mark.parametrize("name", ["start_here.md", "architecture.md", "state.md"])
def test_a_source_file_that_a_page_for_contributors_names_is_there(name: str) -> None:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+\.py)`", text))
    tops = ("multigrad", "backends", "tests", "tools", "examples")
    paths = [path.as_posix() for top in tops for path in (ROOT / top).rglob("*.py")]
    assert named
    assert sorted(file for file in named if not any(p.endswith(f"/{file}") for p in paths)) == []


def test_the_navigation_has_at_most_six_tabs() -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    tabs = re.findall(r"^  - (.+?):", config.partition("\nnav:")[2], re.MULTILINE)
    assert tabs[0] == "Home" and len(tabs) <= 6


def test_every_page_is_in_the_navigation() -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    moved = re.search(r"\nnot_in_nav: \|\n((?:  /.+\n)+)", config)
    assert moved is not None
    named = re.findall(r"([\w/]+\.md)$", config.partition("\nnav:")[2], re.MULTILINE)
    named += re.findall(r"/(\w+\.md)$", moved[1], re.MULTILINE)
    written = [path.relative_to(ROOT / "docs").as_posix() for path in PAGES if "docs" in path.parts]
    assert sorted(named) == sorted(name for name in written if (ROOT / "docs" / name).is_file())


# --- the check of the built site ------------------------------------------------------------------

SITE = {
    "index.html": '<link rel="stylesheet" href="own.css"><p id="here"><a href="sub/a.html#x">a</a>'
    '<a href="https://example.org">elsewhere</a>',
    "sub/a.html": '<h1 id="x">A</h1><a href="../index.html#here">back</a>',
    "own.css": "p { color: red }",
}


ARTICLE = '<article class="md-content__inner">'


def write_site(folder: Path, **changed: str) -> Path:
    for name, text in {**SITE, **changed}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def test_a_site_that_is_whole_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_site.main(write_site(tmp_path)) == 0
    assert "2 pages, 3 links, 0 broken, 0 requests" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("index.html", '<a href="b.html">b</a>', "b.html: no such file"),
        ("index.html", '<a href="sub/a.html#y">b</a>', "a.html#y: no such anchor"),
        ("index.html", '<img src="none.png">', "none.png: no such file"),
        ("index.html", '<img src="//cdn.org/x.png">', "cdn.org"),
        ("index.html", '<script src="https://unpkg.com/shim"></script>', "unpkg.com"),
        ("index.html", '<link rel="preconnect" href="https://fonts.org">', "fonts.org"),
        ("index.html", "<style>@import 'https://x.org/a.css';</style>", "x.org"),
        ("index.html", '<p style="background: url(http://x.org/a.png)">', "x.org"),
        ("index.html", '<pre class="mermaid"></pre>', "mermaid"),
        ("index.html", ARTICLE + "word " * 5_001, "index.html: 5001 words"),
        ("own.css", "@font-face { src: url(//x.org/f.woff2) }", "x.org"),
    ],
)
def test_what_is_wrong_with_a_site_is_said(
    name: str, text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = write_site(tmp_path, **{"sub/a.html": '<h1 id="x">A</h1>', name: text})
    assert check_site.main(site) == 1
    assert said in capsys.readouterr().out


def test_a_long_table_is_no_long_page(tmp_path: Path) -> None:
    table = f"{ARTICLE}<table><tr><td>{'name ' * 6_000}</table>"
    assert check_site.main(write_site(tmp_path, **{"sub/a.html": f'<i id="x">{table}'})) == 0
