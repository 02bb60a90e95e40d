"""docs/state.md has one row for each place where a module keeps state, and no other row."""

from __future__ import annotations

import ast
import re
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("multigrad", *(f"backends/multigrad_{x}" for x in ("torch", "jax", "tensorflow", "mlx")))
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
ALWAYS = {
    *("cache", "lru_cache", "ContextVar", "count", "local"),
    *("WeakKeyDictionary", "WeakSet", "WeakValueDictionary", "composing"),
}
WRITERS = {*dir(list), *dir(OrderedDict), *dir(set), *dir(deque)}  # the methods that write
WRITERS -= {*dir(tuple), *dir(frozenset), *dir(MappingProxyType)}
FILLERS = {"build_once", "setattr", "vars"}  # whose first argument is written to
CHANGING = (ast.Call, ast.Dict, ast.List, ast.Set, ast.ClassDef)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
ROW = re.compile(r"^\| `([\w/]+\.py)` `([\w.]+)` \|", re.MULTILINE)
Place = tuple[str, str]  # a file and a name in it
pytestmark = [
    pytest.mark.always,
    pytest.mark.skipif(not FILES, reason="the tests run beside an installed package"),
]


def last_name(node: Any) -> str:
    """Return `local` of `threading.local()`."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return getattr(node, "attr", getattr(node, "id", ""))


def ends_of(node: Any) -> tuple[str, str]:
    """Return the first and the last name of `a.b.c`."""
    first = node
    while isinstance(first, ast.Attribute | ast.Subscript):
        first = first.value
    return getattr(first, "id", ""), last_name(node)


def imported(path: str, tree: ast.Module) -> dict[str, Place]:
    """Return where each name comes from that a module imports."""
    found, package = {}, path.split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            file = "/".join([*base, *(node.module.split(".") if node.module else ())])
            file = f"backends/{file}" if file.startswith("multigrad_") else file
            found |= {each.asname or each.name: (f"{file}.py", each.name) for each in node.names}
    return found


def changes_in(body: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Yield the ends of the names of what functions change."""
    for node in body:
        for each in ast.walk(node) if isinstance(node, FUNCTIONS) else ():
            if isinstance(each, ast.Global):
                yield from zip(each.names, each.names, strict=True)
            elif isinstance(each, ast.Subscript | ast.Attribute):
                is_stored = isinstance(each.ctx, ast.Store | ast.Del)
                if is_stored or getattr(each, "attr", "") in WRITERS:
                    yield ends_of(each.value)
            elif isinstance(each, ast.Call) and last_name(each) in FILLERS and each.args:
                yield ends_of(each.args[0])
        if not isinstance(node, FUNCTIONS):
            yield from changes_in(getattr(node, "body", ()))


def assigned(body: Sequence[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what a module or a class assigns and defines, and the decorators of its functions."""
    for node in body:
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        for name in [each.id for each in targets if isinstance(each, ast.Name)]:
            yield prefix + name, getattr(node, "value", None)
        for decorator in getattr(node, "decorator_list", ()):
            yield prefix + node.name, decorator
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name, node
            yield from assigned(node.body, f"{prefix}{node.name}.")
        elif not isinstance(node, FUNCTIONS):
            yield from assigned(getattr(node, "body", ()), prefix)


def places(trees: dict[str, ast.Module]) -> Iterator[Place]:
    """Yield every object of a module that changes after the import."""
    written, classes = set[Place](), set[Place]()  # a class, if its objects change
    names = {path: imported(path, tree) for path, tree in trees.items()}
    for path, tree in trees.items():
        for first, last in changes_in(tree.body):
            file, name = names[path].get(first, (path, first))
            written |= {(file, name), (f"{file.removesuffix('.py')}/{name}.py", last)}
        for node in filter(lambda node: isinstance(node, ast.ClassDef), ast.walk(tree)):
            later = [each for each in node.body if getattr(each, "name", "") != "__init__"]
            if "self" in dict(changes_in(later)) or "local" in map(last_name, node.bases):
                classes.add((path, node.name))
    for path, tree in trees.items():
        for name, value in assigned(tree.body):
            maker = last_name(value)
            is_empty = getattr(value, "keys", None) == [] and not name.isupper()
            changes = is_empty or names[path].get(maker, (path, maker)) in classes
            changes = (changes or (path, name) in written) and isinstance(value, CHANGING)
            if maker in ALWAYS or (changes and "." not in name):
                yield path, name


def test_each_place_with_state_has_one_row_on_the_page_and_no_row_is_about_another() -> None:
    trees = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in FILES}
    rows = ROW.findall((ROOT / "docs" / "state.md").read_text(encoding="utf-8"))
    assert sorted(rows) == sorted(places(trees))


def test_a_place_that_is_new_is_found() -> None:
    source = "KNOWN = {}\ndef note(key): KNOWN[key] = 1\nread = functools.cache(note)"
    found = places({"multigrad/errors.py": ast.parse(source)})
    assert [name for _, name in found] == ["KNOWN", "read"]
