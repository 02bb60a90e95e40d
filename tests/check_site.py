"""Check a built docs site: `python tests/check_site.py SITE`.

Each link must lead to a file and an anchor of the site, and no page may load anything from another
host; a link that a reader may follow to one is fine. No page has more than MOST_WORDS words, unless
it is a table to look names up in. The site's own search, run by Node, finds the guides first.
Prints what was counted; exits with 1 where something is wrong.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser loads by itself: these attributes of tags, and a `link` of these kinds.
LOADS = {
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src", "data-src"),
    "image": ("href", "xlink:href"),
    "img": ("src", "srcset"),
    "input": ("src",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "track": ("src",),
    "use": ("href", "xlink:href"),
    "video": ("src", "poster"),
}
LOADED_LINKS = {
    *("stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload"),
    *("manifest", "apple-touch-icon"),
}
# The theme's script loads these from other hosts where a page has such a part.
PARTS_THAT_LOAD = {"mermaid": "class", "source": "data-md-component"}
# A page that people read, not look up in, is at most this long; one is a table if this share of its
# words stands in tables.
MOST_WORDS, SHARE_OF_A_TABLE = 5_000, 0.9
INLINE = {"a", "abbr", "b", "code", "del", "em", "i", "kbd", "span", "strong", "sub", "sup", "wbr"}
ARTICLE = "md-content__inner"
IN_CSS = re.compile(r"""(?:url\(|@import\s+)\s*["']?((?:https?:)?//[^"')\s]+)""")

# The theme's worker, as a browser starts it; it answers each word with the pages that it found.
SEARCH = """
const [worker, index, words] = process.argv.slice(1);
const asked = JSON.parse(words), found = {};
globalThis.self = globalThis;
globalThis.addEventListener = (_, handle) => { globalThis.send = (data) => handle({ data }); };
globalThis.postMessage = ({ data }) => {
  if (data) found[asked[Object.keys(found).length]] = data.items.map((page) => page.at(-1));
  const next = asked[Object.keys(found).length];
  if (next !== undefined) globalThis.send({ type: 2, data: next });
  else console.log(JSON.stringify(found));
};
require(worker);
const { config, docs } = JSON.parse(require("fs").readFileSync(index));
globalThis.send({ type: 0, data: { config, docs, options: { suggest: true } } });
"""


@dataclass
class Found(HTMLParser):
    """What a page has: its anchors, links, what it loads, and the text of its article.

    The text of tables stands in `cells` too. The article is the theme's: the navigation is no text,
    and the gallery's cards are none.
    """

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    cells: list[str] = field(default_factory=list)
    inside: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.separate(tag)
        self.inside["table"] += tag == "table"
        if tag == "article":
            self.inside[tag] = int(ARTICLE in given.get("class", ""))
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        kinds = set(given.get("rel", "").lower().split())
        if tag in ("a", "area") and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and kinds & LOADED_LINKS:
            self.loads.append(given.get("href", ""))
        elif tag == "link" and kinds & {"next", "prev"}:
            self.links.append(given.get("href", ""))
        for name in LOADS.get(tag, ()):
            parts = given.get(name, "").split(",") if name == "srcset" else [given.get(name, "")]
            self.loads += [part.split()[0] for part in parts if part.split()]
        self.loads += IN_CSS.findall(given.get("style", ""))
        for part, name in PARTS_THAT_LOAD.items():
            if part in given.get(name, "").split():
                self.loads.append(f"https://of.the.theme/{part}")

    def handle_endtag(self, tag: str) -> None:
        self.separate(tag)
        self.inside["table"] -= tag == "table"
        self.inside["article"] *= tag != "article"

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "style":
            self.loads += IN_CSS.findall(data)
        elif self.inside["article"] and self.cdata_elem is None:
            self.text.append(data)
            if self.inside["table"]:
                self.cells.append(data)

    def separate(self, tag: str) -> None:
        """End a word at a tag that does not stand within one."""
        if tag not in INLINE:
            self.text.append(" ")
            self.cells.append(" ")

    @property
    def words(self) -> tuple[int, int]:
        """How many words the article has, and how many of them stand in tables."""
        return len("".join(self.text).split()), len("".join(self.cells).split())


def read_site(site: Path) -> dict[Path, Found]:
    """Return what each page of a site has."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        pages[path.resolve()] = found = Found()
        found.feed(path.read_text(encoding="utf-8"))
    return pages


def is_elsewhere(address: str) -> bool:
    """Whether an address is on another host."""
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data", "javascript", "mailto")


def broken(site: Path, pages: dict[Path, Found]) -> Iterator[str]:
    """Yield each link, and each thing to load, that is not in the site."""
    for page, found in pages.items():
        for address in (*found.links, *found.loads):
            parts = urlsplit(address)
            if is_elsewhere(address) or parts.scheme:
                continue
            target = page if not parts.path else (page.parent / unquote(parts.path)).resolve()
            if page.name == "404.html" and parts.path.startswith("/"):
                target = (site / unquote(parts.path).lstrip("/")).resolve()
            target = target / "index.html" if target.is_dir() else target
            name = page.relative_to(site.resolve())
            if not target.is_file():
                yield f"{name}: {address}: no such file"
            elif not has_anchor(pages.get(target), unquote(parts.fragment)):
                yield f"{name}: {address}: no such anchor"


def has_anchor(found: Found | None, fragment: str) -> bool:
    """Whether a fragment leads somewhere; one with `=` holds what a page's script reads."""
    return found is None or not fragment or "=" in fragment or fragment in found.anchors


def requests(site: Path, pages: dict[Path, Found]) -> Iterator[str]:
    """Yield each thing that a page or a style sheet loads from another host."""
    for page, found in pages.items():
        for address in filter(is_elsewhere, found.loads):
            yield f"{page.relative_to(site.resolve())}: {address}"
    for path in sorted(site.rglob("*.css")):
        for address in IN_CSS.findall(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site)}: {address}"


def too_long(site: Path, pages: dict[Path, Found]) -> Iterator[str]:
    """Yield each page that is longer than anybody reads, and is no table."""
    for page, found in pages.items():
        words, in_tables = found.words
        if words > MOST_WORDS and in_tables < SHARE_OF_A_TABLE * words:
            yield f"{page.relative_to(site.resolve())}: {words} words, not {MOST_WORDS}: split it"


def read_words() -> dict[str, str]:
    """Return what people search for, each with the page that they look for."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "_build"))
    from hooks import WORDS  # needs mkdocs, as the site did

    return {word: page[:-2] + "html" for page, words in WORDS.items() for word in words}


def not_first(site: Path, words: dict[str, str]) -> Iterator[str]:
    """Yield each word for which the site's search finds another page before its guide."""
    if shutil.which("node") is None:
        print("the search is not asked: it needs Node")
        return
    (worker,) = site.glob("assets/javascripts/workers/search.*.js")
    index = site / "search" / "search_index.json"
    command = ["node", "-e", SEARCH, worker.resolve(), index.resolve(), json.dumps([*words])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for word, pages in json.loads(done.stdout).items():
        found = [page["location"].partition("#")[0] for page in pages]
        if found[:1] != [words[word]]:
            yield f"search for {word!r}: {words[word]} is not first but {found[:3]}"


def main(site: Path) -> int:
    """Print what a site has and what is wrong with it; return the exit status."""
    start = time.perf_counter()
    pages = read_site(site)
    bad, asked = list(broken(site, pages)), list(requests(site, pages))
    long = list(too_long(site, pages))
    words = read_words() if (site / "search").is_dir() else {}
    lost = list(not_first(site, words)) if words else []
    for line in (*bad, *asked, *long, *lost):
        print(line)
    links = sum(len(found.links) for found in pages.values())
    seconds = time.perf_counter() - start
    print(
        f"{len(pages)} pages, {links} links, {len(bad)} broken, "
        f"{len(asked)} requests to other hosts, {len(long)} too long, "
        f"{len(words)} searches, {len(lost)} of them lost, checked in {seconds:.1f} s"
    )
    return 1 if bad or asked or long or lost or not pages else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
