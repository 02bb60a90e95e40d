"""The interface of importers, for authors of backends: `from multigrad.backend import importers`.

A recipe (`CodeRecipe`) runs the user's code on symbolic values, in its own dialect, or on tensors,
and returns a `Recorded`; `Imports.import_function` returns a recipe. An `Interception` passes calls
of the framework's own functions to multigrad while something is captured.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..capture.copies.run_or_import import run_written_in
from ..capture.foreign_calls import Interception, comes_to_us
from ..trace.trace import Trace, Value
from .calls.arguments import owner_of, signature_of
from .calls.recipe import CodeRecipe, Recorded
from .function import Function

__all__ = [
    "CodeRecipe",
    "Function",
    "Interception",
    "Recorded",
    "Trace",
    "Value",
    "comes_to_us",
    "find_imported",
    "is_tensor",
    "owner_of",
    "run_written_in",
    "signature_of",
]


@functools.lru_cache(maxsize=1024)
def find_imported(make: Callable[[Any], Function[..., Any]], function: Any) -> Function[..., Any]:
    """Return the Function that a backend makes of a custom gradient of its framework, made once."""
    return make(function)


def is_tensor(value: object) -> bool:
    if isinstance(value, Value):
        return value.node.type.kind == "tensor"
    return owner_of(value) is not None
