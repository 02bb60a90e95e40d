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
runs, and is searched for names. Numbers and strings are compared by value, all else by identity.
Each value is looked up anew from the start of its path, so nothing is kept alive. Tensors of
frameworks have facts of their own (`inspection.py`), and what belongs to a library is left out.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import is_dataclass
from functools import partial
from operator import is_
from typing import Any

import numpy as np

from ...errors import TraceError
from ...graph.support.threads import SERIALS, set_within
from ...trace.identity import Same, attributes_of, value_key
from ...trace.lookups import Telling, hold, note
from ..dialect import registered_dialects
from .inspection import (
    MOST_ELEMENTS,
    contents,
    method_of,
    names_in,
    nested_codes,
    plain_function,
    values_of,
)
from .libraries import OWN, is_library_file

Path = tuple[tuple[str, Any], ...]  # to a value: ("global_of", "Atan"), ("stored", "slope")
Find = Callable[[], Any]
Latest = tuple[tuple[Find, ...], list[Any], int]  # what finds, what was found, and its number
Take = Callable[[Any, Any], Any]
MOST_ITEMS = 64  # of a container, whose items are compared one by one
MOST_FLAT = 4096  # of a longer one, whose numbers and strings are compared as text
MOST_READS = 1024  # of one function
MOST_KEYS = 256  # of the values of one function: then they are numbered anew
DEPTH = 32
LENGTH = ("length", None)  # the last step of a path to a container's length
CHANGES = 2  # of a float: then it is tried as a run-time number
NONE: frozenset[Any] = frozenset()
ASKING = frozenset(("getattr", "hasattr"))  # by which code reads attributes that may be missing
# Methods that no arithmetic calls.
NOT_CALLED = frozenset(("__new__", "__repr__", "__str__", "__set_name__", "__init_subclass__"))
bases_of = type.__dict__["__mro__"].__get__  # whatever a class of classes does
MISSING = type("Missing", (), {})()
OPEN = type("Open", (), {})()
ATOMS = frozenset((type(OPEN), float, int, bool, str, bytes, complex, type(None), type(MISSING)))
LISTS = (list, tuple, deque)
CONTAINERS = (dict, *LISTS)
WRAPPED = (staticmethod, classmethod, property, functools.cached_property)


class Reads(Telling):
    """The fact about all that a function reads, or an object that is called: each value by its path
    from there. Their meaning is a number, which is another for other values.
    """

    is_of_code = True
    serial: int
    has_tensors = False  # whether frameworks' small tensors are compared by value, as in rules
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
            opened = [partial(_opened, f) if path in open_paths else f for path, f in rows.items()]
            latest[open_paths] = tuple(opened), [], 0
        finds, tokens, number = latest[open_paths]
        token = _token_or_values if self.has_tensors else _token
        found = [token(find()) for find in finds]
        # The same numbers, or the same weak references: nothing has changed.
        if len(found) == len(tokens) and all(map(is_, found, tokens)):
            return number
        self._note_moves([*rows], tokens, found)
        if len(numbers) >= MOST_KEYS:
            numbers.clear()
        number = numbers.setdefault(tuple(map(_key, found)), next(SERIALS))
        latest[open_paths] = finds, found, number
        return number

    def _note_moves(self, paths: list[Path], tokens: list[Any], found: list[Any]) -> None:
        for path, old, new in zip(paths, tokens, found, strict=False):
            if type(old) is type(new) is float and old != new:
                self._changes[path] = self._changes.get(path, 0) + 1
                if self._changes[path] == CHANGES:
                    self.moving |= {path}


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
    callables: Sequence[Any], values: Sequence[Any] = (), *, takes_defaults: bool = True
) -> Iterator[None]:
    """Note, in the capture within, all that callables of the user's read besides arguments.

    Args:
        values: arguments that are no tensors and no numbers.
        takes_defaults: whether the callables' own defaults are read; else they are params.
    """
    walk = Walk(callables, values, takes_defaults)
    facts = [each for each in walk.walk() if each.finds]
    for each in facts:
        each.has_tensors |= not takes_defaults  # Functions have facts of their own for these
    before = [(each.meaning(), each.lengths()) for each in facts]
    with set_within(MADE, MADE.get() | walk.made):
        yield
    for each, (meaning, lengths) in zip(facts, before, strict=True):
        note({each: each.meaning() if each.leave_out(lengths) else meaning})


# --- numbers that keep changing -------------------------------------------------------------------
# While a form is captured that serves all values of these numbers; they are its last inputs.
LOOSE: ContextVar[Mapping[Reads, frozenset[Path]]] = ContextVar(
    "multigrad_loose", default=types.MappingProxyType({})
)


