"""The core does the daily job alone: its tests run on a copy from which all else is deleted, and it
imports nothing else.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import resolve_name
from typing import Any

import pytest

from ..support.sampling import WHOLE
from . import alone

MODULES = alone.modules_in(alone.ROOT)
# Before a merge; a framework's other tests of the core run alone each week.
FEW = ("-k", "test_rules or test_transforms")
pytestmark = [
    pytest.mark.always,
    pytest.mark.skipif(not MODULES, reason="the tests run beside an installed package"),
]


def test_the_tests_of_the_core_pass_without_the_rest(backend: Any) -> None:
    words = () if WHOLE or backend.name == "numpy" else FEW
    code, _ = alone.run(backend.name, alone.core_modules(backend.name), words)
    assert code == 0, f"python -m tests.core.alone {backend.name} tells more"


def imports_of(module: str, node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the lines that import a module of ours, but for those that only type checkers read."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [each.name for each in node.names]
    elif isinstance(node, ast.ImportFrom):
        is_package = MODULES[module].name == "__init__.py"
        package = module if is_package else module.rpartition(".")[0]
        home = resolve_name("." * node.level + (node.module or ""), package)
        inner = (f"{home}.{each.name}" for each in node.names)
        names = [name if name in MODULES else home for name in inner]
    yield from ((getattr(node, "lineno", 0), name) for name in names if name in MODULES)
    for child in ast.iter_child_nodes(node):
        yield from imports_of(module, child)


@pytest.mark.anywhere
def test_the_core_imports_the_core_alone() -> None:
    core = {name for backend in alone.BACKENDS for name in alone.core_modules(backend)}
    packages = {name.rpartition(".")[0] for name in core}  # those that only hold others
    for package in [*packages]:
        packages |= {package.rsplit(".", i)[0] for i in range(package.count(".") + 1)}
    arrows = [
        f"{module}:{line} imports {other}"
        for module in sorted(core)
        for line, other in imports_of(module, ast.parse(MODULES[module].read_text("utf-8")))
        if other not in core | packages | {alone.JOINTS}
    ]
    assert arrows == []
