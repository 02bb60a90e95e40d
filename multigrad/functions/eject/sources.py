"""Where modules of ours define things: their statements, and the text of each."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

CODE = (ast.FunctionDef, ast.ClassDef)


@functools.cache
def _tree(module: str) -> tuple[str, ast.Module]:
    """Return the source of a module of ours, and its syntax tree."""
    text = inspect.getsource(sys.modules[module])
    return text, ast.parse(text)


@functools.cache
def statements(module: str) -> Mapping[str, ast.stmt]:
    """Return the statements outside of functions by the names that they bind."""
    found: dict[str, ast.stmt] = {}
    for statement in _tree(module)[1].body:
        for name in _names_of(statement):
            found[name] = statement
    return found


def _names_of(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, CODE):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
    elif isinstance(statement, ast.Assign | ast.AnnAssign):
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


def defines_one(statement: ast.stmt) -> bool:
    """Return whether an assignment is to one name."""
    if isinstance(statement, ast.AnnAssign):
        return isinstance(statement.target, ast.Name)
    return (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
    )


@functools.cache
def nested(module: str) -> Mapping[int, ast.FunctionDef]:
    """Return all functions of a module by their first lines, those of their decorators."""
    return {
        min([node.lineno, *(each.lineno for each in node.decorator_list)]): node
        for node in ast.walk(_tree(module)[1])
        if isinstance(node, ast.FunctionDef)
    }


def segment(module: str, statement: ast.AST) -> str:
    """Return the text of a statement, its decorators included."""
    lines = _tree(module)[0].splitlines(keepends=True)
    decorators = getattr(statement, "decorator_list", ())
    first = min([statement.lineno, *(d.lineno for d in decorators)])  # type: ignore[attr-defined]
    last = statement.end_lineno  # type: ignore[attr-defined]
    text = textwrap.dedent("".join(lines[first - 1 : last])).rstrip("\n")
    marks = [line.strip() for line in lines[: first - 1] if line.startswith("# fmt: o")]
    return f"{text}  # fmt: skip" if marks and marks[-1] == "# fmt: off" else text


def attached(module: str, name: str) -> Iterator[ast.stmt]:
    """Yield the statements that say more of what a name means: its methods as calls and
    decorators.
    """
    for statement in _tree(module)[1].body:
        if isinstance(statement, ast.FunctionDef):
            heads: list[ast.expr] = statement.decorator_list
        else:  # a call, perhaps where there is such a method
            body = statement.body if isinstance(statement, ast.If) else [statement]
            heads = [each.value for each in body if isinstance(each, ast.Expr)]
        for head in heads:
            called: Any = head.func if isinstance(head, ast.Call) else head
            owner = called.value if isinstance(called, ast.Attribute) else None
            if isinstance(owner, ast.Name) and owner.id == name:
                yield statement
                break


def origin(statement: ast.ImportFrom, module: str) -> str:
    """Return the module that an import names."""
    if not statement.level:
        return statement.module or ""
    holder = sys.modules[module]
    package = holder.__spec__.parent if holder.__spec__ else ""
    base = (package or "").split(".")
    base = base[: len(base) - statement.level + 1]
    return ".".join([*base, *([statement.module] if statement.module else [])])


def imported_as(statement: ast.ImportFrom, name: str) -> str:
    return next(a.name for a in statement.names if (a.asname or a.name) == name)
