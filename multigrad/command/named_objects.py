"""What a command line names: modules, files and what they define, params of rules, and inputs."""

from __future__ import annotations

import ast
import importlib
import io
import pkgutil
import re
import sys
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np

import multigrad as xg
from multigrad.errors import MultigradError, suggest
from multigrad.functions.importers import find_custom
from multigrad.graph.ops.numerics import as_numpy_dtype, ignoring_warnings

SEED = 20


def split_name(what: str) -> tuple[str, str]:
    """Return the file or module before a colon and the name behind it; "" if there is no colon."""
    if what.endswith((".py", ".json")) or ":" not in what:
        return what, ""
    # An operator of torch is module:space::name; a path on Windows has a colon of its own.
    first, double_colon, last = what.partition("::")
    module, _, name = first.rpartition(":")
    return module, f"{name}{double_colon}{last}"


def read_order(rule: str, backend: str) -> tuple[str, str]:
    """Return a rule and a backend, which may come in either order."""
    backends = [row.name for row in xg.backends()]
    is_turned = rule in backends and backend not in backends
    return (backend, rule) if is_turned else (rule, backend)


def find_forward(word: str) -> Any:
    """Return an activation's name, or the function that module:name stands for."""
    module, name = split_name(word)
    return find_in(import_named(module), name) if name else word


def with_params(found: Any, words: Sequence[str]) -> Any:
    """Return a rule with params set by words such as width=2.0."""
    if not words:
        return found
    if not isinstance(found, xg.Rule):
        raise MultigradError(f"{found!r} is not a rule, so it takes no --param")
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
            raise MultigradError(f"{word!r} is not a param; write it as {example}")
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
    if getattr(sys.modules.get(path.stem), "__file__", "") == str(path):
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
    "4x6 (a float32 tensor), 4x6:int64, 6:float32 (one axis), scalar (none), 4x6:uniform (within 0 "
    "and 1), 0.5, 3, True, None, 'text', or a tuple of plain values"
)
SHAPE = re.compile(r"(?P<shape>\d+(x\d+)+|\d+(?=:)|scalar)(:(?P<kind>\w+))?")
FLOATS = ("float16", "bfloat16", "float32", "float64")
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


def draw(shape: tuple[int, ...], kind: str, generator: np.random.Generator) -> Any:
    """Return an array of normal numbers, numbers within 0 and 1, small integers or bools."""
    if kind == "uniform":
        # Away from the ends, where logarithms and divisions have poles.
        return np.asarray(generator.uniform(0.05, 0.95, shape), np.float32)
    if kind in FLOATS:
        # Drawn in float64 first, so that all dtypes get the same numbers, rounded.
        return np.asarray(generator.standard_normal(shape)).astype(as_numpy_dtype(kind))
    if kind in INTEGERS:
        return np.asarray(generator.integers(0, MOST, shape), kind)
    if kind == "bool":
        return np.asarray(generator.integers(0, 2, shape), bool)
    kinds = ", ".join((*FLOATS, *INTEGERS, "bool", "uniform"))
    raise MultigradError(f"--input: {kind!r} is not a dtype; expected one of {kinds}")


# --- the custom gradients of a package ------------------------------------------------------------
SKIPPED = ("test", "tests", "testing", "conftest", "__main__", "setup")


def find_custom_gradients(
    package: types.ModuleType,
    kinds: tuple[type, ...] = (),
    note: Callable[[str], Any] | None = None,
    skipped: Collection[str] = (),
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the custom gradients that a module or a package and its submodules define, by
    module:name; and the modules that cannot be imported, with the reason.

    Args:
        kinds: types whose objects count as custom gradients too.
        note: called with each module's name before its import, which may end the process.
        skipped: modules that are not imported.
    """
    gradients: dict[str, Any] = {}
    unimported: dict[str, str] = {}
    seen_ids: set[int] = set()

    def is_wanted(name: str) -> bool:
        # The journal is written before the import, or a crash would leave no name.
        if note is not None:
            note(name)
        return name not in skipped

    for module in _modules(package, unimported, is_wanted):
        for name, value in sorted(vars(module).items()):
            # Without `__module__` nobody knows where it was made: it counts as imported.
            home = getattr(value, "__module__", None)
            is_own = callable(value) and f"{home}.".startswith(f"{package.__name__}.")
            # One object may have several names; the first one in order stays.
            if id(value) in seen_ids or not is_own:
                continue
            if find_custom(value) is not None or isinstance(value, kinds):
                seen_ids.add(id(value))
                gradients[f"{module.__name__}:{name}"] = value
    return gradients, unimported


def _modules(
    package: types.ModuleType, unimported: dict[str, str], is_wanted: Callable[[str], bool]
) -> Iterator[types.ModuleType]:
    yield package
    path = getattr(package, "__path__", None)
    if path is None:
        return
    for info in pkgutil.iter_modules(path, f"{package.__name__}."):
        last_name = info.name.rpartition(".")[2]
        if last_name in SKIPPED or last_name.startswith("test_") or last_name.endswith("_test"):
            continue
        module = _import(info.name, unimported) if is_wanted(info.name) else None
        if module is not None:
            yield from _modules(module, unimported, is_wanted)


def _import(name: str, unimported: dict[str, str]) -> types.ModuleType | None:
    if name in sys.modules:
        return sys.modules[name]
    silent = io.StringIO()
    try:
        # Output and warnings of an import would break the table.
        with ignoring_warnings(), redirect_stdout(silent), redirect_stderr(silent):
            return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, too: scripts lie about in packages
        unimported[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return None
