"""What griffe reads of the functions of `xg.xp` that are made from rows: it reads sources, and they
have none.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import griffe

MODULE = "multigrad.core.trace.xp.ops"


class MadeFunctions(griffe.Extension):
    """Give griffe each function as it would be written out."""

    def on_module_members(self, *, mod: griffe.Module, agent: Any, **kwargs: Any) -> None:
        """Put the functions into their module, in the place of what checkers read of it."""
        if mod.path != MODULE:
            return
        mod.members.clear()
        mod.overloads.clear()
        if str(mod.filepath).endswith(".pyi"):
            return
        module = importlib.import_module(MODULE)
        functions = [getattr(module, name) for name in module.__all__]
        written = griffe.visit(
            mod.name,
            filepath=Path(str(mod.filepath)),
            code="\n".join([*map(source_of, functions), f"__all__ = {module.__all__}\n"]),
            parent=mod.parent,
            docstring_parser=agent.docstring_parser,
            docstring_options=agent.docstring_options,
            lines_collection=agent.lines_collection,
            modules_collection=agent.modules_collection,
        )
        mod.exports = written.exports
        for name, member in written.members.items():
            mod.set_member(name, member)


def source_of(function: Any) -> str:
    """Return a function's head and docstring."""
    signature = inspect.signature(function)
    head = str(signature).replace("'", "")  # its annotations are strings, its defaults are none
    return f"def {function.__name__}{head}:\n    {function.__doc__!r}\n"
