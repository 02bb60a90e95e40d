"""The rules that are written in one library's style, and numbers to run them on."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

TESTS = Path(__file__).resolve().parent.parent


def rules_in(module: str) -> list[str]:
    """Return the names of a module's public functions; its library is not imported."""
    body = ast.parse((TESTS / "written" / f"{module}.py").read_text()).body
    functions = [node.name for node in body if isinstance(node, ast.FunctionDef)]
    return [name for name in functions if not name.startswith("_")]


def find_rule(module: str, name: str) -> Callable[..., Any]:
    return getattr(importlib.import_module(f"tests.written.{module}"), name)


def inputs(dtype: Any) -> tuple[Any, Any]:
    """Return tin and grad_out: ordinary numbers, and a row at the edges."""
    tin = np.linspace(-2.3, 2.9, 12).reshape(3, 4).astype(dtype)
    tin[1] = [0.0, -0.0, 1.0, -1.0]
    return tin, np.linspace(-1.3, 1.9, 12).reshape(3, 4).astype(dtype)
