"""What code reads besides its arguments: globals, closure cells, defaults, and what these lead to.

A graph holds such values as constants, so they are facts (`trace/lookups.py`): a graph runs while
they are what they were, and other values are another capture. Which values there are is known from
the names in the code, not from a run of it:

    class Atan: slope = 2.0               Reads of `curve`:
    def scaled(x): return x * FACTOR        global Atan            the class itself
    def curve(x):                           global Atan, .slope    2.0
        return scaled(x) * Atan.slope       global scaled          the function itself
                                            global scaled, its code
                                            global scaled, global FACTOR

An attribute that any of the functions names counts for each of the user's own objects that they
reach, since code may pass these on. No code of the user's runs: a property is the function that it
runs, and is searched for names. Numbers, strings and arrays are compared by value, all else by
identity. Each value is looked up anew from the start of its path, so nothing is kept alive. What
belongs to a library is left out, but for Python's own containers and a module's buffers.
"""

from __future__ import annotations

import dis
import inspect
import itertools
import operator
import os
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from operator import is_
from threading import Condition
from typing import Any

from ...errors import TraceError
from ...graph.support.threads import SERIALS, set_within
from ...trace.identity import attributes_of
from ...trace.lookups import Telling, hold, note
from ..dialect import registered_dialects
from .inspection import (
    LONGEST_WORD,
    contents,
    globals_in,
    method_of,
    names_in,
    nested_codes,
    plain_function,
)
from .libraries import OWN, is_library_file
from .paths import (
    ATOMS,
    CONTAINERS,
    MISSING,
    OPEN,
    TAKES,
    Find,
    Path,
    Take,
    cell_of,
    environment_of,
    function_of,
    global_of,
    is_data,
    is_of_python,
    is_same,
    is_tensor,
    item_of,
    key_of,
    kind_of,
    length_of,
    nth_of,
    opened,
    own_names,
    referent_of,
    root_of,
    rows_of,
    step,
    stored,
    text_of,
    token_of,
    variable_of,
)
from .read_checks import Check, write_check

Latest = tuple[tuple[Find, ...], Sequence[Any], int]  # what finds, what was found, its number
MOST_ITEMS = 64  # of a container, whose items are compared one by one
MOST_OBJECTS = 256  # of a longer one, whose objects are, but for functions and classes
MOST_FLAT = 65_536  # of a still longer one, whose numbers and strings are
MOST_READS = 1024  # of one function
MOST_KEYS = 256  # of the values of one function: then they are numbered anew
DEPTH = 32
LENGTH = ("length_of", None)  # the last step of a path to a container's length
CHANGES = 2  # of a float: then it is tried as a run-time number
MOST_CHANGES = 16  # of an array: then its code runs as written, not as a graph for each value
NONE: frozenset[Any] = frozenset()
ASKING = frozenset(("getattr", "hasattr"))  # by which code reads attributes that may be missing
# By which it reads all attributes of an object.
REFLECTING = frozenset(("__dict__", "asdict", "astuple", "dir", "fields", "getmembers", "vars"))
LOOKING_UP = frozenset(("import_module", "__import__", "modules"))  # modules, by their names
IMPORT_NAME = dis.opmap["IMPORT_NAME"]
# Methods that no arithmetic calls.
NOT_CALLED = frozenset(("__new__", "__repr__", "__str__", "__set_name__", "__init_subclass__"))