# --- how values are found, and compared -----------------------------------------------------------
def _token(value: Any) -> Any:
    """Return an object that is the same while a value is, and that keeps no other alive."""
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is types.FunctionType or isinstance(value, type):
        return weakref.ref(value)
    if isinstance(value, np.ndarray) and value.size <= MOST_ELEMENTS and not value.dtype.hasobject:
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, set | frozenset):
        return frozenset(map(value_key, value))
    if isinstance(value, WRAPPED):
        return weakref.ref(method_of(value) or kind)
    # What these hold has paths of its own; and tensors have facts of their own.
    if isinstance(value, CONTAINERS) or is_record(value) or is_tensor(value):
        return weakref.ref(kind)
    try:
        return weakref.ref(value)
    except TypeError:
        # Of libraries' objects: they lead to nothing of the user's.
        root = _root(kind.__module__)
        is_plain = root in sys.stdlib_module_names or root in registered_dialects()
        return value if is_plain else weakref.ref(kind)


def _token_or_values(value: Any) -> Any:
    is_held = type(value) not in ATOMS and is_tensor(value)
    return (values_of(value) if is_held else None) or _token(value)


def _key(token: Any) -> Any:
    if type(token) is weakref.ref:
        return Same(token())
    return token if type(token) in (tuple, frozenset) else value_key(token)


def is_record(value: Any) -> bool:
    """Return whether an object is what it holds, so that an equal one may take its place."""
    return isinstance(value, types.SimpleNamespace) or is_dataclass(type(value))


def is_tensor(value: Any) -> bool:
    kind = type(value)
    return hasattr(kind, "dtype") and hasattr(kind, "shape") and kind.__module__ != "numpy"


def global_of(function: types.FunctionType, name: str) -> Any:
    return function.__globals__.get(name, MISSING)


def cell_of(function: types.FunctionType, place: int) -> Any:
    return contents((function.__closure__ or ())[place])


def stored(owner: Any, name: str) -> Any:
    """Return an attribute as it is stored, without running code of the user's; or MISSING."""
    kind = owner
    if not isinstance(owner, type):
        kind = type(owner)
        try:
            return object.__getattribute__(owner, "__dict__")[name]
        except (AttributeError, KeyError):
            pass
    for base in bases_of(kind):
        value = base.__dict__.get(name, MISSING)
        if value is not MISSING:
            if kind is owner or type(value) is not types.MemberDescriptorType:
                return value
            with suppress(AttributeError):  # a slot without a value
                return value.__get__(owner)
    return MISSING


def item_of(container: Any, place: Any) -> Any:
    if isinstance(container, dict):
        return dict.get(container, place, MISSING)
    try:
        return container[place] if isinstance(container, LISTS) else MISSING
    except IndexError:  # it has become shorter
        return MISSING


def nth_of(container: Any, n: int) -> Any:
    rows = dict.values(container) if isinstance(container, dict) else container
    return next(itertools.islice(rows, n, None), MISSING)


def length_of(container: Any, _: None) -> int:
    return len(container) if isinstance(container, CONTAINERS) else -1


def text_of(container: Any, _: None) -> Any:
    """Return a long container as text, as long as it holds numbers and strings alone."""
    items = container.items() if isinstance(container, dict) else enumerate(container)
    return repr([row for row in items if type(row[1]) in ATOMS])


def kind_of(value: Any, _: None) -> type:
    return type(value)


def environment_of(environ: Any, _: None) -> Any:
    return frozenset(stored(environ, "_data").items())


def function_of(value: Any, _: None) -> Any:
    return method_of(value) or plain_function(value) or MISSING


def variable_of(variable: ContextVar[Any], _: None) -> Any:
    return variable.get(MISSING)


def module_of(_: Any, name: str) -> Any:
    return sys.modules.get(name, MISSING)


STARTS = (global_of.__name__, cell_of.__name__)  # steps from a function
TAKES: dict[str, Take] = {
    take.__name__: take
    for take in (
        *(global_of, cell_of, stored, item_of, getattr),
        *(function_of, kind_of, module_of, nth_of, variable_of),
    )
}


def _opened(find: Find) -> Any:
    value = find()
    return OPEN if type(value) is float else value


