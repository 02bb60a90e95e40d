"""What a command line names: modules, files and what they define, params of rules, and inputs."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import sys
import types
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np

import multigrad as xg
from multigrad.core.ir.op import FLOATS
from multigrad.core.ops.numerics import as_numpy_dtype
from multigrad.errors import MultigradError, suggest

SEED = 20


def split_name(what: str) -> tuple[str, str]:
    """Return the file or module before a colon and the name behind it; "" if there is no colon."""
    if what.endswith((".py", ".json")) or ":" not in what:
        return what, ""
    # An operator of torch is module:space::name; a path on Windows has a colon of its own.
    first, double_colon, last = what.partition("::")
    module, _, name = first.rpartition(":")
    return module, f"{name}{double_colon}{last}"


def with_params(found: Any, words: Sequence[str]) -> Any:
    """Return a rule with params set by words such as width=2.0."""
    if not words:
        return found
    if not isinstance(found, xg.Rule):
        raise MultigradError(
            f"{found!r} is not a rule, so it takes no --param: its arguments are --input, one for "
            "each in order"
        )
    values = _split_params(words, "width=2.0")
    return found.with_params(**{name: read_value(value) for name, value in values.items()})


def read_params(words: Sequence[str]) -> dict[str, Any]:
    params = {}
    for name, values in _split_params(words, "width=0.5,1,2").items():
        parts = [read_value(value.strip()) for value in values.split(",")]
        params[name] = parts if len(parts) > 1 else parts[0]
    return params


def _split_params(words: Sequence[str], example: str) -> dict[str, str]:
    params = {}
    for word in words:
        name, _, value = word.partition("=")
        if not name.isidentifier() or not value:
            raise MultigradError(f"{word!r} is no param with its value; write it as {example}")
        params[name] = value
    return params


def read_value(word: str) -> Any:
    try:
        return ast.literal_eval(word)
    except (SyntaxError, ValueError):
        return word


def import_named(name: str) -> types.ModuleType:
    """Import a module, which may be in the current folder, or a file."""
    path = Path(name)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise MultigradError(f"there is no file {name}")
    folder = str(path.parent) if is_file else ""  # as python -m has it: the current folder
    sys.path.insert(0, folder)
    try:
        return _import_file(path) if is_file else importlib.import_module(name)
    except Exception as error:
        if is_file or not isinstance(error, ModuleNotFoundError):
            message = f"{type(error).__name__}: {error}"
            raise MultigradError(f"{name} cannot be imported: {message}") from error
        # The module itself was found, and a module that it imports was not.
        if not f"{name}.".startswith(f"{error.name}."):
            raise MultigradError(f"{name} needs {error.name}, which is not installed") from error
        parent, _, last_name = name.rpartition(".")
        hint = ""
        # The missing module's siblings: their names are the likely ones.
        with suppress(AttributeError, ImportError):
            path_of_parent = importlib.import_module(parent).__path__ if parent else None
            hint = suggest(last_name, (info.name for info in pkgutil.iter_modules(path_of_parent)))
        raise MultigradError(
            f"there is no module {name!r} here; name it as in an import{hint}"
        ) from error
    finally:
        sys.path.remove(folder)


def _import_file(path: Path) -> types.ModuleType:
    if getattr(sys.modules.get(path.stem), "__file__", "") == str(path.absolute()):
        return sys.modules[path.stem]
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # of any .py file
    # In sys.modules before it runs, as importlib does: dataclasses look themselves up there.
    module = sys.modules[path.stem] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def find_in(module: types.ModuleType, name: str) -> Any:
    obj: Any = module
    for part in name.split("."):
        if not hasattr(obj, part):
            owner = module.__name__ if obj is module else f"{module.__name__}:{name}"
            raise MultigradError(f"{owner} has no {part!r}{suggest(part, vars(obj))}")
        obj = getattr(obj, part)
    return obj


FORMS = (
    "4x6 (a float32 tensor), 4x6:int64, 6:float32 (one axis), scalar or scalar:1..2 (none), "
    "4x6:uniform (within 0 and 1), 4x6:1..5 (within 1 and 5), 0.5 (a number, of which no gradient "
    "is compared), 3, True, None, 'text', or a tuple of plain values"
)
SHAPE = re.compile(r"(?P<shape>\d+(x\d+)+|\d+(?=:)|scalar)(:(?P<kind>[\w.-]+))?")
BOUNDS = re.compile(r"(-?\d+\.?\d*)\.\.(-?\d+\.?\d*)")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")
MOST = 3  # integers are below: small enough to be indices


def read_inputs(words: Sequence[str], dtype: str = "float32") -> list[Any]:
    """Return arrays and plain values; an array without a dtype of its own is of the given one."""
    generator = np.random.default_rng(SEED)
    return [read_input(word, generator, dtype) for word in words]


def read_input(word: str, generator: np.random.Generator, dtype: str = "float32") -> Any:
    match = SHAPE.fullmatch(word.strip())
    if match is None:
        try:
            return ast.literal_eval(word.strip())
        except (SyntaxError, ValueError) as error:
            raise MultigradError(f"--input {word!r} is not a value; write {FORMS}") from error
    shape = () if match["shape"] == "scalar" else tuple(map(int, match["shape"].split("x")))
    return draw(shape, match["kind"] or dtype, generator)


def number_hints(words: Sequence[str]) -> list[str]:
    """Return hints for a call that fails: which of the words are read as numbers, not shapes."""
    return [f"{n} is a number, {n}:float32 is a tensor" for n in words if n.isdigit()]


def draw(shape: tuple[int, ...], kind: str, generator: np.random.Generator) -> Any:
    """Return an array of normal numbers, numbers within bounds, small integers or bools."""
    bounds = BOUNDS.fullmatch("0..1" if kind == "uniform" else kind)
    if bounds is not None:
        low, high = sorted(map(float, bounds.groups()))
        # Away from the ends, where logarithms and divisions have poles.
        numbers = generator.uniform(0.95 * low + 0.05 * high, 0.05 * low + 0.95 * high, shape)
        return np.asarray(numbers, np.float32)
    if kind in FLOATS:
        # Drawn in float64 first, so that all dtypes get the same numbers, rounded.
        return np.asarray(generator.standard_normal(shape)).astype(as_numpy_dtype(kind))
    if kind in INTEGERS:
        return np.asarray(generator.integers(0, MOST, shape), kind)
    if kind == "bool":
        return np.asarray(generator.integers(0, 2, shape), bool)
    kinds = ", ".join((*FLOATS, *INTEGERS, "bool", "uniform", "1..5"))
    raise MultigradError(f"--input: {kind!r} is not a dtype; expected one of {kinds}")
