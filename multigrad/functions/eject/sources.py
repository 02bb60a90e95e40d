"""The sources of our own modules: their statements by name, and the text of each."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from ...graph.support.class_bases import cached_property

CODE = (ast.FunctionDef, ast.ClassDef)


class ModuleSource:
    """The source of a module, parsed."""

    def __init__(self, module: str) -> None:
        self.text = inspect.getsource(sys.modules[module])
        self.tree = ast.parse(self.text)

    @cached_property
    def statements(self) -> Mapping[str, ast.stmt]:
        """The top-level statements by the names that they bind."""
        return {name: each for each in self.tree.body for name in _names_of(each)}

    @cached_property
    def nested(self) -> Mapping[int, ast.FunctionDef]:
        """All functions by their first lines, those of their decorators."""
        return {
            min([node.lineno, *(each.lineno for each in node.decorator_list)]): node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.FunctionDef)
        }


read = functools.cache(ModuleSource)


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
    """Return whether a statement assigns to one name, and to nothing else."""
    if isinstance(statement, ast.AnnAssign):
        return isinstance(statement.target, ast.Name)
    return (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
    )


def segment(module: str, statement: ast.AST) -> str:
    """Return the text of a statement, its decorators included."""
    lines = read(module).text.splitlines(keepends=True)
    decorators = getattr(statement, "decorator_list", ())
    first = min([statement.lineno, *(d.lineno for d in decorators)])  # type: ignore[attr-defined]
    last = statement.end_lineno  # type: ignore[attr-defined]
    text = textwrap.dedent("".join(lines[first - 1 : last])).rstrip("\n")
    # What a formatter leaves alone here it must leave alone there.
    marks = [line.strip() for line in lines[: first - 1] if line.startswith("# fmt: o")]
    return f"{text}  # fmt: skip" if marks and marks[-1] == "# fmt: off" else text


def attached(module: str, name: str) -> Iterator[ast.stmt]:
    """Yield the statements that call a method of a name, as `f.defvjp(...)` or `@f.def_vmap`."""
    for statement in read(module).tree.body:
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
    """Return the module from which a statement of `module` imports, by its full name."""
    if not statement.level:
        return statement.module or ""
    holder = sys.modules[module]
    package = holder.__spec__.parent if holder.__spec__ else ""
    base = (package or "").split(".")
    base = base[: len(base) - statement.level + 1]
    return ".".join([*base, *([statement.module] if statement.module else [])])
