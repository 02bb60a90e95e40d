"""The library that the user's code is written in, and the files that belong to libraries.

A capture asks `reading_of` before the code runs, and enters `written_in` around what runs later.
Tests: `tests/capture/user_code/test_dialect_named.py`, `tests/backend/test_libraries.py` and
`tests/capture/user_code/test_whose_methods.py`.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import types
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import metadata
from typing import Any, TypeVar

from ....core.passes.facts import LIBRARY, ON_NUMBERS, ON_TENSORS
from ....core.support.installed import required_by
from ....core.trace.source import CODE, OWN, TENSORS, Reading
from ....core.trace.trace import NeedsConcrete, setting
from ....errors import MultigradError, RuleValueError
from ...trace.code_trace import LENT, NOBODY, OPEN, CodeTrace, lend
from ..dialect import registered_dialects
from .inspection import held_around, mentioned, nested_codes, paths_in, plain_function

R = TypeVar("R")
DIALECTS = registered_dialects()  # a live view: those registered later, too


def own_root(function: Any) -> str:
    """Return the top-level package of a callable; "" if its calls reach our protocols."""
    plain = plain_function(function)
    root = ((plain.__module__ if plain else None) or "").partition(".")[0]
    dialect = DIALECTS.get(root)
    return "" if dialect is not None and dialect.calls.protocol else root


def package_of(value: Any) -> str:
    name = getattr(value, "__module__", None)
    return (name if isinstance(name, str) else type(value).__module__).partition(".")[0]


def dialect_of(function: types.FunctionType, called: str | None = None) -> str:
    """Return the import name of the likeliest array library of a function, or "".

    Args:
        called: the library of the tensors that it is called with, where that is known.
    """
    return reading_of(function, {} if called is None else {LIBRARY: called}).dialect


def names_library(function: types.FunctionType) -> bool:
    """Return whether code mentions an array library, and not `xg.xp`, which serves all."""
    packages = set(_mentioned_packages(function, set()))
    return bool(packages) and OWN not in packages


def told_library(*functions: Any) -> str:
    """Return the first library that one of the functions names, but for `xg.xp`; "" for none."""
    plain = filter(None, map(plain_function, functions))
    readings = (_read_off(each, tuple(_mentioned_packages(each, set()))) for each in plain)
    told = (libraries[0] for libraries, is_told in readings if is_told)
    return next((each for each in told if each != OWN), "")


def reading_of(
    function: types.FunctionType | None, facts: Mapping[str, Any], siblings: str = ""
) -> Reading:
    """Return how the code of a function is read as its capture begins, under these facts.

    A function whose own names tell no library, or tell several, uses the methods of the tensors
    that it is called with, whatever its file imports: the reading is open until their library is a
    fact. Where that is not known ("", as of a document), or has no such method, the file decides.

    Args:
        siblings: the library that another function of the same recipe names.
    """
    packages = () if function is None else tuple(_mentioned_packages(function, set()))
    if function is None:
        return Reading((), first_dtype_owner((), packages, facts))
    libraries, is_told = _read_off(function, packages)
    owner = first_dtype_owner(libraries, packages, facts)
    rivals = {*libraries, *(name for name in packages if name in DIALECTS)}
    # Code that asks its tensors for their namespace is the Array API's, for all libraries alike.
    is_of_all = "__array_namespace__" in function.__code__.co_names
    if is_of_all or (is_told and len(rivals) < 2):
        return Reading(libraries, owner)
    if siblings and not is_told:
        return Reading((siblings,), first_dtype_owner((siblings,), packages, facts))
    if not is_told and owner == CODE and ON_TENSORS not in facts:
        owner = TENSORS
    if LIBRARY not in facts:
        return Reading(libraries, owner, is_open=True)
    called = facts[LIBRARY]
    if called in (rivals if is_told else DIALECTS):
        typed_by = called if called in packages else next(iter(libraries), "")
        return Reading((called,), owner, typed_by=typed_by)
    return Reading(libraries, first_dtype_owner(libraries, packages, facts))


def _read_off(
    function: types.FunctionType, packages: tuple[str, ...]
) -> tuple[tuple[str, ...], bool]:
    """Return the libraries that a function may be written in, the likeliest first, and whether its
    own names tell; `packages` are those that it mentions.

    The function's own names decide, then the imports of the installed modules whose functions it
    calls, then those of its own module. NumPy's constants are used in all libraries' code, so NumPy
    decides only if no framework is mentioned; `xg.xp` decides if it is mentioned without one.
    """
    packages = tuple(dict.fromkeys(packages))
    named_frameworks = _frameworks(packages)
    # 1. The code names frameworks: it is written in one of them.
    if named_frameworks:
        return named_frameworks, True
    # 2. It names `xg.xp` and nothing else.
    if packages == (OWN,):
        return packages, True
    called = [name for each in packages if each not in DIALECTS for name in _imported_by(each)]
    called_frameworks = _frameworks(called)
    imports = _packages(function.__globals__.values())
    imported_frameworks = called_frameworks or _frameworks(imports)
    # 3. It names NumPy: NumPy's, unless all that it takes from there are constants and what it
    # calls, or its file, imports a framework. Its methods may still be such a framework's.
    has_numpy, takes_constants = "numpy" in packages, _reads_constants_only(function)
    if has_numpy and not (imported_frameworks and takes_constants):
        return ("numpy", *imported_frameworks), not takes_constants
    # 4. It names `xg.xp` beside other packages, or beside NumPy's constants.
    if OWN in packages:
        return (OWN,), True
    # 5. Its names decide nothing, but what it calls, or its file, imports frameworks.
    if imported_frameworks:
        return imported_frameworks, bool(called_frameworks)
    # 6. It names a package without a dialect.
    without_dialect = tuple(each for each in packages if each not in DIALECTS)
    if without_dialect:
        return without_dialect[:1], False
    # 7. Its file imports NumPy, or no array library at all.
    return (("numpy",) if "numpy" in imports else ()), False


def first_dtype_owner(
    libraries: tuple[str, ...], packages: Container[str], facts: Container[str] = ()
) -> str:
    """Return whose dtypes the operators of a function have as its capture begins.

    The results are states of `trace/source.py`, which lists the transitions. Code that mentions a
    framework means its dtypes (CODE), code with `xg.xp` nobody's (NOBODY), and code that mentions
    no library those of its tensors (TENSORS). NumPy's is undecided (OPEN), unless the facts say how
    an earlier capture of it ended.

    Args:
        libraries: those that it may be written in, the likeliest first.
        packages: those that it mentions.
    """
    if libraries[:1] not in ((), ("numpy",)):
        return CODE
    if OWN in packages:
        return NOBODY
    if "numpy" not in packages:
        return TENSORS
    if ON_TENSORS in facts:
        return CODE
    return LENT if ON_NUMBERS in facts else OPEN


def _reads_constants_only(function: types.FunctionType) -> bool:
    # Whether all that a function takes from NumPy are numbers and classes: `np.pi`, `np.float32`.
    # Without it: test_numbers_of_numpys_beside_methods_are_no_decision_for_numpy is refused.
    return not any(_packages((value,)) == ["numpy"] for value in _functions_read(function))


def _functions_read(function: types.FunctionType) -> Iterator[Any]:
    # What a function reads by a global name or from its closure, or from a module that it reads
    # there (`np.linalg.norm`), and may call: no classes.
    around = dict(zip(function.__code__.co_freevars, held_around(function), strict=True))
    spaces = {"LOAD_GLOBAL": function.__globals__, "LOAD_DEREF": around}
    for kind, *names in paths_in(function.__code__):
        space = spaces.get(kind, {})
        for name in names:
            value = space.get(name)
            if callable(value) and not isinstance(value, type):
                yield value
            space = vars(value) if isinstance(value, types.ModuleType) else {}


def library_for(trace: CodeTrace, method: str) -> str:
    """Return the library whose methods a tensor has, for a method that differs between libraries;
    RuleValueError if the code may be written in several.
    """
    dialect, libraries = trace.dialect, trace.reading.libraries
    if len(libraries) > 1:
        where = trace.source.location()
        names = " and ".join(libraries)
        raise RuleValueError(
            f"{trace.kind} {trace.name!r}{f' ({where})' if where else ''} uses .{method}, which "
            f"differs between the libraries that its file imports ({names}). Say which it means: "
            f"dialect={libraries[-1 if libraries[0] == 'numpy' else 0]!r}"
        )
    return dialect


def _mentioned_packages(
    function: types.FunctionType, seen: set[types.FunctionType]
) -> Iterator[str]:
    # Those that a function, its closure and its annotations mention, then those of its helpers.
    seen.add(function)
    notes = map(str, function.__annotations__.values())
    annotated = {word for note in notes for word in re.findall(r"\w+", note)}
    names = [*(name for name, _ in mentioned(function)), *sorted(annotated)]
    namespace, asked = function.__globals__, _asked_for_classes(function)
    names = [name for name in names if name not in asked or name in annotated]
    values = [namespace[name] for name in names if name in namespace]
    cell_contents = held_around(function)
    yield from _packages((*values, *cell_contents))
    yield from _libraries_of_classes((*values, *cell_contents))
    read = (value for value in _functions_read(function) if not _asks_for_class(value))
    homes = (str(getattr(value, "__module__", "")) for value in read)
    yield from filter(_imported_by, homes)
    for name in names:  # imported inside the function
        root = name.partition(".")[0]
        is_known = root in DIALECTS and root in sys.modules and name not in namespace
        # Not the attribute in `jax.numpy`.
        if is_known and (name in annotated or name in _imported_in(function)):
            yield root
    is_own = str(function.__module__).partition(".")[0] == OWN
    for value in (*cell_contents, *values):
        if isinstance(value, types.FunctionType) and value not in seen:
            if str(value.__module__).partition(".")[0] == OWN:  # a helper of ours serves all
                yield from (OWN,) if is_own else ()
            elif not is_library_file(value.__code__.co_filename):
                yield from _mentioned_packages(value, seen)
        elif isinstance(value, types.ModuleType) and _owner(value) == "user":
            yield from _packages(vars(value).values())


def _asked_for_classes(function: types.FunctionType) -> set[str]:
    # The globals by which a function asks whether a value is some framework's, and no more:
    # `isinstance(x, torch.Tensor)`. Any library's code may ask that.
    code = function.__code__
    if not any({"isinstance", "is_tensor"} & {*each.co_names} for each in nested_codes(code)):
        return set()
    asks: dict[str, bool] = {}
    for kind, name, *path in paths_in(code):
        if kind == "LOAD_GLOBAL":
            value = functools.reduce(
                lambda of, at: getattr(of, at, None), path, function.__globals__.get(name)
            )
            asks[name] = asks.get(name, True) and _asks_for_class(value)
    return {name for name, is_asking in asks.items() if is_asking}


def _asks_for_class(value: Any) -> bool:
    frameworks = (dialect for name, dialect in DIALECTS.items() if name != "numpy")
    if any(value is dialect.tensors.tensor for dialect in frameworks):
        return True
    return getattr(value, "__name__", "") == "is_tensor" and package_of(value) in DIALECTS


def _libraries_of_classes(values: Iterable[Any]) -> Iterator[str]:
    # Those whose classes what is called has, or inherits: a layer, a class of the user's with a
    # gradient of its own, `jax.jit(helper)`.
    for value in values:
        if callable(value) and not isinstance(value, types.FunctionType):
            kind = value if isinstance(value, type) else type(value)
            roots = {base.__module__.partition(".")[0] for base in type.mro(kind)}
            known = tuple(name for name in DIALECTS if name in sys.modules)
            yield from sorted(_frameworks(_dialect_with(root, known) for root in roots - {OWN}))


@functools.lru_cache(maxsize=1024)
def _dialect_with(root: str, known: tuple[str, ...]) -> str:
    # Some libraries keep classes in a package that they require.
    if root in known or root in sys.stdlib_module_names:
        return root
    return next((name for name in known if root in _requirements(name)), "")


def _imported_in(function: types.FunctionType) -> set[str]:
    return {name for kind, name, *_ in paths_in(function.__code__) if kind == "IMPORT_NAME"}


def _frameworks(packages: Iterable[str]) -> tuple[str, ...]:
    return tuple(each for each in dict.fromkeys(packages) if each in DIALECTS and each != "numpy")


def _imported_by(module: str) -> tuple[str, ...]:
    # The framework that an installed module belongs to, or else the only one that it imports.
    loaded, root = sys.modules.get(module), module.partition(".")[0]
    file = getattr(loaded, "__file__", None)
    if root in DIALECTS or file is None or root.startswith(OWN) or not is_library_file(file):
        return _frameworks((root,))
    frameworks = _frameworks(_packages(vars(loaded).values()))
    return frameworks if len(frameworks) == 1 else ()


def _packages(values: Iterable[Any]) -> list[str]:
    # The packages of modules, and of values imported from a dialect's library.
    packages = []
    for value in list(values):
        is_module = isinstance(value, types.ModuleType)
        name = value.__name__ if is_module else getattr(value, "__module__", None)
        root = name.partition(".")[0] if isinstance(name, str) else ""
        if root in DIALECTS or (is_module and _owner(value) == "library"):
            packages.append(root)
    return packages


def _owner(module: types.ModuleType) -> str:
    # "Python" is apart: libraries put functions of theirs there, as torch.distributed does in
    # `sys`.
    root = module.__name__.partition(".")[0]
    if root in sys.stdlib_module_names:
        return "Python"
    is_library = root == OWN or is_library_file(getattr(module, "__file__", None))
    return "library" if is_library else "user"


def library_of(functions: Iterable[Any], said: str, called: str | None = None) -> str:
    """Return the library that functions are written in, as their names tell."""
    plain = [each for each in map(plain_function, functions) if each is not None]
    told = said or (told_library(*plain) if len(plain) > 1 else "")
    names = [told] if told else (dialect_of(each, called) for each in plain)
    return next((name for name in names if name not in ("", OWN)), "")


def read_as_meant(
    attempt: Callable[[Mapping[str, Any]], R],
    facts: Mapping[str, Any],
    dialect: Callable[[str | None], str],
) -> R:
    """Return what an attempt to capture code gives under these facts, or where the tensors are
    nobody's, if it fails as the code of those of the call: its names may mean another library's.

    Args:
        dialect: gives the library of the code, from that of the call's tensors.
    """
    try:
        return attempt(facts)
    except NeedsConcrete:
        raise
    except Exception:
        called = facts.get(LIBRARY)
        if not called or dialect(None) == dialect(called):
            raise
        with suppress(MultigradError):
            return attempt({**facts, LIBRARY: ""})
        raise


@contextmanager
def written_in(trace: CodeTrace, libraries: tuple[str, ...]) -> Iterator[None]:
    """Read the methods that are called in this block as those of a library, or of one of several.

    Captures enter it around the user's code, once `reading_of` or the user has named libraries.
    """
    latest = trace.source.latest
    is_latest = libraries == latest.libraries
    with setting(trace, reading=replace(latest) if is_latest else Reading(libraries)):
        try:
            yield
        except NeedsConcrete:
            raise
        except Exception:
            lend(trace)  # code that leans may succeed when read as the tensors' library's
            raise
        finally:
            if is_latest:
                latest.owner = trace.reading.owner


# --- files of libraries, and of the user ----------------------------------------------------------
# Substitution copies the user's helpers and leaves libraries alone. A library is what an installer
# put into its folder, multigrad itself, which runs from a clone, too, or a known array library with
# its dependencies, wherever they are.

INSTALLED = frozenset(("site-packages", "dist-packages"))  # installers' folders
STANDARD = os.path.dirname(os.__file__)
OUR_FOLDER = os.path.dirname(os.path.abspath(sys.modules[OWN].__file__ or ""))


def is_library_file(file: str | None) -> bool:
    """Return whether a source file is not the user's."""
    # The names are part of the cache's key, so that a new dialect makes new entries.
    return file is None or file.startswith("<") or _is_installed(file, frozenset(DIALECTS))


