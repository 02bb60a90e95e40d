"""The content of code as a digest: what functions say, and the values of all that they read.

In two processes with equal digests the same code runs on the same values. Where that cannot be told
(a tensor, an object whose state is hidden, names that are computed) there is no digest, and nothing
is kept. What an installed package defines is known by its name, the package's version and the file.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import hashlib
import inspect
import os
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ....backend.finding.discovery import entry_points
from ....capture.code.callables import wrapped_function
from ....capture.code.libraries import is_library_file
from ....capture.code.state import is_open
from ....capture.code.table import contents, nested_codes
from ....graph.ir.graph import Graph, format_graph
from ....trace.scope.identity import attributes_of, is_plain
from ..purity import ACTING_MODULES

OWN = __name__.partition(".")[0]
# Code with these may read by names that do not stand in it.
_COMPUTED = """
    __builtins__ __closure__ __code__ __dict__ __globals__ __import__ _getframe attrgetter
    currentframe eval exec getattr globals import_module locals methodcaller modules vars
"""
COMPUTED = frozenset(_COMPUTED.split())
# Code with these may read what stands in no program: a file, the environment, the time.
_OUTSIDE = """
    environ fromfile getenv load loads loadtxt memmap now open perf_counter read read_bytes
    read_text today urlopen
"""
OUTSIDE = ACTING_MODULES | set(_OUTSIDE.split())
# What Python and metaclasses put into each class, made of what stands there besides.
_OF_EACH_CLASS = """
    __annotate__ __annotate_func__ __annotations__ __dataclass_fields__ __dataclass_params__
    __dict__ __doc__ __firstlineno__ __module__ __qualname__ __static_attributes__ __weakref__
    _abc_impl _backward_cls
