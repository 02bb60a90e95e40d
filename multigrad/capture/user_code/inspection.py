"""What is read off the user's code before it runs: the function that a callable runs, what that
mentions, the library that it is written in, and which files are the user's.
"""

from __future__ import annotations

import dis
import functools
import itertools
import math
import os
import re
import sys
import types
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from typing import Any

import numpy as np

from ...backend.discovery import backend_of
from ...backend.installed import required_by
from ...errors import BackendNotFound, RuleValueError
from ...graph.passes.facts import ON_NUMBERS, ON_TENSORS
from ...trace.lookups import Telling
from ...trace.source import CODE, LENT, NOBODY, OPEN, TENSORS, lend
from ...trace.trace import NeedsConcrete, Trace
from ..dialect import registered_dialects


def plain_function(function: Any) -> types.FunctionType | None:
    """Return the Python function that a callable runs, or None if it runs none."""
    while isinstance(function, partial):
        function = function.func
    if not isinstance(function, types.FunctionType | types.MethodType):
        wrapped = wrapped_function(function)
        if wrapped is not None:
            return wrapped
        # The class's own, unbound.
        function = getattr(type(function), "__call__", None)  # noqa: B004
    if isinstance(function, types.MethodType):
        function = function.__func__
    return function if isinstance(function, types.FunctionType) else None


def wrapped_function(wrapper: Any) -> types.FunctionType | None:
    """Return the Python function in an object that computes the same (`jax.jit(f)`)."""
    for dialect in registered_dialects().values():
        name = dialect.gradients.wrappers.get(type(wrapper))
        if name is not None:
            inner = getattr(wrapper, name, None)
            return inner if isinstance(inner, types.FunctionType) else wrapped_function(inner)
    if isinstance(wrapper, functools._lru_cache_wrapper):
        inner = wrapper.__wrapped__
        return inner if isinstance(inner, types.FunctionType) else None
    return None


def own_root(function: Any) -> str:
    """Return the top-level package of a callable; "" if its calls reach our protocols."""
    plain = plain_function(function)
    root = ((plain.__module__ if plain else None) or "").partition(".")[0]
    dialect = registered_dialects().get(root)
    return "" if dialect is not None and dialect.calls.protocol else root


def home(value: Any) -> str:
    """Return the top-level package that a callable comes from."""
    name = getattr(value, "__module__", None)
    return (name if isinstance(name, str) else type(value).__module__).partition(".")[0]


