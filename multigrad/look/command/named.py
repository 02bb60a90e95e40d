"""What a command line names: an object of a module, a saved file, a Function of the library, or a
registered rule.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import multigrad as xg
from multigrad.errors import MultigradError, suggest
from multigrad.graph.support.trees import optree
from multigrad.look.subject import as_float, subject_of
from multigrad.look.subject import make_inputs as inputs_of

SEED = 20


def find(what: str, forward: str | None = None) -> Any:
    """Return the object that a word names, a rule put under an activation where one is given.

    Raises:
        MultigradError: there is none.
        OSError: the file cannot be read.
    """
    found = _find(what)
    if forward is None:
        return found
    if isinstance(found, xg.Function):
        raise MultigradError(
            f"{what} is a Function, which has a forward of its own; leave --forward out"
        )
    return xg.activation(find_forward(forward), rule=found)


def read_order(rule: str, backend: str) -> tuple[str, str]:
    """Return a rule and a backend, which people name in either order."""
    backends = [row.name for row in xg.backends()]
    is_turned = rule in backends and backend not in backends
    return (backend, rule) if is_turned else (rule, backend)


def find_forward(word: str) -> Any:
    """Return an activation's name, or the function that module:name stands for.

    Raises:
        MultigradError: there is none.
    """
    module, colon, name = word.rpartition(":")
    return find_in(import_named(module), name) if colon else word


def with_params(found: Any, words: Sequence[str]) -> Any:
    """Return a rule with the params that words say: width=2.0.

    Raises:
        MultigradError: what was found is no rule, or a word is no param.
    """
    if not words:
        return found
    if not isinstance(found, xg.Rule):
        raise MultigradError(f"{found!r} is not a rule, so it takes no --param")
    params = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name.isidentifier():
            raise MultigradError(f"{word!r} is not a param; write it as width=2.0")
        try:
            params[name] = ast.literal_eval(value)
        except (SyntaxError, ValueError):
            params[name] = value
    return found.with_params(**params)


def _find(what: str) -> Any:
    if Path(what).suffix == ".json" or (Path(what).is_file() and ":" not in what):
        return xg.load(what)
    module, colon, name = what.rpartition(":")
    if not colon and what.startswith("estimators."):
        return find_in(xg.estimators, what.removeprefix("estimators."))
    if not colon:
        return xg.get(what)
    return find_in(import_named(module), name)


def import_named(name: str) -> types.ModuleType:
    """Import a module, one of the current folder too.

    Raises:
        MultigradError: there is none of that name, or it cannot be imported.
    """
    sys.path.insert(0, "")  # as python -m has it: modules of the current folder
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise MultigradError(f"{name} needs {error.name}, which is not installed") from error
        raise MultigradError(
            f"there is no module {name!r} here; name it as in an import{_suggest_module(name)}"
        ) from error
    except Exception as error:
        raise MultigradError(
            f"{name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    finally:
        sys.path.remove("")


def _suggest_module(name: str) -> str:
    """Return a module whose name is close, among the neighbors of one that is not there."""
    parent, _, last = name.rpartition(".")
    try:
        path = importlib.import_module(parent).__path__ if parent else None
    except (AttributeError, ImportError):
        return ""
    return suggest(last, (info.name for info in pkgutil.iter_modules(path)))


def find_in(module: types.ModuleType, name: str) -> Any:
    """Return what a module holds under a name, perhaps a dotted one.

    Raises:
        MultigradError: there is nothing.
    """
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            owner = module.__name__ if found is module else f"{module.__name__}:{name}"
            raise MultigradError(f"{owner} has no {part!r}{suggest(part, vars(found))}")
        found = getattr(found, part)
    return found


def make_inputs(
    shapes: Sequence[str] | None,
    numbers: Sequence[float] | None,
    dtype: str = "float64",
    found: Any = None,
) -> list[Any]:
    """Return normal numbers of the shapes, then the numbers; without a shape what `found` is tried
    with.

    Raises:
        MultigradError: a word is no shape.
    """
    if not shapes:
        if numbers:
            raise MultigradError("--number needs the shapes of the tensors as well: --input 3x4")
        return [] if found is None else make_default_inputs(found, dtype)
    generator = np.random.default_rng(SEED)
    arrays = [as_float(generator.standard_normal(read_shape(word)), dtype) for word in shapes]
    return [*arrays, *(numbers or ())]


def make_default_inputs(found: Any, dtype: str) -> list[Any]:
    """Return what an object is tried with where no inputs are given, floats in a dtype."""
    own = inputs_of(subject_of(found))
    return optree.tree_map(  # type: ignore[return-value]
        lambda leaf: as_float(leaf, dtype) if isinstance(leaf, np.ndarray) else leaf,
        list(own),
        none_is_leaf=True,
    )


def read_shape(word: str) -> tuple[int, ...]:
    """Return a shape written as 3x4; "scalar" has no axes."""
    if word == "scalar":
        return ()
    parts = word.lower().split("x")
    if not all(part.isdigit() for part in parts):
        raise MultigradError(f"{word!r} is not a shape; write it as 3x4, or scalar")
    return tuple(map(int, parts))