class Reads(Telling):
    """The fact about all that a function reads, or an object that is called: each value by its path
    from there. Their meaning is a number, which is another for other values.
    """

    is_of_code = True
    serial: int
    anchor: Callable[[], Any]  # a weak reference, where Python offers one
    moving: frozenset[Path]  # to floats that have changed often enough to be run-time numbers
    _changes: dict[Path, int]
    # The functions that find the values; what they found last, by open paths; and the numbers of
    # what was found. Replaced as a whole, as other threads read it.
    _state: tuple[dict[Path, Find], dict[frozenset[Path], Latest], dict[Any, int]]

    @classmethod
    def of(cls, anchor: Any) -> Reads:
        """Return the fact about an anchor: always the same while that lives."""
        reads = _known.get(id(anchor))
        if reads is None or reads.anchor() is not anchor:
            name = getattr(anchor, "__qualname__", type(anchor).__name__)
            serial = next(SERIALS)
            reads = cls(f"what {name} reads #{serial}")
            reads.serial = serial
            reads.moving, reads._changes, reads._state = NONE, {}, ({}, {}, {})
            try:
                reads.anchor = weakref.ref(anchor, partial(_forget, id(anchor)))
            except TypeError:
                reads.anchor = lambda: anchor
            _known[id(anchor)] = reads
        return reads

    @property
    def finds(self) -> dict[Path, Find]:
        return self._state[0]

    def add(self, path: Path, find: Find) -> None:
        if path not in self.finds:
            if len(self.finds) >= MOST_READS:
                raise TraceError(f"{self}: more than {MOST_READS} values, too many to compare")
            self.reset({**self.finds, path: find})

    def reset(self, finds: dict[Path, Find]) -> None:
        self._state = finds, {}, {}

    def at(self, path: Path) -> Any:
        """Return the value at the end of a path now, as far as the path is given."""
        value = self.anchor()
        for kind, place in path:
            value = TAKES[kind](value, place)
        return value

    def lengths(self) -> dict[Path, int]:
        return {path: find() for path, find in self.finds.items() if path[-1] == LENGTH}

    def leave_out(self, lengths: Mapping[Path, int]) -> bool:
        """Leave out containers that have grown since: code that fills one does not read it."""
        grown = [path[:-1] for path, n in self.lengths().items() if n > lengths.get(path, n)]
        for path in grown:
            rows = self.finds.items()
            self.reset({each: find for each, find in rows if each[: len(path)] != path})
        return bool(grown)

    def meaning(self) -> int:
        hold(self)
        return self.meaning_but(LOOSE.get().get(self, NONE))

    @property
    def value(self) -> int:
        return self.meaning_but(NONE)

    def meaning_but(self, open_paths: frozenset[Path]) -> int:
        """Return the meaning, in which a float at one of these paths may be any float."""
        rows, latest, numbers = self._state
        if open_paths not in latest:
            opening = [partial(opened, f) if path in open_paths else f for path, f in rows.items()]
            latest[open_paths] = tuple(opening), [], 0
        finds, tokens, number = latest[open_paths]
        found = [token_of(find()) for find in finds]
        # The same numbers, or the same weak references: nothing has changed.
        if len(found) == len(tokens) and (
            all(map(is_, found, tokens)) or all(map(is_same, found, tokens))
        ):
            return number
        self._note_moves([*rows], tokens, found)
        if len(numbers) >= MOST_KEYS:
            numbers.clear()
        number = numbers.setdefault(tuple(map(key_of, found)), next(SERIALS))
        latest[open_paths] = finds, found, number
        return number

    def found(self, number: int, open_paths: frozenset[Path]) -> dict[Path, Any] | None:
        """Return by path what was found last; None if its number is another."""
        rows, latest, _ = self._state
        _, found, number_now = latest.get(open_paths, ((), (), None))
        return dict(zip(rows, found, strict=True)) if number_now == number else None

    def _note_moves(
        self, paths: Sequence[Path], tokens: Sequence[Any], found: Sequence[Any]
    ) -> None:
        for path, old, new in zip(paths, tokens, found, strict=False):
            if type(old) is type(new) and type(new) in (float, tuple) and old != new:
                self._changes[path] = self._changes.get(path, 0) + 1
                if self._changes[path] == CHANGES and type(new) is float:
                    self.moving |= {path}

    def refuse_moving_arrays(self) -> None:
        for path, find in self.finds.items():
            if self._changes.get(path, 0) > MOST_CHANGES and type(token_of(find())) is tuple:
                raise TraceError(
                    f"{self}: an array ({path[-1][1]!r}) that has changed more than "
                    f"{MOST_CHANGES} times; pass it as an argument"
                )


def check_of(
    numbers: Mapping[Reads, int], open_paths: Mapping[Reads, frozenset[Path]]
) -> Check | None:
    """Return a function that quickly tells whether facts have these meanings, as they had last."""
    found: list[tuple[Find, dict[Path, Any]]] = []
    for reads, number in numbers.items():
        tokens = reads.found(number, open_paths.get(reads, NONE))
        if tokens is None:
            return None
        found.append((reads.anchor, tokens))
    scope = {"MISSING": MISSING, "OPEN": OPEN, "token": token_of}
    with suppress(Exception):  # what led to a value has changed by now
        return write_check(found, TAKES, scope)
    return None


# By id. A row goes with its anchor, and keeps it alive only where Python has no weak reference.
_known: dict[int, Reads] = {}


def _forget(key: int, anchor: Any) -> None:
    # No table is left as Python ends.
    if _known and key in _known and _known[key].anchor is anchor:
        del _known[key]