def method_of(value: Any) -> types.FunctionType | None:
    """Return the function in a class attribute, bare or wrapped."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    return value if isinstance(value, types.FunctionType) else None


OWN = __name__.partition(".")[0]
DIALECTS = registered_dialects()  # a live view: those registered later, too


def dialect_of(function: types.FunctionType) -> str:
    """Return the import name of the likeliest array library of a function, or ""."""
    return next(iter(readings_of(function)), "")


def names_library(function: types.FunctionType) -> bool:
    """Return whether code mentions an array library, and not `xg.xp`, which serves all."""
    roots = set(_roots(function, set()))
    return bool(roots) and OWN not in roots


def readings_of(function: types.FunctionType) -> tuple[str, ...]:
    """Return the libraries that a function may be written in, the likeliest first.

    The function's own names decide, then its module's imports. NumPy's constants are used in all
    libraries' code, so NumPy decides only if no framework is mentioned; `xg.xp` decides if it is
    mentioned without one.
    """
    roots = tuple(dict.fromkeys(_roots(function, set())))
    known = tuple([root for root in roots if root in DIALECTS and root != "numpy"])
    if known or roots == (OWN,):
        return known or roots
    around = dict.fromkeys(_packages(function.__globals__.values()))
    frameworks = tuple([root for root in around if root in DIALECTS and root != "numpy"])
    if "numpy" in roots and not (frameworks and _reads_constants_only(function)):
        return ("numpy", *frameworks)
    if OWN in roots:
        return (OWN,)
    others = tuple(root for root in roots if root not in DIALECTS)
    if frameworks:
        return frameworks
    return others[:1] or (("numpy",) if "numpy" in (*roots, *around) else ())


def whose_types(
    function: types.FunctionType | None, readings: tuple[str, ...], facts: Container[str] = ()
) -> str:
    """Return whose dtypes a function's operators have, a state of `trace/source.py`.

    Code that mentions a framework has its own; code that mentions no library has its tensors';
    NumPy leaves it open, and `xg.xp` means nobody's.
    """
    if readings[:1] not in ((), ("numpy",)):
        return CODE
    roots = set() if function is None else set(_roots(function, set()))
    if OWN in roots:
        return NOBODY
    if "numpy" not in roots:
        return TENSORS
    if ON_TENSORS in facts:
        return CODE
    return LENT if ON_NUMBERS in facts else OPEN


def _reads_constants_only(function: types.FunctionType) -> bool:
    # Whether all that a function takes from NumPy are numbers and classes: `np.pi`, `np.float32`.
    # Without it: test_numbers_of_numpys_beside_methods_are_no_decision_for_numpy is refused.
    taken: list[Any] = [v for _, v in mentioned(function) if not isinstance(v, types.ModuleType)]
    for code in nested_codes(function.__code__):
        rows = list(dis.get_instructions(code))
        for row, following in itertools.pairwise(rows):
            module = function.__globals__.get(row.argval) if row.opname == "LOAD_GLOBAL" else None
            if isinstance(module, types.ModuleType) and _packages((module,)) == ["numpy"]:
                taken.append(getattr(module, str(following.argval), None))
    return not any(
        callable(v) and not isinstance(v, type) and _packages((v,)) == ["numpy"] for v in taken
    )


def library_for(trace: Trace, method: str) -> str:
    """Return the library whose methods a tensor has, for a method that differs between libraries.

    Raises:
        RuleValueError: the code may be written in several.
    """
    libraries = trace.reading.libraries
    if len(libraries) > 1:
        where = trace.source.location()
        names = " and ".join(libraries)
        raise RuleValueError(
            f"{trace.kind} {trace.name!r}{f' ({where})' if where else ''} uses .{method}, which "
            f"differs between the libraries that its file imports ({names}). Say which it means: "
            f"dialect={libraries[-1 if libraries[0] == 'numpy' else 0]!r}"
        )
    return trace.reading.dialect


def _roots(function: types.FunctionType, seen: set[types.FunctionType]) -> Iterator[str]:
    # The packages that a function, its closure and its annotations mention, then its helpers' ones.
    seen.add(function)
    names = [name for name, _ in mentioned(function)]
    for note in function.__annotations__.values():
        names += re.findall(r"\w+", str(note))
    around = function.__globals__
    values = [around[name] for name in names if name in around]
    held = held_around(function)
    yield from _packages(values)
    yield from _packages(held)
    for name in names:  # imported inside the function
        root = name.partition(".")[0]
        if root in DIALECTS and root in sys.modules and name not in around:
            yield root
    is_own = str(function.__module__).partition(".")[0] == OWN
    for value in (*held, *values):
        if isinstance(value, types.FunctionType) and value not in seen:
            if str(value.__module__).partition(".")[0] == OWN:  # a helper of ours serves all
                yield from (OWN,) if is_own else ()
            elif not is_library_file(value.__code__.co_filename):
                yield from _roots(value, seen)
        elif isinstance(value, types.ModuleType) and _owner(value) == "user":
            yield from _packages(vars(value).values())


def _packages(values: Iterable[Any]) -> list[str]:
    # Of modules, and of values imported from a dialect's library.
    found = []
    for value in list(values):
        is_module = isinstance(value, types.ModuleType)
        name = value.__name__ if is_module else getattr(value, "__module__", None)
        root = name.partition(".")[0] if isinstance(name, str) else ""
        if root in DIALECTS or (is_module and _owner(value) == "library"):
            found.append(root)
    return found


def _owner(module: types.ModuleType) -> str:
    # "Python" is apart: libraries put functions of theirs there, as torch.distributed does in
    # `sys`.
    root = module.__name__.partition(".")[0]
    if root in sys.stdlib_module_names:
        return "Python"
    is_library = root == OWN or is_library_file(getattr(module, "__file__", None))
    return "library" if is_library else "user"


@contextmanager
def written_in(trace: Trace, libraries: tuple[str, ...]) -> Iterator[None]:
    """Let methods have the meaning of a library, or of one of several."""
    is_latest = libraries == trace.source.latest.libraries
    owner = trace.source.latest.owner if is_latest else CODE
    with trace.reading_as(libraries, owner):
        try:
            yield
        except NeedsConcrete:
            raise
        except Exception:
            lend(trace)  # code that leans may succeed when read as the tensors' library's
            raise
        finally:
            if is_latest:
                trace.source.latest.owner = trace.reading.owner


# --- what a function refers to --------------------------------------------------------------------
def mentioned(function: types.FunctionType) -> list[tuple[str, Any]]:
    """Return the global names in a function and those nested in it, with their values (None: not
    bound).
    """
    known = function.__globals__
    codes = nested_codes(function.__code__)
    return [(name, known.get(name)) for code in codes for name in code.co_names]


def contents(cell: types.CellType) -> Any:
    """Return the contents of a closure cell, or None if the cell is not bound yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def held_around(function: types.FunctionType) -> list[Any]:
    """Return the values of a function's closure variables."""
    return list(map(contents, function.__closure__ or ()))