def step(find: Find, take: Callable[[Any, Any], Any], place: Any) -> Find:
    """Return a function that finds what `take` gives of what another finds."""

    def find_next() -> Any:
        owner = find()
        return MISSING if owner is MISSING or owner is None else take(owner, place)

    return find_next


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
        files = [(_root(each.__module__), each.__code__.co_filename) for each in functions]
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
        while before != (before := len(self.names)):
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
            module, file = value.__module__, value.__code__.co_filename
        else:
            module = (value if isinstance(value, type) else type(value)).__module__
            file = getattr(sys.modules.get(module), "__file__", None)
        root = _root(module)
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
        for name in sorted(names | words if "globals" in names else names):
            if name in function.__globals__:
                self._see(path, find, global_of, name, function.__globals__[name])
            elif self.is_users(module := sys.modules.get(name)):  # imported inside the function
                self._see_object((("module_of", name),), partial(sys.modules.get, name), module)
        for i, cell in enumerate(function.__closure__ or ()):
            self._see(path, find, cell_of, i, contents(cell))
        for name in own:
            if (value := getattr(function, name)) is not None:
                self._see(path, find, getattr, name, value)

    def _see(self, path: Path, find: Find, take: Take, place: Any, value: Any) -> None:
        """See the value that `take` gives of what a path leads to."""
        path, find = (*path, (take.__name__, place)), step(find, take, place)
        if isinstance(value, types.ModuleType):
            self._see_object(path, find, value)
        elif type(value) in ATOMS:
            self._reads.add(path, find)
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
        if isinstance(value, CONTAINERS):
            self._see_items(path, find, value)
        elif isinstance(value, type(os.environ)):
            self._reads.add((*path, ("all", None)), step(find, environment_of, None))
        elif isinstance(value, ContextVar):
            self._see(path, find, variable_of, None, value.get(MISSING))
        elif isinstance(value, partial):
            for name in ("func", "args", "keywords"):
                self._see(path, find, getattr, name, getattr(value, name))
        elif isinstance(value, types.MethodType):
            self._see(path, find, getattr, "__self__", value.__self__)
        elif not isinstance(value, types.FunctionType):
            self._see_object(path, find, value)

    def _see_items(self, path: Path, find: Find, value: Any) -> None:
        self._reads.add((*path, LENGTH), step(find, length_of, None))
        rows = [*(value.items() if isinstance(value, dict) else enumerate(value))]
        if len(rows) <= MOST_ITEMS:
            for i, (place, each) in enumerate(rows):
                if type(place) in ATOMS:
                    self._see(path, find, item_of, place, each)
                else:  # whose equality may be the user's
                    self._see(path, find, nth_of, i, each)
        elif len(rows) <= MOST_FLAT:
            self._reads.add((*path, ("text_of", None)), step(find, text_of, None))

    def _see_object(self, path: Path, find: Find, value: Any) -> None:
        """See the attributes that the functions name, of an object, a class or a module."""
        if value is os:
            if self.names & {"environ", "getenv"}:
                self._see(path, find, stored, "environ", os.environ)
            return
        reached = self.names | self.words
        if isinstance(value, types.ModuleType):
            names = reached & vars(value).keys() if self.is_users(value) else set[str]()
        else:
            kind = value if isinstance(value, type) else type(value)
            if _root(kind.__module__).startswith(OWN):
                return
            bases = [base for base in kind.__mro__ if self.is_users(base)]
            own = {str(name) for name, _ in attributes_of(value)} if kind is not value else ()
            names = reached & {name for owner in (own, *map(vars, bases)) for name in owner}
            names |= {name for base in bases for name in vars(base) if _is_called(base, name)}
            if kind is value and self.is_users(type(value)):
                self._see(path, find, kind_of, None, type(value))
        if self.is_users(value) and not ASKING.isdisjoint(self.names):
            names |= set(filter(str.isidentifier, self.words))
        for name in sorted(names):
            self._see(path, find, stored, name, stored(value, name))


def _root(module: str | None) -> str:
    return (module or "").partition(".")[0]


def _is_named(value: Any, name: Any) -> bool:
    """Return whether a library's class, or a function of ours, has its own name, by an import."""
    is_own = _root(getattr(value, "__module__", None)).startswith(OWN)
    is_fixed = isinstance(value, type) or (isinstance(value, types.FunctionType) and is_own)
    return is_fixed and value.__name__ == name


def _is_called(kind: type, name: str) -> bool:
    """Return whether Python itself calls a method of the user's, as in `x[0]` or `f(x)`."""
    method = vars(kind)[name] if name.startswith("__") and name not in NOT_CALLED else None
    return isinstance(method, types.FunctionType) and not method.__code__.co_filename.startswith(
        "<"
    )
