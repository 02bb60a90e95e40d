"""The interface of importers, for authors of backends: `from multigrad.backend import importers`.

`Imports.import_function` returns a recipe of a custom gradient of the framework. The test:
`tests/functions/test_imported_as_they_are.py`.

- What a recipe is: a `CodeRecipe` runs the user's code, on tensors or on symbols (`Value`) of a
  `Trace`, and returns a `Recorded`, its outputs and pullback; a `Function` is made of it, once
  (`import_once`).
- What runs user code: `run_written_in` runs it on symbols in its own dialect; an `Interception`
  passes calls of the framework's own functions to multigrad, those for which `comes_to_us` is true.
- What reads arguments: `signature_of` a function, the backend `owner_of` a value, `is_tensor`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from ...core.functions.arguments import owner_of
from ...core.functions.function import Function
from ...core.functions.parameters import signature_of
from ...core.functions.recipe import (
    ArgumentRules,
    GraphSource,
    ImportedGradient,
    OpaqueCalls,
    Options,
    Recipe,
    Recorded,
)
from ...core.trace.trace import Trace, Value
from ...errors import RuleTypeError
from ..capture.copies.run_or_import import run_written_in
from ..capture.foreign_calls import Interception, comes_to_us

__all__ = [
    "CodeRecipe",
    "Function",
    "Interception",
    "NoRuleYet",
    "Recorded",
    "Trace",
    "Value",
    "comes_to_us",
    "import_once",
    "is_tensor",
    "owner_of",
    "run_written_in",
    "signature_of",
]


class CodeRecipe:
    """The base of recipes that backends of other authors write as classes.

    Their attributes and methods are the fields of `Recipe` and of its groups, without the names of
    the groups; `functions` is a method.
    """

    name: str

    def dialect(self) -> str:
        return ""

    def functions(self) -> tuple[Any, ...]:
        return ()

    def as_recipe(self) -> Recipe:
        def named(names: Iterable[str]) -> dict[str, Any]:
            return {name: getattr(self, name) for name in names if hasattr(self, name)}

        def group(kind: Any) -> Any:
            return kind(**named(each.name for each in fields(kind)))

        grouped = {"options", "arguments", "graphs", "imported", "opaque"}
        ungrouped = {each.name for each in fields(Recipe)} - grouped - {"functions", "written_in"}
        return Recipe(
            **named(ungrouped),
            functions=self.functions(),
            written_in=self.dialect(),
            options=group(Options),
            arguments=group(ArgumentRules),
            graphs=group(GraphSource),
            imported=group(ImportedGradient) if hasattr(self, "apply") else None,
            opaque=group(OpaqueCalls) if hasattr(self, "guest_for") else None,
        )


class NoRuleYet(RuleTypeError):
    """A function is decorated as a custom gradient, but its rule has not been defined."""


@functools.lru_cache(maxsize=1024)
def import_once(
    read: Callable[[Any], Recipe | Function[..., Any]],
    function: Any,
    kind: type[Function[..., Any]] = Function,
) -> Function[..., Any]:
    """Return the Function of a custom gradient, of which `read` returns the recipe; made once.

    Backends written for multigrad 1.0.0 return the Function itself.
    """
    made = read(function)
    return made if isinstance(made, Function) else kind(made)


def is_tensor(value: object) -> bool:
    """Return whether a value is a tensor of any backend, or a symbol for one."""
    if isinstance(value, Value):
        return value.node.type.kind == "tensor"
    return owner_of(value) is not None
