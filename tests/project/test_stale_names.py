"""A path or a dotted name in docstrings, comments and pages names something that exists."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import multigrad as xg

ROOT = Path(__file__).parents[2]
FOLDERS = ("multigrad", "backends", "tools", "tests", "examples", "scripts", "docs")
FILES = {
    path.relative_to(ROOT).as_posix(): path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.*")
    if path.suffix in (".py", ".pyi", ".md", ".toml", ".txt", ".js")
}
SOURCES = [name for name in FILES if re.match(r"(multigrad|backends|tools)/.*\.py$", name)]
# Pages that a script writes name what frameworks have.
PAGES = ["README.md", "CONTRIBUTING.md"] + [
    name for name in FILES if name.endswith(".md") and not name.startswith("docs/dialects/")
]
# A file may be named by any end of its path: `ir/op.py`, `op.py`.
ENDS = {"/".join(name.split("/")[at:]) for name in FILES for at in range(name.count("/") + 1)}
ROOMS = {part for name in SOURCES for part in name.split("/")[:-1]} - {"keras", "torch"}
MODULES = ROOMS | {Path(name).stem for name in SOURCES}
PUBLIC = {*xg.__all__, *xg._MODULES}  # `hasattr` would import a framework
FILE_NAME = re.compile(r"(?<![\w/.-])([\w/-]+\.(?:pyi?|js))\b")
FOLDER_NAME = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w/-]+)`")
DOTTED_NAME = re.compile(r"`([a-z_]+(?:\.(?!py|js)[A-Za-z_]\w*)+)`")
FOREIGN = re.compile(
    r"(autograd|flax|inspect|jax|jnp|keras|lax|mx|nn|np|numpy|optax|optree|tf|torch)[./]"
)
pytestmark = [
    pytest.mark.always,
    pytest.mark.skipif(not SOURCES, reason="the tests run beside an installed package"),
]


def read(source: str) -> tuple[set[str], list[tuple[int, str]]]:
    """Return the names that a module uses, and its docstrings and comments with their lines."""
    names, texts = set(), []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            names.add(token.string)
        elif token.type == tokenize.COMMENT or token.string.startswith('"""'):
            texts.append((token.start[0], token.string))
    return names, texts


def stale_paths(text: str) -> Iterator[str]:
    for name in FILE_NAME.findall(text):
        if name not in ENDS and not FOREIGN.match(name):
            yield name
    for name in FOLDER_NAME.findall(text):
        if not (ROOT / name).exists():
            yield name


def stale_dotted(text: str, names: set[str]) -> Iterator[str]:
    for name in DOTTED_NAME.findall(text):
        head, *rest = name.split(".")
        if head in ("multigrad", "xg"):
            exists = rest[0] in PUBLIC | MODULES
        elif head in ROOMS or rest[-1][0].isupper():
            exists = head in MODULES
        else:
            continue  # an attribute of a value
        if not (exists and rest[-1] in names) and not FOREIGN.match(name):
            yield name


def test_what_sources_name_exists() -> None:
    sources = {name: read(FILES[name].read_text(encoding="utf-8")) for name in SOURCES}
    names = MODULES.union(*(names for names, _ in sources.values()))
    found = [
        f"{name}:{line} {each}"
        for name, (_, texts) in sources.items()
        for line, text in texts
        for each in (*stale_paths(text), *stale_dotted(text, names))
    ]
    assert found == []


def test_the_paths_that_pages_name_exist() -> None:
    # A name without a folder is often that of a reader's own file.
    found = [
        f"{name} {each}"
        for name in PAGES
        for each in stale_paths((ROOT / name).read_text(encoding="utf-8"))
        if each.partition("/")[0] in ROOMS.union(FOLDERS) and "/" in each
    ]
    assert found == []


def test_a_stale_name_is_found() -> None:
    text = "See ir/op.py, ir/gone.py, `backends/gone`, `rules.Gone` and `multigrad.gone`"
    assert list(stale_paths(text)) == ["ir/gone.py", "backends/gone"]
    assert list(stale_dotted(text, {"use"})) == ["rules.Gone", "multigrad.gone"]
