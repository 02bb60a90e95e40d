"""The values that code can reach besides its arguments, each with the path that leads to it.

They are known from the names in the code, not from a run of it. An attribute that any of the
functions names counts for each of the user's own objects that they reach, since code may pass
these on. No code of the user's runs: a property is the function that it runs, and is searched for
names. What belongs to a library is left out, but for Python's own containers, a module's buffers,
and the data of objects whose methods the code may call.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import itertools
import operator
import os
import sys
import types
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from threading import Condition
from typing import Any

from ....core.functions.function import FunctionBase
from ....core.rules.rule import Rule
from ....core.support.threads import set_within
from ....core.trace.lookups import note
from ....errors import TraceError
from ...trace.contents import attributes_of
from ..dialect import registered_dialects
from .inspection import (
    contents,
    globals_in,
    method_of,
    names_in,
    nested_codes,
    plain_function,
    words_of,
)
from .libraries import OWN, is_library_file
from .object_state import is_variable
from .paths import (
    ATOMS,
    CONTAINERS,
    MAPPINGS,
    MISSING,
    SETS,
    VIEWS,
    WITHOUT_DATA,
    Find,
    Path,
    Take,
    base_of,
    bases_of,
    cell_of,
    environment_of,
    function_of,
    global_of,
    is_data,
    is_of_python,
    is_tensor,
    item_of,
    key_at,
    kind_of,
    length_of,
    nth_of,
    order_of,
    origin_of,
    own_names,
    referent_of,
    root_of,
    rows_of,
    step,
    stored,
    text_of,
    variable_of,
)
from .reads import LENGTH, NONE, Reads

MOST_ITEMS = 64  # of a container, whose items are compared one by one
MOST_OBJECTS = 256  # of a longer one, whose objects are, but for functions and classes
MOST_FLAT = 65_536  # of a still longer one, whose numbers and strings are
DEPTH = 32
ASKING = frozenset(("getattr", "hasattr"))  # by which code reads attributes that may be missing
# By which it goes on where a name or an attribute is missing.
CATCHING = frozenset(("AttributeError", "BaseException", "Exception", "NameError"))
# By which it may meet the keys of a mapping in their order, besides loops ("for": in a string).
_ORDERED = "enumerate for items iter keys list map next reversed tuple values"
ORDERED = frozenset(_ORDERED.split())
# By which it reads a file at a path.
READING_FILES = frozenset(("exists", "is_dir", "is_file", "open", "read_bytes", "read_text"))
SETTINGS = ("grad", "requires_grad")  # of a tensor, besides its values
# By which it reads all attributes of an object.
REFLECTING = frozenset(("__dict__", "asdict", "astuple", "dir", "fields", "getmembers", "vars"))
LOOKING_UP = frozenset(("import_module", "__import__", "modules"))  # modules, by their names
# The parts of a custom gradient, by which its framework finds them: they may be replaced.
GIVEN_TO_FRAMEWORKS = {"bwd", "fwd", "jvp"}
IMPORT_NAME = dis.opmap["IMPORT_NAME"]
BUILTIN = (type, types.BuiltinFunctionType, types.NotImplementedType, types.EllipsisType, bool)
WITH_ITEMS = (*CONTAINERS, *SETS)
# Methods that no arithmetic calls.
NOT_CALLED = frozenset(("__repr__", "__str__", "__set_name__", "__init_subclass__"))


# The code of the functions that the functions in capture make. One that was made is gone with its
# capture: what it reads is read by the function that made it.
MADE: ContextVar[frozenset[types.CodeType]] = ContextVar("multigrad_made", default=frozenset())


def find_reads(
    callables: Sequence[Any],
    values: Sequence[Any] = (),
    *,
    takes_defaults: bool = True,
    runs_as_written: bool = False,
    owner: Any = None,
) -> Walk:
    """Find all that callables of the user's read besides arguments; TraceError if that is more than
    can be compared, or none that can be.

    Args:
        values: arguments that are no tensors and no numbers.
        takes_defaults: whether the callables' own defaults are read; else they are params.
        runs_as_written: whether their framework runs them where no graph is captured.
        owner: an object by whose attributes a framework finds the callables.
    """
    walk = Walk(callables, values, takes_defaults)
    if owner is not None:
        walk.anchors[id(owner)] = owner
        walk.names |= GIVEN_TO_FRAMEWORKS
    walk.search()
    if runs_as_written:
        for each in walk.facts:
            each.refuse_moving_arrays()
    return walk


@contextmanager
def noting_reads(walk: Walk) -> Iterator[None]:
    """Note, in the capture within, what was found."""
    before = [(each.meaning(), each.lengths()) for each in walk.facts]
    with set_within(MADE, MADE.get() | walk.made):
        yield
    for each, (meaning, lengths) in zip(walk.facts, before, strict=True):
        note({each: each.meaning() if each.leave_out(lengths) else meaning})


class Walk:
    """The search for what functions read.

    Attributes:
        names: the names in the functions so far, by which they may reach attributes; `words`, the
            strings.
        anchors: the functions with which the walk begins, and objects that are called or given.
        packages: those of the functions, which count as the user's.
        made: the code of the functions that the functions make.
        facts: what was found, by anchor.
    """

    def __init__(
        self, callables: Sequence[Any], values: Sequence[Any], takes_defaults: bool
    ) -> None:
        self.names: set[str] = set()
        self.words: set[str] = set()
        self.anchors: dict[int, Any] = {}
        self.made: set[types.CodeType] = set()
        self.facts: list[Reads] = []
        self._is_wide = True  # libraries' objects and missing names, too
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

    def search(self) -> None:
        """Find the facts about all anchors. Of what is more than can be compared, data of
        libraries' objects and missing names are left out, then a library whose own method is
        captured.
        """
        facts = list(map(Reads.of, self.anchors.values()))
        before = [each.finds for each in facts]
        while True:
            try:
                self._search()
                self.facts = [each for each in facts if each.finds]
                return
            except TraceError:
                if self._is_wide:
                    self._is_wide = False
                elif self._libraries & self.packages:
                    self.packages -= self._libraries
                else:
                    raise
            for each, finds in zip(facts, before, strict=True):
                each.reset(finds)

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
        named |= names if "eval" in names else NONE
        for name in sorted(named):
            if name in function.__globals__ or self._catches:
                self._see(path, find, global_of, name, global_of(function, name))
            elif not isinstance(value := getattr(builtins, name, len), BUILTIN):  # a program's own
                module = (("module_of", "builtins"),), partial(sys.modules.get, "builtins")
                self._see(*module, stored, name, value)
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
            if id(value) not in self._seen:
                self._seen.add(id(value))
                self._see_object(path, find, value)
        elif type(value) in ATOMS:
            self._reads.add(path, find)
            if type(value) is str:  # a key, or the name of an attribute or a module
                self.words |= words_of([value], self.names)
                self._see_modules([value])
        elif self.is_users(plain_function(value) or value) or not _is_named(value, place):
            self._reads.add(path, find)
            if is_tensor(value):
                settings = self.names.intersection(SETTINGS)
                for name in (*settings, "value") if is_variable(value) else settings:
                    self._see(path, find, getattr, name, getattr(value, name, MISSING))
            if id(value) not in self._seen and len(path) < DEPTH:
                self._seen.add(id(value))
                if type(value) is not types.CodeType:
                    self._see_inside(path, find, value)

    def _see_inside(self, path: Path, find: Find, value: Any) -> None:
        function = method_of(value) or plain_function(value)
        if function is not None and self.is_users(function):
            function_find = find if function is value else step(find, function_of, None)
            function_path = path if function is value else (*path, ("function_of", None))
            self._see_function(function_path, function_find, function)
        elif isinstance(value, types.FunctionType) and _is_of_pythons_library(value):
            self._see_cells(path, find, value)  # of singledispatch
        if isinstance(value, WITH_ITEMS) and type(value) not in WITH_ITEMS:
            self._see_object(path, find, value)  # its attributes, besides the items
        if isinstance(value, CONTAINERS):
            self._see_items(path, find, value)
        elif isinstance(value, SETS):
            self._see_keys(path, find, value)
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
        elif _is_bound(value):
            self._see(path, find, getattr, "__self__", value.__self__)
        elif isinstance(value, VIEWS):
            inside = (*path, ("getattr", "mapping"))
            self._see_items(inside, step(find, getattr, "mapping"), value.mapping)
        else:
            if isinstance(value, os.PathLike) and not self.names.isdisjoint(READING_FILES):
                raise TraceError(f"{self._reads}: a file; pass what is in it as an argument")
            self._see_object(path, find, value)

    def _see_keys(self, path: Path, find: Find, keys: Iterable[Any]) -> None:
        for i, key in enumerate([*keys]):
            if type(key) not in ATOMS:
                self._see(path, find, key_at, i, key)

    def _see_items(self, path: Path, find: Find, value: Any) -> None:
        self._reads.add((*path, LENGTH), step(find, length_of, None))
        rows = [*enumerate(rows_of(value))]
        if isinstance(value, MAPPINGS) and len(rows) <= MOST_ITEMS:
            if len(rows) > 1 and not ORDERED.isdisjoint(self.names):
                self._reads.add((*path, ("order_of", None)), step(find, order_of, None))
            self._see_keys(path, find, value)
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
        if isinstance(value, FunctionBase) and isinstance(value.recipe.origin, type):
            self._see(path, find, origin_of, None, value.recipe.origin)
        if isinstance(value, type) and self.is_users(type(value)):
            self._see(path, find, kind_of, None, type(value))
        if self._is_reflected(value):
            self._reads.add((*path, ("own_names", None)), step(find, own_names, None))
        if "super" in self.names and not isinstance(value, types.ModuleType):
            self._see_bases(path, find, value)
        for name in sorted(self._names_of(value)):
            self._see(path, find, stored, name, stored(value, name))
        if not isinstance(value, type) and hasattr(type(value), "__getattr__"):
            self._see_fallback(path, find, value)

    def _see_bases(self, path: Path, find: Find, value: Any) -> None:
        """See what `super()` may find: the attributes of each base by themselves."""
        kind = value if isinstance(value, type) else type(value)
        for n, base in enumerate(bases_of(kind)):
            if n and self.is_users(base) and id(base) not in self._seen:
                self._seen.add(id(base))
                self._see_object((*path, ("base_of", n)), step(find, base_of, n), base)

    def _see_fallback(self, path: Path, find: Find, value: Any) -> None:
        """See what a library's `__getattr__` finds in an object's dicts, as torch's buffers."""
        for name, rows in attributes_of(value):
            if type(rows) is dict:
                owner_path, owner_find = (*path, (stored.__name__, name)), step(find, stored, name)
                for place in sorted((self.names | self.words) & {*rows}):
                    self._see(owner_path, owner_find, item_of, place, rows[place])

    def _is_reflected(self, value: Any) -> bool:
        is_held = not isinstance(value, types.ModuleType | types.FunctionType)
        return is_held and not REFLECTING.isdisjoint(self.names)

    def _names_of(self, value: Any) -> set[str]:
        """Return the names of attributes that the functions may read of a value."""
        reached = self.names | self.words
        kind = value if isinstance(value, type) else type(value)
        if isinstance(value, types.ModuleType):
            reached.add("__getattr__")
            return self._names_of_module(value, reached)
        if root_of(kind.__module__).startswith(OWN):
            # What the user has set on a Function or a rule.
            return reached & {*vars(value)} if isinstance(value, FunctionBase | Rule) else set()
        bases = [base for base in kind.__mro__ if self.is_users(base)]
        own = {str(name) for name, _ in attributes_of(value)} if kind is not value else ()
        if self._is_reflected(value):
            reached.update(own)
        elif is_of_python(value):  # whose methods reach all of its data
            reached |= {name for name in own if is_data(stored(value, name))}
        elif self._is_wide and not (is_data(value) or is_tensor(value)) and self._is_asked(kind):
            reached.update(own)
        names = reached & {name for owner in (own, *map(vars, bases)) for name in [*owner]}
        names |= {name for base in bases for name in [*vars(base)] if _is_called(base, name)}
        if not isinstance(value, type) or self.is_users(value):
            names |= self._missing_names(
                self.is_users(value) or root_of(kind.__module__) in WITHOUT_DATA
            )
        if not ASKING.isdisjoint(self.names):  # by a name such as f"scale_{i}"
            names |= {
                n
                for n in own
                if any(len(w) > 1 and (n.startswith(w) or n.endswith(w)) for w in self.words)
            }
        return names

    def _names_of_module(self, module: types.ModuleType, reached: set[str]) -> set[str]:
        present = {name for name in reached if name in vars(module)}
        if self.is_users(module):
            return present | self._missing_names(True)
        # A library's settings, such as `sys.argv`; what else its modules hold is fixed.
        for name in reached.intersection(vars(type(module))):
            is_setting = hasattr(type(vars(type(module))[name]), "__set__")
            if is_setting and not name.startswith("__"):  # `torch.backends.cudnn.enabled`
                raise TraceError(f"{self._reads}: {module.__name__}.{name}; pass it as an argument")
        kinds = (types.ModuleType, bool, int, str, list, dict)
        return {name for name in present if isinstance(vars(module)[name], kinds)}

    @property
    def _catches(self) -> bool:
        return self._is_wide and not CATCHING.isdisjoint(self.names)

    def _missing_names(self, is_plain: bool) -> set[str]:
        """Return the names of attributes that code reads also where they are missing."""
        names = set() if ASKING.isdisjoint(self.names) else {*filter(str.isidentifier, self.words)}
        if is_plain and self._catches:
            names |= {name for name in self.names if not name.startswith("__")}
        return names

    def _is_asked(self, kind: type) -> bool:
        """Return whether code may call methods of a library's class, which reach all of its data;
        names that tensors have, too, are not meant.
        """
        if any(
            stored(kind, name) is not MISSING for name in ("__getitem__", "__iter__", "__len__")
        ):
            return True
        dialect = registered_dialects().get(root_of(kind.__module__))
        tensor = None if dialect is None else dialect.tensors.tensor
        return any(
            callable(stored(kind, name)) and not hasattr(tensor, name) for name in self.names
        )


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
    return {name for name in found if name in sys.modules}  # which is far longer


def _is_of_pythons_library(function: types.FunctionType) -> bool:
    return root_of(function.__module__) in sys.stdlib_module_names


def _is_bound(value: Any) -> bool:
    """Return whether a value is a method of an object, such as a kept `rows.get`."""
    if not isinstance(value, types.BuiltinMethodType | types.MethodWrapperType):
        return isinstance(value, types.MethodType)
    return not isinstance(value.__self__, type | types.ModuleType | None)


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