# The code of the functions that the functions in capture make. One that was made is gone with its
# capture: what it reads is read by the function that made it.
MADE: ContextVar[frozenset[types.CodeType]] = ContextVar("multigrad_made", default=frozenset())


@contextmanager
def noting_reads(
    callables: Sequence[Any],
    values: Sequence[Any] = (),
    *,
    takes_defaults: bool = True,
    runs_as_written: bool = False,
) -> Iterator[None]:
    """Note, in the capture within, all that callables of the user's read besides arguments.

    Args:
        values: arguments that are no tensors and no numbers.
        takes_defaults: whether the callables' own defaults are read; else they are params.
        runs_as_written: whether their framework runs them where no graph is captured.
    """
    walk = Walk(callables, values, takes_defaults)
    facts = [each for each in walk.walk() if each.finds]
    before = [(each.meaning(), each.lengths()) for each in facts]
    if runs_as_written:
        for each in facts:
            each.refuse_moving_arrays()
    with set_within(MADE, MADE.get() | walk.made):
        yield
    for each, (meaning, lengths) in zip(facts, before, strict=True):
        note({each: each.meaning() if each.leave_out(lengths) else meaning})


# --- numbers that keep changing -------------------------------------------------------------------
# While a form is captured that serves all values of these numbers; they are its last inputs.
LOOSE: ContextVar[Mapping[Reads, frozenset[Path]]] = ContextVar(
    "multigrad_loose", default=types.MappingProxyType({})
)


