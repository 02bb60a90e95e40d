"""The core does the daily job alone: its tests run on a copy from which all else is deleted, and it
imports nothing else.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from importlib.util import resolve_name
from typing import Any

import pytest

from ..harness import fresh
from ..support.sampling import WHOLE
from . import alone

MODULES = alone.modules_in(alone.ROOT)
# Before a merge; a framework's other tests of the core run alone each week.
FEW = ("-k", "test_rules or test_transforms")
pytestmark = pytest.mark.skipif(not MODULES, reason="the tests run beside an installed package")


def test_the_tests_of_the_core_pass_without_the_rest(backend: Any) -> None:
    words = () if WHOLE or backend.name == "numpy" else FEW
    code, _ = alone.run(backend.name, alone.core_modules(backend.name), words)
    assert code == 0, f"python -m tests.core.alone {backend.name} tells more"


# JAX's small proof traces the code, and needs these; it runs without them, but for longer.
TRACING = {
    "multigrad_jax.jaxprs",
    "multigrad_jax.rehearsal",
    "multigrad.engine.ops",
    "multigrad.engine.ops.loops",
}
DAILY = """
import {framework}
import sys
import numpy as np
import multigrad as xg
from frameworks import BACKENDS

@xg.register("window")
def window(ctx, grad_out, tin, width: float = 1.0):
    return grad_out * (1.0 - abs(tin) / width)

xp = xg.xp

@xg.register("bump")
def bump(ctx, grad_out, tin, width: float = 1.0):
    return grad_out * xp.sum(xp.exp(-xp.abs(tin)) / width, axis=-1, keepdims=True)

x = np.array([0.5, -2.0], np.float32)
for rule in ("window", "bump", "triangular"):
    with xg.use(rule, {{"width": 4.0}}):
        BACKENDS[{backend!r}].gradient(xg.activation("Heaviside"), x)
    BACKENDS[{backend!r}].gradient(xg.activation("ReLU", rule), x)
print(*[name for name in sys.modules if name.startswith("multigrad")])
"""


def test_rules_of_operators_of_xp_and_of_the_library_load_the_core_alone(backend: Any) -> None:
    code = DAILY.format(framework=backend.name, backend=backend.name)
    paths = [str(alone.HERE), *sys.path]
    words = ["-c", f"import sys; sys.path[:] = {paths}\n{code}"]
    unproven = {**os.environ, "MULTIGRAD_PROVE": ""}  # as users have it; the tests prove each call
    done = fresh.run(words, [backend.name], env=unproven)
    loaded = {name for name in done.stdout.split() if is_of(backend.name, name)}
    assert done.returncode == 0, done.stderr
    others = TRACING if backend.name == "jax" else set()
    assert loaded - known(backend.name) - others == set()


def is_of(backend: str, module: str) -> bool:
    """Return whether a module is one that a backend's calls may load, and not another backend's."""
    return module.partition(".")[0] in ("multigrad", f"multigrad_{backend}")


def known(*backends: str) -> set[str]:
    """Return the modules of the core with some backends, the packages that hold them, and the
    tables of what registers with them.
    """
    core = {name for backend in backends for name in alone.core_modules(backend)}
    parts = [name.split(".") for name in core]
    core = {".".join(part[:i]) for part in parts for i in range(1, len(part) + 1)}
    return core | {alone.JOINTS} | {f"multigrad_{name}.engine" for name in backends}


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
    core = known(*alone.BACKENDS)
    arrows = [
        f"{module}:{line} imports {other}"
        for module in sorted(core & MODULES.keys())
        for line, other in imports_of(module, ast.parse(MODULES[module].read_text("utf-8")))
        if other not in core
    ]
    assert arrows == []
