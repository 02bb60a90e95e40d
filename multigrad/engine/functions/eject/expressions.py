"""Expressions of an ejected file: what it imports, and numbers, dtypes and arrays to the bit."""

from __future__ import annotations

import importlib
import math
import re
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ....core.ir.graph import ArrayValue
from ....errors import UnsupportedOp

STANDARD = sys.stdlib_module_names
LISTED = 64  # elements up to which an array is written as a list
LINE = 40  # bytes in a line of hexadecimal digits


class NeededImports:
    """The imports of a file that is being written; who asks for a name adds what it needs.

    Attributes:
        modules: the framework's modules by the names under which the file has them.
        roots: the packages that a file must not import: ours, and the backend's.
        fresh: returns a name that means nothing in the file yet.
        lines: the statements so far.
    """

    def __init__(
        self,
        modules: Mapping[str, types.ModuleType],
        roots: frozenset[str],
        fresh: Callable[[str], str],
    ) -> None:
        self.modules, self.roots, self.fresh = modules, roots, fresh
        self.lines: set[str] = set()
        self._public = _public_names(modules)
        self._objects: dict[tuple[str, str], str] = {}  # names in the file, by module and name

    def text(self) -> str:
        """Return the statements in two blocks, Python's own modules first; one for each module."""
        names: dict[str, list[str]] = {}
        for line in sorted(self.lines):
            head, _, name = line.partition(" import ")
            names.setdefault(head if name else line, []).extend([name] if name else [])
        blocks: tuple[list[str], list[str]] = [], []
        for head in sorted(names, key=lambda head: (head.startswith("from"), head)):
            root = head.split()[1].partition(".")[0]
            line = f"{head} import {', '.join(names[head])}" if names[head] else head
            blocks[root not in sys.stdlib_module_names].append(line)
        return "\n\n".join("\n".join(block) for block in blocks if block)

    def is_ours(self, module: str | None) -> bool:
        return (module or "").partition(".")[0] in self.roots

    def public_name(self, value: Any) -> str | None:
        """Return a framework's public name for an object, None if it has none."""
        public, expression = self._public.get(id(value), (None, ""))
        if public is not value or not expression:
            return None
        self.add_root(expression.partition(".")[0])
        return expression

    def add_root(self, alias: str) -> None:
        """Import a module of the framework under the name that it has in the file."""
        module = self.modules[alias].__name__
        self.lines.add(f"import {module}" if module == alias else f"import {module} as {alias}")

    def module_name(self, module: types.ModuleType) -> str:
        """Return the expression for a module that is not ours."""
        for alias, candidate in self.modules.items():
            if candidate is module:
                self.add_root(alias.partition(".")[0])
                return alias
        if self.is_ours(module.__name__):
            raise UnsupportedOp(f"the module {module.__name__} itself is used")
        parent, _, name = module.__name__.rpartition(".")
        if parent and parent not in sys.modules:  # torch.ops is an attribute alone before torch 2.5
            self.lines.add(f"import {parent.partition('.')[0]}")
            return module.__name__
        self.lines.add(f"from {parent} import {name}" if parent else f"import {name}")
        return name

    def add_for(self, expression: str) -> str:
        """Return an expression unchanged, and import the modules that it names."""
        for root in {word.partition(".")[0] for word in re.findall(r"[A-Za-z_][\w.]*", expression)}:
            if root in self.modules:
                self.add_root(root)
            elif root in ("math", "ml_dtypes"):
                self.lines.add(f"import {root}")
            elif root == "np":
                self.lines.add("import numpy as np")
        return expression

    def object_name(self, value: Any) -> str | None:
        """Return the name of an object that another package defines; None if it has none there."""
        module = getattr(value, "__module__", None)
        name = getattr(value, "__qualname__", getattr(value, "__name__", None))
        if not module or not name or self.is_ours(module) or "<" in name:
            return None
        candidate: Any = importlib.import_module(module)
        for part in name.split("."):
            candidate = getattr(candidate, part, None)
        if candidate is not value:
            return None
        if module == "builtins":
            return name
        if module.partition(".")[0] in STANDARD:
            module = module.removeprefix("_")  # operator's functions say _operator
            self.lines.add(f"import {module}")
            return f"{module}.{name}"
        root, dot, attributes = name.partition(".")
        word = self._objects.get((module, root))
        if word is None:  # what calls it may have its name
            word = self._objects[module, root] = self.fresh(root)
            alias = "" if word == root else f" as {word}"
            self.lines.add(f"from {module} import {root}{alias}")
        return word + dot + attributes


def _public_names(modules: Mapping[str, types.ModuleType]) -> dict[int, tuple[Any, str]]:
    # Keyed by `id`, as not all objects have a hash; an object's own name is preferred.
    names: dict[int, tuple[Any, str]] = {}
    for alias, module in modules.items():
        for name, value in vars(module).items():
            if name.startswith("_") and "._" not in alias:
                continue
            if isinstance(value, types.ModuleType | bool | int | float | str | dict | tuple):
                continue
            entry = names.get(id(value))
            is_named_so = getattr(value, "__name__", None) == name
            if entry is None or (is_named_so and entry[1].startswith(f"{alias}.")):
                names[id(value)] = value, f"{alias}.{name}"
    return names


def literal(value: Any) -> str:
    """Return a number, a string or None; Python has no literal for infinity and NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        name = "math.nan" if math.isnan(value) else "math.inf"
        return f"-{name}" if value < 0 else name
    if isinstance(value, str):
        quoted = repr(value)
        is_plain = quoted.startswith("'") and '"' not in quoted and "\\" not in quoted
        return f'"{quoted[1:-1]}"' if is_plain else quoted
    return repr(value)


def dtype_literal(value: np.dtype[Any]) -> str:
    package = value.type.__module__.partition(".")[0]
    return (
        f"np.dtype(ml_dtypes.{value.name})"
        if package == "ml_dtypes"
        else f'np.dtype("{value.name}")'
    )


def array_literal(value: ArrayValue) -> str:
    """Return the expression of a NumPy array: a list of its numbers, or its bytes."""
    array = np.frombuffer(value.data, np.dtype(value.dtype))
    is_short = array.size <= LISTED
    if is_short and array.size and np.all(np.isfinite(array.astype(np.float64))):
        return f'np.array({array.reshape(value.shape).tolist()!r}, "{value.dtype}")'
    digits = value.data.hex()
    lines = [f'"{digits[i : i + 2 * LINE]}"' for i in range(0, len(digits), 2 * LINE)]
    text = "\n    ".join(lines) or '""'
    return (
        f'np.frombuffer(\n    bytes.fromhex(\n    {text}\n    ),\n    "{value.dtype}",\n'
        f").reshape({value.shape!r})"
    )
