"""The form of the code, as far as no linter holds it: long files, calls by position, parentheses
that a comment forces open.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path
    for folder in ("multigrad", "backends", "tools/bench", "examples/demo")
    for path in (ROOT / folder).rglob("*.py")
)
# One idea per file, as long as the idea is: few are longer than 400 lines, a contract may be.
MOST_LINES, MOST_POSITIONAL, WIDTH = 600, 5, 100
BLANK = (tokenize.NL, tokenize.COMMENT, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
pytestmark = [
    pytest.mark.always,
    pytest.mark.skipif(not FILES, reason="the tests run beside an installed package"),
]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_file_is_long() -> None:
    sizes = {name_of(path): path.read_text().count("\n") for path in FILES}
    assert {name for name, size in sizes.items() if size > MOST_LINES} == set()


# --- calls by position -------------------------------------------------------------------------
def parse_files() -> dict[str, ast.Module]:
    """Return the files as trees, by their names."""
    names = {name_of(path): path for path in FILES}
    return {name: ast.parse(path.read_text()) for name, path in names.items()}


def own_functions(trees: dict[str, ast.Module]) -> set[str]:
    """Return the names of our own classes, and of functions that take no `*args`."""
    found = set()
    for tree in trees.values():
        for node in ast.walk(tree):
            is_fixed = isinstance(node, ast.FunctionDef) and not node.args.vararg
            if is_fixed or isinstance(node, ast.ClassDef):
                found.add(node.name)
    return found


def by_position() -> Iterator[str]:
    trees = parse_files()
    own = own_functions(trees)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and len(node.args) > MOST_POSITIONAL:
                called = getattr(node.func, "attr", getattr(node.func, "id", None))
                spread = any(isinstance(each, ast.Starred) for each in node.args)
                if called in own and not spread:
                    yield f"{name}:{node.lineno} {called}"


def test_a_call_with_many_arguments_names_them() -> None:
    assert list(by_position()) == []


# --- parentheses that a comment forces open ----------------------------------------------------


def forced_open(source: str) -> Iterator[int]:
    """Yield the lines of comments without which their statement would fit on one line."""
    statement: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        statement.append(token)
        if token.type == tokenize.NEWLINE:
            words = [each for each in statement if each.type not in BLANK]
            comments = [
                each
                for each in statement
                if each.type == tokenize.COMMENT and each.start > words[0].start
            ]
            if words[-1].end[0] > words[0].start[0] and comments and not kept_so(comments):
                text = joined(words)
                if "\n" not in text and words[0].start[1] + len(text) <= WIDTH:
                    yield comments[0].start[0]
            statement = []


def kept_so(comments: list[tokenize.TokenInfo]) -> bool:
    """Return whether one stands on a line of its own, or keeps the formatter away."""
    return any(not each.line[: each.start[1]].strip() or "fmt:" in each.string for each in comments)


def joined(words: list[tokenize.TokenInfo]) -> str:
    """Return a statement on one line, as the formatter would write it."""
    text, last = "", None
    for word in words:
        if word.string in ")]}":
            text = text.removesuffix(",")
        if last is not None and word.start[0] == last.end[0]:
            text += " " * (word.start[1] - last.end[1])
        elif last is not None and last.string not in "([{" and word.string not in ")]}":
            text += " "
        text, last = text + word.string, word
    return text


def test_no_comment_forces_a_parenthesis_open() -> None:
    found = [f"{name_of(path)}:{line}" for path in FILES for line in forced_open(path.read_text())]
    assert found == []


def test_forced_parentheses_are_seen() -> None:
    source = "x = f(\n    1, 2\n)  # why\ny = f(\n    # why\n    1\n)\nz = f(1)  # why\n"
    assert list(forced_open(source)) == [3]
