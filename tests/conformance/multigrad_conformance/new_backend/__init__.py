"""The command `multigrad new-backend`: a package to start a backend from, which fails the
conformance suite with a to-do list.

The files beside this one are its templates; the list of ops is made from the op table.
"""

from __future__ import annotations

import inspect
import keyword
import re
import sys
import textwrap
from pathlib import Path
from string import Template

import multigrad as xg
from multigrad.core import ops
from multigrad.core.backend.discovery import entry_points
from multigrad.core.ir.op import Op
from multigrad.engine.capture.dialect import entry_points as find_dialects
from multigrad.errors import MultigradError

TEMPLATES = Path(__file__).parent
WIDTH = 98
# By the template's file, the path in the new package.
FILES = {
    "README.md.txt": "README.md",
    "attach.py.txt": "multigrad_$name/attach.py",
    "bridge.py.txt": "multigrad_$name/bridge.py",
    "differences.py.txt": "multigrad_$name/differences.py",
    "gitignore.txt": ".gitignore",
    "init.py.txt": "multigrad_$name/__init__.py",
    "ops.py.txt": "multigrad_$name/ops.py",
    "py.typed.txt": "multigrad_$name/py.typed",
    "pyproject.toml.txt": "pyproject.toml",
    "test_conformance.py.txt": "tests/test_conformance.py",
}


def write_package(name: str, folder: Path | None) -> list[Path]:
    """Write the package into a new folder, and return its files.

    Args:
        name: the framework's import name.
        folder: None: `multigrad-NAME`, here.
    """
    check_name(name)
    root = Path(f"multigrad-{name}") if folder is None else folder
    if root.exists():
        raise MultigradError(f"{root} exists, and nothing is written over; name another by --out")
    # Infix ops carry a symbol, and a backend does not repeat them.
    rows = [op for op in ops.CALLABLE_OPS if op.symbol is None]
    words = {
        "name": name,
        "version": xg.__version__,
        "count": str(len(rows)),
        "list": list_ops(rows),
    }
    paths = []
    for file, target in FILES.items():
        path = root / Template(target).substitute(words)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = Template((TEMPLATES / file).read_text(encoding="utf-8")).substitute(words)
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


def check_name(name: str) -> None:
    """Check that a backend may have this name, that by which its framework is imported."""
    match = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
    if match is None or keyword.iskeyword(name) or name.startswith("_"):
        root = name.partition(".")[0]
        hint = f"; a backend of {name} is named {root!r}" if root.isidentifier() else ""
        raise MultigradError(
            f"{name!r} is no name to import a framework by; expected a word of letters, digits and "
            f"_, such as mylib{hint if root != name else ''}"
        )
    if name in entry_points():
        raise MultigradError(f"there is a backend {name!r} already: multigrad backends")
    # Keras, say, is a dialect: its code runs on another framework's backend.
    if name in find_dialects():
        raise MultigradError(f"{name} runs on the other frameworks, and needs no backend")
    if name == "multigrad" or name in sys.stdlib_module_names:
        raise MultigradError(f"{name!r} is a module of another kind; give your framework's name")


def list_ops(rows: list[Op]) -> str:
    """Return comments that list the ops by family, each with its arguments and meaning."""
    lines = []
    for family in ops.FAMILIES:
        family_ops = [op for op in vars(family).values() if op in rows]
        if family_ops:
            title = inspect.getdoc(family) or ""
            lines += ["#", *_comment(f"--- {title.splitlines()[0]}")]
            lines += [line for op in family_ops for line in _comment(describe(op), "    ")]
    # Without the empty "#" that comes before the first family.
    return "\n".join(lines[1:])


def describe(op: Op) -> str:
    attrs = ", ".join(op.attrs)
    signature = ", ".join([*op.operands, *(["*", attrs] if attrs else [])])
    return f"{op.name}({signature}): {op.doc}"


def _comment(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent=f"# {indent}")