def defaults(function: types.FunctionType) -> tuple[Any, ...]:
    return (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())


def nested_codes(code: types.CodeType) -> list[types.CodeType]:
    """Return a code object and those of the functions, lambdas and comprehensions inside it."""
    codes = [code]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            codes += nested_codes(constant)
    return codes


# --- whose file it is
# Substitution copies the user's helpers and leaves libraries alone. A library is what an installer
# put into its folder, or a known array library with its dependencies, wherever they are.

INSTALLED = frozenset(("site-packages", "dist-packages"))  # installers' folders
STANDARD = os.path.dirname(os.__file__)


def is_library_file(file: str | None) -> bool:
    """Return whether a source file is not the user's."""
    # The names are part of the cache's key, so that a new dialect makes new entries.
    return file is None or file.startswith("<") or _is_installed(file, frozenset(DIALECTS))


@functools.lru_cache(maxsize=4096)
def _is_installed(file: str, known: frozenset[str]) -> bool:
    if not INSTALLED.isdisjoint(file.split(os.sep)):
        return True
    return file.startswith((f"{STANDARD}{os.sep}", *find_folders(known)))


@functools.lru_cache(maxsize=16)
def find_folders(names: frozenset[str]) -> tuple[str, ...]:
    """Return the folders of packages and of their dependencies, each ending in a separator."""
    packages = {*names, *(needed for name in names for needed in _requirements(name))}
    folders = {folder for name in packages for folder in package_folders(name)}
    # pip's `--target` folder holds metadata of the packages in it, so all in it is installed.
    targets = {os.path.dirname(folder) for name in names for folder in package_folders(name)}
    folders |= {t for t in targets if any(n.endswith(".dist-info") for n in _listed(t))}
    return tuple(f"{folder}{os.sep}" for folder in sorted(folders))


def package_folders(name: str) -> Iterator[str]:
    """Yield the folders of an imported package."""
    module = sys.modules.get(name)
    for path in getattr(module, "__path__", None) or ():
        yield os.path.abspath(path)


def in_package(file: str, name: str) -> bool:
    """Return whether a source file is part of an imported package."""
    module_file = getattr(sys.modules.get(name), "__file__", None)
    return file == module_file or any(
        file.startswith(f"{f}{os.sep}") for f in package_folders(name)
    )


def _requirements(name: str) -> Iterator[str]:
    # The import names of a distribution's dependencies, as far as they equal the distributions'
    # names.
    try:
        rows = required_by(name)
    except metadata.PackageNotFoundError:
        return
    for row in rows:
        match = re.match(r"[\w.-]+", row)
        if match is not None and "extra ==" not in row:
            yield match[0].replace("-", "_")


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