# --- what there is to find ------------------------------------------------------------------------
class Walk:
    """The search for what functions read.

    Attributes:
        names: the names in the functions so far, by which they may reach attributes; `words`, the
            strings.
        anchors: the functions with which the walk begins, and objects that are called or given.
        packages: those of the functions, which count as the user's.
        made: the code of the functions that the functions make.
    """

    def __init__(
        self, callables: Sequence[Any], values: Sequence[Any], takes_defaults: bool
    ) -> None:
        self.names: set[str] = set()
        self.words: set[str] = set()
        self.anchors: dict[int, Any] = {}
        self.made: set[types.CodeType] = set()
        self._own = ("__defaults__", "__kwdefaults__") if takes_defaults else ()
        self._seen: set[int] = set()  # ids of what the walk has met
        self._reads: Any = None  # of the present anchor
        functions = [each for each in map(plain_function, callables) if each is not None]
        files = [(root_of(each.__module__), each.__code__.co_filename) for each in functions]
        self.packages = {root for root, _ in files}
        self._libraries = {root for root, file in files if is_library_file(file)}
        for value in (*callables, *values):
            while isinstance(value, partial):
                value = value.func
            owner = value.__self__ if isinstance(value, types.MethodType) else value
            for each in (owner, plain_function(value)):
                is_made = getattr(each, "__code__", None) in MADE.get()
                if each is not None and not is_made and self.is_users(each):
                    self.anchors[id(each)] = each

    def walk(self) -> list[Reads]:
        """Return the facts about all anchors; a library with more than can be compared, as where
        its own method is captured, is left out.
        """
        facts = list(map(Reads.of, self.anchors.values()))
        before = [each.finds for each in facts]
        try:
            self._search()
        except TraceError:
            if not self._libraries:
                raise
            self.packages -= self._libraries
            for each, finds in zip(facts, before, strict=True):
                each.reset(finds)
            self._search()
        return facts

    def _search(self) -> None:
        before = None
        while before != (before := len(self.names) + len(self.words)):
            self._seen = {*self.anchors}
            for anchor in self.anchors.values():
                self._reads = Reads.of(anchor)
                if isinstance(anchor, types.FunctionType):
                    self._see_function((), self._reads.anchor, anchor, self._own)
                else:
                    self._see_object((), self._reads.anchor, anchor)

    def is_users(self, value: Any) -> bool:
        """Return whether a function, class or module is the user's, or the class of an object."""
        if isinstance(value, types.ModuleType):
            module, file = value.__name__, getattr(value, "__file__", None)
        elif isinstance(value, types.FunctionType):
            inner = inspect.unwrap(value)  # a library's decorator is around it
            module, file = inner.__module__, getattr(inner, "__code__", value.__code__).co_filename
        else:
            module = (value if isinstance(value, type) else type(value)).__module__
            file = getattr(sys.modules.get(module), "__file__", None)
        root = root_of(module)
        if root.startswith(OWN) or root in registered_dialects():
            return False
        # Without a file it is Python's own, a notebook, or a module that a program has made.
        is_made = file is None and root not in sys.stdlib_module_names
        return root in self.packages or is_made or not is_library_file(file)

    def _see_function(
        self,
        path: Path,
        find: Find,
        function: types.FunctionType,
        own: Sequence[str] = ("__code__", "__defaults__", "__kwdefaults__"),
    ) -> None:
        names, words = names_in(function.__code__)
        self.made.update(nested_codes(function.__code__)[1:])
        self.names |= names
        self.words |= words
        named = globals_in(function.__code__) | (words if "globals" in names else NONE)
        for name in sorted(named):
            if name in function.__globals__:
                self._see(path, find, global_of, name, function.__globals__[name])
        self._see_modules(_modules_named(function, names, words))
        self._see_cells(path, find, function)
        for name in own:
            if (value := getattr(function, name)) is not None:
                self._see(path, find, getattr, name, value)

    def _see_cells(self, path: Path, find: Find, function: types.FunctionType) -> None:
        for i, cell in enumerate(function.__closure__ or ()):
            self._see(path, find, cell_of, i, contents(cell))

    def _see_modules(self, names: Iterable[str]) -> None:
        """See modules of the user's that are imported inside a function, or by a string."""
        for name in sorted(names):
            module = sys.modules.get(name)
            if module is not None and id(module) not in self._seen and self.is_users(module):
                self._seen.add(id(module))
                self._see_object((("module_of", name),), partial(sys.modules.get, name), module)

    def _see(self, path: Path, find: Find, take: Take, place: Any, value: Any) -> None:
        """See the value that `take` gives of what a path leads to."""
        path, find = (*path, (take.__name__, place)), step(find, take, place)
        if isinstance(value, Condition):
            return  # who waits for it is nothing that code reads
        if isinstance(value, types.ModuleType):
            self._see_object(path, find, value)
        elif type(value) in ATOMS:
            self._reads.add(path, find)
            if type(value) is str:  # a key, or the name of an attribute or a module
                self.words |= {value} if len(value) <= LONGEST_WORD else set()
                self._see_modules([value])
        elif self.is_users(plain_function(value) or value) or not _is_named(value, place):
            self._reads.add(path, find)
            if not is_tensor(value) and id(value) not in self._seen and len(path) < DEPTH:
                self._seen.add(id(value))
                self._see_inside(path, find, value)

    def _see_inside(self, path: Path, find: Find, value: Any) -> None:
        function = method_of(value) or plain_function(value)
        if function is not None and self.is_users(function):
            function_find = find if function is value else step(find, function_of, None)
            function_path = path if function is value else (*path, ("function_of", None))
            self._see_function(function_path, function_find, function)
        elif isinstance(value, types.FunctionType) and _is_of_pythons_library(value):
            self._see_cells(path, find, value)  # of singledispatch
        if isinstance(value, CONTAINERS):
            self._see_items(path, find, value)
        elif value is os.getenv:
            self._see_object((("module_of", "os"),), partial(sys.modules.get, "os"), os)
        elif isinstance(value, type(os.environ)):
            self._reads.add((*path, ("environment_of", None)), step(find, environment_of, None))
        elif isinstance(value, ContextVar):
            self._see(path, find, variable_of, None, value.get(MISSING))
        elif isinstance(value, weakref.ref):
            self._see(path, find, referent_of, None, value())
        elif isinstance(value, operator.attrgetter | operator.methodcaller):
            self.names.update(*[str(name).split(".") for name in value.__reduce__()[1]])
        elif isinstance(value, partial):
            for name in ("func", "args", "keywords"):
                self._see(path, find, getattr, name, getattr(value, name))
        elif isinstance(value, types.MethodType):
            self._see(path, find, getattr, "__self__", value.__self__)
        elif not isinstance(value, types.FunctionType):
            self._see_object(path, find, value)

    def _see_items(self, path: Path, find: Find, value: Any) -> None:
        self._reads.add((*path, LENGTH), step(find, length_of, None))
        rows = [*enumerate(rows_of(value))]
        if len(rows) > MOST_ITEMS:  # a table by names, most of which are not meant
            if len(rows) <= MOST_FLAT:
                self._reads.add((*path, ("text_of", None)), step(find, text_of, [[], ""]))
            few = len(rows) <= MOST_OBJECTS
            rows = [
                (i, (place, each))
                for i, (place, each) in rows
                if type(each) not in ATOMS
                and ((few and not callable(each)) or (type(place) is str and place in self.words))
            ]
        for i, (place, each) in rows:
            if type(place) in ATOMS:
                self._see(path, find, item_of, place, each)
            else:  # whose equality may be the user's
                self._see(path, find, nth_of, i, each)

    def _see_object(self, path: Path, find: Find, value: Any) -> None:
        """See the attributes that the functions name, of an object, a class or a module."""
        if value is os:
            if self.names & {"environ", "getenv"}:
                self._see(path, find, stored, "environ", os.environ)
            return
        if isinstance(value, type) and self.is_users(type(value)):
            self._see(path, find, kind_of, None, type(value))
        if self._is_reflected(value):
            self._reads.add((*path, ("own_names", None)), step(find, own_names, None))
        for name in sorted(self._names_of(value)):
            self._see(path, find, stored, name, stored(value, name))
        if not isinstance(value, type) and hasattr(type(value), "__getattr__"):
            self._see_fallback(path, find, value)

    def _see_fallback(self, path: Path, find: Find, value: Any) -> None:
        """See what a library's `__getattr__` finds in an object's dicts, as torch's buffers."""
        for name, rows in attributes_of(value):
            if type(rows) is dict:
                owner_path, owner_find = (*path, (stored.__name__, name)), step(find, stored, name)
                for place in sorted((self.names | self.words) & {*rows}):
                    self._see(owner_path, owner_find, item_of, place, rows[place])

    def _is_reflected(self, value: Any) -> bool:
        return not isinstance(value, types.ModuleType) and not REFLECTING.isdisjoint(self.names)

    def _names_of(self, value: Any) -> set[str]:
        """Return the names of attributes that the functions may read of a value."""
        reached = self.names | self.words
        kind = value if isinstance(value, type) else type(value)
        if isinstance(value, types.ModuleType):
            reached.add("__getattr__")
            return {n for n in reached if n in vars(value)} if self.is_users(value) else set()
        if root_of(kind.__module__).startswith(OWN):
            return set()
        bases = [base for base in kind.__mro__ if self.is_users(base)]
        own = {str(name) for name, _ in attributes_of(value)} if kind is not value else ()
        if self._is_reflected(value):
            reached.update(own)
        elif is_of_python(value):  # whose methods reach all of its data
            reached |= {name for name in own if is_data(stored(value, name))}
        names = reached & {name for owner in (own, *map(vars, bases)) for name in [*owner]}
        names |= {name for base in bases for name in [*vars(base)] if _is_called(base, name)}
        if self.is_users(value) and not ASKING.isdisjoint(self.names):
            names |= set(filter(str.isidentifier, self.words))
        if not ASKING.isdisjoint(self.names):  # by a name such as f"scale_{i}"
            names |= {
                n
                for n in own
                if any(len(w) > 1 and (n.startswith(w) or n.endswith(w)) for w in self.words)
            }
        return names