@functools.lru_cache(maxsize=4096)
def _is_installed(file: str, known: frozenset[str]) -> bool:
    if not INSTALLED.isdisjoint(file.split(os.sep)):
        return True
    return file.startswith((f"{STANDARD}{os.sep}", f"{OUR_FOLDER}{os.sep}", *find_folders(known)))


@functools.lru_cache(maxsize=16)
def find_folders(names: frozenset[str]) -> tuple[str, ...]:
    """Return the folders of packages and of their dependencies, each ending in a separator."""
    packages = {*names, *(dependency for name in names for dependency in _requirements(name))}
    folders = {folder for name in packages for folder in package_folders(name)}
    # pip's `--target` folder holds metadata of the packages in it, so all in it is installed.
    targets = {os.path.dirname(folder) for name in names for folder in package_folders(name)}
    folders |= {t for t in targets if any(n.endswith(".dist-info") for n in _listed(t))}
    return tuple(f"{folder}{os.sep}" for folder in sorted(folders))


def package_folders(name: str) -> Iterator[str]:
    module = sys.modules.get(name)
    for path in getattr(module, "__path__", None) or ():
        yield os.path.abspath(path)


def in_package(file: str, name: str) -> bool:
    module_file = getattr(sys.modules.get(name), "__file__", None)
    return file == module_file or any(
        file.startswith(f"{f}{os.sep}") for f in package_folders(name)
    )


def _requirements(name: str) -> Iterator[str]:
    # The import names of a distribution's dependencies, as far as they equal the distributions'
    # names.
    try:
        requirements = required_by(name)
    except metadata.PackageNotFoundError:
        return
    for requirement in requirements:
        match = re.match(r"[\w.-]+", requirement)
        if match is not None and "extra ==" not in requirement:
            yield match[0].replace("-", "_")


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