"""
OF_EACH_CLASS = frozenset(_OF_EACH_CLASS.split())
IN_C = (
    types.BuiltinFunctionType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
)
# Immutable values of frameworks, which their text tells.
_TOLD = "DType Layout Size TensorShape device dtype finfo iinfo layout memory_format"
TOLD = frozenset(_TOLD.split())
MOST = 20_000  # things that are looked at


class Untold(Exception):
    """The content of a value cannot be told."""


def digest_of(*values: Any) -> str | None:
    """Return the digest of functions and values; None where their content cannot be told."""
    walk = _Walk()
    try:
        for value in values:
            walk.visit(value)
        walk.visit_modules()
    except (Untold, RecursionError):
        return None
    return walk.hash.hexdigest()


class _Walk:
    """One walk through all that values refer to."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.seen: dict[int, tuple[int, Any]] = {}  # with the thing itself, or its id is reused
        self.names: set[str] = set()  # in all code so far
        self.modules: dict[str, types.ModuleType] = {}
        self.read: set[tuple[str, str]] = set()  # a module, and a name in it

    def say(self, *words: str) -> None:
        for word in words:
            data = word.encode("utf-8", "surrogatepass")
            self.hash.update(b"%d:" % len(data) + data)

    def visit(self, value: Any) -> None:
        kind = type(value)
        if is_plain(value):
            self.say(kind.__name__, repr(value))
            return
        known = self.seen.get(id(value))
        if known is not None:
            self.say("again", str(known[0]))
            return
        if len(self.seen) >= MOST:
            raise Untold
        self.seen[id(value)] = len(self.seen), value
        self.say(kind.__qualname__)
        self.visit_new(value, kind)

    def visit_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self.visit(value)

    def visit_new(self, value: Any, kind: type) -> None:
        """Look at a value that has not been met."""
        if isinstance(value, types.FunctionType):
            self.visit_function(value)
        elif kind is types.CodeType:
            self.visit_code(value)
        elif isinstance(value, types.ModuleType):
            self.visit_module(value)
        elif isinstance(value, type):
            self.visit_class(value)
        elif isinstance(value, IN_C):
            self.visit_c(value)
        elif isinstance(value, Graph):
            self.say_text(format_graph(Graph("", value.inputs, value.outputs)))
        elif (parts := parts_of(value, kind)) is not None:
            self.visit_all(parts)
        elif kind in (set, frozenset):
            self.visit_set(value)
        elif isinstance(value, np.ndarray | np.generic):
            self.visit_array(np.asarray(value), kind)
        elif kind is np.ufunc and getattr(np, value.__name__, None) is value:
            self.say(value.__name__)
        elif isinstance(value, str):  # a fact that looks itself up
            self.say(kind.__module__, str(value))
        elif kind is inspect.Signature or (kind.__name__ in TOLD and is_of_library(kind)):
            self.say_text(f"{kind.__module__} {value!r}")
        elif (inner := wrapped_function(value)) is not None:
            self.visit(inner)
        elif is_of_library(kind) and callable(value) and is_named(value):
            self.say_library(value.__module__, value.__qualname__)
        else:
            self.visit_object(value, kind)

    def say_text(self, text: str) -> None:
        if " at 0x" in text:
            raise Untold
        self.say(text)

    def visit_array(self, array: np.ndarray[Any, Any], kind: type) -> None:
        if array.dtype.hasobject or not is_of_library(kind):
            raise Untold
        self.say(array.dtype.str, str(array.shape), hashlib.sha256(array.tobytes()).hexdigest())

    def visit_set(self, values: Iterable[Any]) -> None:
        digests = [digest_of(value) for value in values]
        self.say(*sorted(each or refuse() for each in digests))

    def visit_c(self, value: Any) -> None:
        owner = getattr(value, "__self__", None)
        home = getattr(value, "__module__", None) or getattr(value, "__objclass__", None)
        self.say_text(f"{value.__qualname__} of {home}")
        self.say_library(getattr(home, "__module__", home))
        if owner is not None and not isinstance(owner, types.ModuleType):
            self.visit(owner)

    # --- code -------------------------------------------------------------------------------------

    def visit_function(self, function: types.FunctionType) -> None:
        code = function.__code__
        if is_closed(code.co_filename):
            self.say(f"{function.__qualname__}:{code.co_firstlineno}")
            self.say_library(function.__module__, code.co_filename)
            if is_named(function):  # all that it is stands in the library
                return
        else:
            self.visit(code)
            self.visit_all((function.__defaults__, function.__kwdefaults__))
            self.visit_globals(function)
        # A library's may have been made for the user's.
        self.visit_all(contents(cell) for cell in function.__closure__ or ())

    def visit_code(self, code: types.CodeType) -> None:
        if not COMPUTED.isdisjoint(code.co_names) or not OUTSIDE.isdisjoint(code.co_names):
            raise Untold
        self.names.update(code.co_names)
        self.names.update(each for each in code.co_consts if type(each) is str)
        handled: bytes = getattr(code, "co_exceptiontable", b"")  # from Python 3.11 on
        self.say(code.co_code.hex(), handled.hex())
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self.visit_all((counts, code.co_names, code.co_varnames))
        self.visit_all((code.co_freevars, code.co_cellvars, *code.co_consts))

    def visit_globals(self, function: types.FunctionType) -> None:
        codes = nested_codes(function.__code__)
        for name in dict.fromkeys(name for code in codes for name in code.co_names):
            if name in function.__globals__:
                self.visit(function.__globals__[name])
            elif not hasattr(builtins, name):
                self.say("no global")
        for name in imports_of(codes):
            module = sys.modules.get(name)
            if module is None or not is_closed_module(module):
                raise Untold  # of the user's own, found when it runs
            self.visit(module)

    # --- modules and classes ----------------------------------------------------------------------

    def visit_module(self, module: types.ModuleType) -> None:
        self.say(module.__name__)
        if is_closed_module(module):
            self.say_library(module.__name__)
        self.modules[module.__name__] = module

    def visit_modules(self) -> None:
        """Look at what the names in all code stand for in the modules that it mentions."""
        while True:
            pairs = [(m, n) for m in self.modules for n in sorted(self.names)]
            new = [p for p in pairs if p not in self.read and self.has(*p)]
            if not new:
                return
            for module, name in new:
                self.read.add((module, name))
                self.say(module, name)
                self.visit(vars(self.modules[module])[name])

    def has(self, module: str, name: str) -> bool:
        """Return whether a module has something by a name; of a library's, what others put in."""
        held = vars(self.modules[module])
        if name not in held or not is_closed_module(self.modules[module]):
            return name in held
        value = held[name]
        is_function = isinstance(value, types.FunctionType)
        return is_function and not is_closed(value.__code__.co_filename)

    def visit_class(self, kind: type) -> None:
        self.say(kind.__module__, kind.__qualname__)
        if is_of_library(kind):
            self.say_library(kind.__module__)
            return
        self.visit_all((type(kind), *kind.__bases__))
        for name in sorted(vars(kind).keys() - OF_EACH_CLASS):
            self.say(name)
            self.visit(vars(kind)[name])

    def visit_object(self, value: Any, kind: type) -> None:
        is_own = kind.__module__.partition(".")[0] in own_roots()
        if not (is_own or is_open(value)) or hasattr(value, "shape"):
            raise Untold
        if isinstance(value, list | dict | tuple):  # of a kind with more than its items
            raise Untold
        self.visit(kind)
        if is_own and hasattr(value, "recipe"):  # what it was made into so far is no content
            self.visit_all((value.recipe, value.draws.key, value._defaults))
            return
        for name, held in sorted(attributes_of(value), key=lambda row: str(row[0])):
            self.say(str(name))
            self.visit(held)

    def say_library(self, module: str | None, *words: str) -> None:
        """Say what of a library it is, and which library."""
        found = sys.modules.get(module or "")
        root = sys.modules.get((module or "").partition(".")[0])
        self.say(module or "", *words)
        if root is not None and found is not None and root.__name__ not in own_roots():
            self.say(str(getattr(root, "__version__", "")), stamp(getattr(found, "__file__", None)))


