"""The parts of a dialect, for authors of backends: `from multigrad.backend import dialects`.

A dialect maps a library's functions to what each records. `named` finds functions that are an op
under another name, `like_numpy` those with the signature of a NumPy function, `Library` those with
the meaning of one of our functions in the library's own words; the rest are functions of symbolic
values, composed with `xp`. `multigrad.backend.dialects` is this module, which
`multigrad/backend/__init__.py` loads on first access.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from ....core.trace.trace import NeedsConcrete, Value
from ....core.trace.xp import all as xp
from ..dialect import (
    Calls,
    Classes,
    Dialect,
    Gradients,
    Habits,
    Names,
    State,
    Tensors,
    find_dialect,
    register_dialect,
)
from ..meanings import creation
from ..name_tables import Library, named, parse
from ..symbols import SymbolicDType, SymbolicShape, cast
from ..values import indexing, methods
from ..values.indexing import add_at
from ..values.oracle import StandInCall, TypeOracle, run_each

__all__ = [
    "Calls",
    "Classes",
    "Dialect",
    "Gradients",
    "Habits",
    "Library",
    "Names",
    "NeedsConcrete",
    "StandInCall",
    "State",
    "SymbolicDType",
    "SymbolicShape",
    "Tensors",
    "TypeOracle",
    "Value",
    "add_at",
    "cast",
    "creation",
    "indexing",
    "like_numpy",
    "methods",
    "named",
    "register_dialect",
    "run_each",
    "xp",
]


def like_numpy(names: str, library: ModuleType, **submodules: Any) -> dict[Any, Callable[..., Any]]:
    """Map functions of a library to the handlers of the NumPy functions with the same signatures.

    Args:
        names: "sum; mean; concat: concatenate" (the library's name, and NumPy's if it differs).
        submodules: modules in which to look up names that begin with this word and a dot.
    """
    numpy = find_dialect("numpy")
    assert numpy is not None
    handlers: dict[Any, Callable[..., Any]] = {}
    for entry in parse(names, f"names of {library.__name__} like NumPy's"):
        library_name, numpy_name = entry.head.name, entry.names[0].name
        room, _, name = library_name.partition(".")
        if room in submodules:
            function = getattr(submodules[room], name)
        else:
            function = getattr(library, library_name)
        if not hasattr(np, numpy_name):
            entry.refuse(f"NumPy has no function {numpy_name!r}")
        handlers[function] = numpy.names.aliases[getattr(np, numpy_name)]
    return handlers