def _modules_named(
    function: types.FunctionType, names: frozenset[str], words: frozenset[str]
) -> set[str]:
    """Return the full names of modules that a function may import inside it, or look up."""
    found = {*names} if names.isdisjoint(LOOKING_UP) else {*names, *words}
    package = function.__globals__.get("__package__")
    codes = nested_codes(function.__code__)
    if package and any(IMPORT_NAME in code.co_code[::2] for code in codes):
        parents = [*itertools.accumulate(package.split("."), "{}.{}".format)]
        found |= {f"{parent}.{name}" for parent in parents for name in names}
    return found.intersection(sys.modules)


def _is_of_pythons_library(function: types.FunctionType) -> bool:
    return root_of(function.__module__) in sys.stdlib_module_names


def _is_named(value: Any, name: Any) -> bool:
    """Return whether a library's class, or a function of ours, has its own name, by an import."""
    is_own = root_of(getattr(value, "__module__", None)).startswith(OWN)
    is_fixed = isinstance(value, type) or (isinstance(value, types.FunctionType) and is_own)
    return is_fixed and value.__name__ == name


def _is_called(kind: type, name: str) -> bool:
    """Return whether Python itself calls a method of the user's, as in `x[0]` or `f(x)`."""
    is_special = name.startswith("__") and name not in NOT_CALLED
    method = method_of(vars(kind)[name]) if is_special else None
    return isinstance(method, types.FunctionType) and not method.__code__.co_filename.startswith(
        "<"
    )