# --- tensors of the module, the enclosing function or a default -----------------------------------
# Small ones become constants of the graph, whose values are compared anew at each call.
MOST_ELEMENTS = 1024
MOST_ITEMS = 64


class OutsideTensor(Telling):
    """The fact that gives the values of a tensor outside the code, found by the path to it."""

    read: Callable[[], Any]
    path: tuple[int, ...]

    @classmethod
    def found(cls, anchor: Any, name: str, read: Callable[[], Any], path: Any = ()) -> Any:
        """Return the fact about the result of `read`, or about an item in its nested tuples.

        `read` must keep `anchor` alive, so that no other object gets its id.
        """
        fact = cls(f"tensor {id(anchor)} {name} {path}")
        fact.read, fact.path = read, path
        return fact

    def meaning(self) -> Any:
        """Return the values as a key; None if they cannot be read."""
        value = self.read()
        for place in self.path:
            if not isinstance(value, tuple) or place >= len(value):
                return None
            value = value[place]
        return values_of(value)


def values_of(value: Any) -> Any:
    """Return a small tensor's values as a key, None for anything else."""
    try:
        tensors = backend_of(value).tensors
        if tensors.is_traced(value) or math.prod(value.shape) > MOST_ELEMENTS:
            return None
        array = np.asarray(tensors.to_numpy(value))
    except (AttributeError, BackendNotFound, NotImplementedError, RuntimeError, TypeError):
        return None
    return array.dtype.str, array.shape, array.tobytes()


def tensors_of(function: types.FunctionType) -> Iterator[tuple[Any, OutsideTensor]]:
    """Yield the tensors that a function refers to, with the facts about them."""
    namespace = function.__globals__
    for name, value in mentioned(function):
        yield from _inside(value, namespace, name, partial(namespace.get, name))
    for cell in function.__closure__ or ():
        yield from _inside(contents(cell), cell, "", partial(contents, cell))
    for value in defaults(function):
        yield from _inside(value, value, "", partial(_given, value))


def note_constants(trace: Trace, module: types.ModuleType, name: str) -> None:
    """Note a module's value: a number such as pi, or the tensors in it."""
    value = getattr(module, name)
    if type(value) is float:
        trace.source.numbers.add(value)
    tensors = _inside(value, module, name, partial(getattr, module, name, None))
    trace.memory.outside.update((id(tensor), fact) for tensor, fact in tensors)


def _given(value: Any) -> Any:
    return value


def _inside(
    value: Any, anchor: Any, name: str, read: Callable[[], Any], path: tuple[int, ...] = ()
) -> Iterator[tuple[Any, OutsideTensor]]:
    if isinstance(value, tuple) and len(value) <= MOST_ITEMS:
        for i, each in enumerate(value):
            yield from _inside(each, anchor, name, read, (*path, i))
    # A class that the code names may hold tensors as attributes or defaults.
    elif isinstance(value, type) and not path:
        if held := defaults_of(value):
            yield from _inside(held, value, "", partial(defaults_of, value))
    elif hasattr(type(value), "dtype") and hasattr(type(value), "shape") and _is_foreign(value):
        yield value, OutsideTensor.found(anchor, name, read, path)


def defaults_of(kind: type) -> tuple[Any, ...]:
    """Return the arrays among a class's attributes and constructor defaults, at most MOST_ITEMS."""
    held: list[Any] = []
    for base in kind.__mro__[:-1]:
        for name, value in list(vars(base).items()):
            function = getattr(value, "__func__", value)
            is_made = name in ("__new__", "__init__")
            held += (getattr(function, "__defaults__", None) or ()) if is_made else (value,)
    return tuple(each for each in held if hasattr(type(each), "dtype"))[:MOST_ITEMS]


def _is_foreign(value: Any) -> bool:
    # A framework's tensor; the values of NumPy's arrays are fixed at the capture.
    try:
        return backend_of(value).name != "numpy"
    except BackendNotFound:
        return False