def refuse() -> str:
    """Say that something's content cannot be told."""
    raise Untold


def parts_of(value: Any, kind: type) -> tuple[Any, ...] | None:
    """Return all that a value of one of Python's own kinds consists of; None: it is of another."""
    if kind in (tuple, list):
        return (len(value), *value)
    if kind in (dict, types.MappingProxyType):
        return (len(value), *value, *value.values())
    if kind in (staticmethod, classmethod):
        return (value.__func__,)
    if kind is property:
        return (value.fget, value.fset, value.fdel)
    if kind is functools.cached_property:
        return (value.func,)
    if kind is types.MethodType:
        return (value.__func__, value.__self__)
    if kind is functools.partial:
        return (value.func, value.args, value.keywords)
    if kind in (slice, range):
        return (value.start, value.stop, value.step)
    if isinstance(value, enum.Enum):
        return (kind.__module__, value.name, value.value)
    return None


def imports_of(codes: Iterable[types.CodeType]) -> Iterator[str]:
    """Yield the modules that code imports when it runs."""
    for code in codes:
        if dis.opmap["IMPORT_NAME"] in code.co_code[::2]:
            rows = dis.get_instructions(code)
            yield from (row.argval for row in rows if row.opname == "IMPORT_NAME")


def is_named(value: Any) -> bool:
    """Return whether a library's callable is what its module has by its name."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    return isinstance(name, str) and getattr(sys.modules.get(module or ""), name, None) is value


def own_roots() -> list[str]:
    """Return our packages: the core and the backends, others' among them, as far as imported."""
    modules = [point.value.partition(":")[0] for point in entry_points().values()]
    roots = {OWN, *[module.partition(".")[0] for module in modules]}
    return sorted(root for root in roots if root in sys.modules)


def is_of_library(kind: type) -> bool:
    """Return whether a class is a library's, or Python's."""
    module = sys.modules.get(kind.__module__)
    return module is not None and is_closed_module(module)


def is_closed_module(module: types.ModuleType) -> bool:
    """Return whether a module is a library's, or Python's."""
    name = module.__name__
    if name == "__main__":
        return False
    return name.partition(".")[0] in own_roots() or is_closed(getattr(module, "__file__", None))


def is_closed(file: str | None) -> bool:
    """Return whether a source file is a library's; code that is in no file is the user's."""
    if file is not None and file.startswith("<"):
        return file.startswith("<frozen ")
    return is_library_file(file) or (file or "").startswith(own_folders(tuple(own_roots())))


@functools.lru_cache(maxsize=16)
def own_folders(roots: tuple[str, ...]) -> tuple[str, ...]:
    """Return where our packages lie, each ending in a separator."""
    found = [folder for root in roots for folder in sys.modules[root].__path__]
    return tuple(f"{folder}{os.sep}" for folder in sorted(found))


def stamp(file: str | None) -> str:
    """Return what changes where a file is written: its time and size."""
    try:
        found = os.stat(file or "")
    except OSError:
        return ""
    return f"{found.st_mtime_ns} {found.st_size}"


# Of our folders: nothing is found out by those that look at what was, and to ask for each file's
# time is half of what a first call takes.
NOT_STAMPED = ("__pycache__", "bench", "demo", "look", "testing")


def stamp_folder(folder: str) -> Iterator[str]:
    """Yield what changes where a Python file in a folder is written, added or removed."""
    with os.scandir(folder) as entries:
        rows = sorted(entries, key=lambda entry: entry.name)
    for entry in rows:
        if entry.is_dir():
            if entry.name not in NOT_STAMPED:
                yield from stamp_folder(entry.path)
        elif entry.name.endswith(".py"):
            yield f"{entry.path} {stamp(entry.path)}"


def plain_rows(values: Mapping[Any, Any]) -> tuple[Any, ...]:
    """Return named values as a tuple, in any order."""
    return tuple((str(name), values[name]) for name in sorted(values, key=str))
