"""Snapshots of objects before user code runs for us alone, on symbols or made-up numbers, and their
restoration.

An effect of such a run would come on top of the effects of the user's calls. Restored changes are
reported in words, since a graph would not make them at all:

    snapshot.see_all(functions, values)     before the run; `see`, `see_function` in it
    snapshot.used_up                        "a generator, which each use changes": do not run
    snapshot.restore()                      after it; then
    snapshot.change                         "assigns to the attribute 'count' of a Layer"
    snapshot.moved, .new_attributes         what was restored or left as it is: run once more
    snapshot.drop_added(), .clear()         at the end
"""

from __future__ import annotations

import array
import contextvars
import io
import math
import queue
import random
import sys
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import is_
from typing import Any

import numpy as np

from ....core.backend.discovery import backend_of
from ....core.functions.function import FunctionBase
from ....core.support.lazy_modules import imported_module
from ....core.support.trees import optree
from ....core.trace.identity import is_plain
from ....core.trace.source import STATE
from ....core.trace.trace import Value
from ....errors import BackendNotFound
from ...trace.code_trace import CodeTrace
from ...trace.contents import attributes_of
from ..dialect import registered_dialects
from .inspection import (
    acts,
    contents,
    held_around,
    mentioned,
    method_of,
    nested_codes,
    plain_function,
    referred,
)
from .libraries import OWN, is_library_file

INERT = (types.FunctionType, types.NoneType, bool, float, int, str)  # no mutable contents
# Locks are no effects, nor is what a weak container does with entries that were freed.
SHARED = ("threading", "weakref", "_weakrefset")
MOST_ITEMS = 4096  # of one container; of a longer one only the length is compared
MOST_INSIDE = 64  # items of a container that are read themselves
MOST_ELEMENTS = 2**22  # of all tensors and arrays whose values are copied
MOST_OBJECTS = 2048
DEPTH = 8  # from a module to the statistics of a layer in a block of it
FIXED = (type, types.ModuleType, threading.local)  # whose attributes need setattr
Access = tuple[Callable[[Any], Any], Callable[[Any, Any], None]]


class Snapshot:
    """The present contents of objects.

    Attributes:
        moved: whether a random generator had drawn when it was restored.
        new_attributes: owners and names of attributes that the run added, which stay, as they may
            be a cache.
        used_up: what cannot be restored after use, in words; "" for nothing.
        change: what had changed when all was restored, in words; "" for nothing.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()  # by which code may reach the contents of objects
        self.moved = False
        self.new_attributes: list[tuple[Any, str]] = []
        self.used_up = self.change = ""
        self.owners: list[tuple[Any, int]] = []  # that were seen, with their depth
        self._seen: set[int] = set()  # ids of objects that the entries keep alive
        self._restores: list[Callable[[], str]] = []  # each returns the change in words, or ""
        self._room = MOST_ELEMENTS  # elements of tensors and arrays that may still be copied

    def see_all(self, functions: Iterable[Any], values: Iterable[Any]) -> None:
        """Remember the references of functions and helpers, values, and the global generators."""
        for generator in global_generators():
            self._see_generator(generator)
        for function in functions_of(*functions):
            self.see_function(function)
        for value in values:
            self.see(value)

    def see_function(self, function: types.FunctionType) -> None:
        """Remember the state that a function of the user's refers to."""
        # A new name may reach attributes of objects that were seen before it was known.
        new_names = {name for name, _ in mentioned(function)} - self.names
        self.names |= new_names
        for owner, depth in list(self.owners) if new_names else ():
            for name in new_names & _attributes(owner).keys():
                self.see(_attributes(owner)[name], depth + 1)
        for value in referred(function):
            if type(value) not in INERT:
                self.see(value)

    def see(self, value: Any, depth: int = 0) -> None:
        """Remember a mutable value, and all that the mentioned names reach from it."""
        if isinstance(value, types.BuiltinFunctionType | types.MethodType):
            value = value.__self__
        elif isinstance(value, partial):
            value = (value.func, *value.args, *value.keywords.values())
        elif isinstance(value, FunctionBase) and isinstance(value.recipe.origin, type):
            value = value.recipe.origin  # which has the attributes
        if is_plain(value) or isinstance(value, types.FunctionType | Value):
            return
        if id(value) in self._seen or len(self._seen) > MOST_OBJECTS or depth > DEPTH:
            return
        if isinstance(value, tuple):
            for each in value[:MOST_INSIDE]:
                self.see(each, depth + 1)
            return
        if is_generator(value):
            self._see_generator(value)
        elif is_state(value):
            self._see_tensor(value)
        elif isinstance(value, np.ndarray):
            self._see_array(value)
        elif (access := access_of(value)) is not None:
            self._see_contents(value, access, depth)
        elif is_used_up(value):
            self.used_up = self.used_up or f"a {type(value).__name__}, which each use changes"
            return
        if is_owner(value) and not is_state(value):
            self._see_owner(value, depth)

    def _see_array(self, value: np.ndarray[Any, Any]) -> None:
        # A large array is made read-only instead of copied, so that a write raises.
        if not value.flags.writeable:
            return
        self._room -= value.size
        if self._room >= 0:
            self._remember(value, partial(put_back, value, value.copy(), np.copy, _write_array))
        else:
            value.setflags(write=False)
            self._remember(value, lambda: value.setflags(write=True) or "")

    def _remember(self, value: Any, restore: Callable[[], str]) -> None:
        self._seen.add(id(value))
        self._restores.append(restore)

    def _see_contents(self, value: Any, access: Access, depth: int) -> None:
        read, write = access
        try:
            before = read(value)
        except (LookupError, ValueError):  # a variable without a value, or a closed file
            return
        self._remember(value, partial(put_back, value, before, read, write))
        if isinstance(value, dict | list | set | deque) and len(value) <= MOST_INSIDE:
            for each in list(before.values() if isinstance(before, dict) else before):
                self.see(each, depth + 1)

    def _see_generator(self, generator: Any) -> None:
        if id(generator) in self._seen:
            return
        read, write = generator_state(generator)
        state = read()

        def rewind() -> str:
            if not _same_state(read(), state):
                write(state)
                self.moved = True
            return ""

        self._remember(generator, rewind)

    def _see_tensor(self, value: Any) -> None:
        try:
            keep = backend_of(value).tensors.keep
        except BackendNotFound:
            return
        if keep is None:
            return
        self._room -= math.prod(value.shape)
        restore = keep(value, self._room >= 0)
        if restore is not None:
            self._remember(value, restore)

    def _see_owner(self, value: Any, depth: int) -> None:
        rows = _attributes(value)
        self.owners.append((value, depth))
        self._remember(value, partial(self._restore_attributes, value, rows))
        names = self.names | _method_names(type(value))
        for name, each in rows.items():
            # A logger remembers the levels that it was asked about.
            if name == "_cache" and type(value).__module__ == "logging":
                continue
            if name not in names:
                leads_on = is_owner(each) and not is_state(each) and access_of(each) is None
                if leads_on or is_used_up(each):
                    continue
            self.see(each, depth + 1)

    def _restore_attributes(self, owner: Any, before: dict[Any, Any]) -> str:
        change = ""
        attributes = _attributes(owner)
        for name in {*attributes, *before}:
            # A new attribute may be a cache, unless it holds a symbol or hides one of the class.
            is_new = name not in before
            class_value = getattr(type(owner), name, self)
            hides = class_value is not self and not hasattr(class_value, "__get__")
            if is_new and not hides and not isinstance(attributes[name], Value):
                self.new_attributes.append((owner, name))
                continue
            if is_new:
                _remove(owner, name)
            elif attributes.get(name, self) is before[name]:
                continue
            else:
                assign(owner, name, before[name])
            change = f"assigns to the attribute {name!r} of {shown(owner)}"
        return change

    def restore(self) -> None:
        """Put everything back; `change`, `moved` and `new_attributes` tell what was changed."""
        changes = [restore() for restore in self._restores]
        self.change = next(filter(None, changes), "")

    @contextmanager
    def dropping_added(self) -> Iterator[None]:
        """Remove new attributes if another run within fails: then they are no cache."""
        try:
            yield
        except BaseException:
            self.drop_added()
            raise

    def drop_added(self) -> None:
        """Remove attributes that were new and are no cache."""
        for owner, name in self.new_attributes:
            if name in _attributes(owner):
                _remove(owner, name)

    def clear(self) -> None:
        """Release everything: what was seen may refer to symbols."""
        self.owners.clear()
        self._seen.clear()
        self._restores.clear()


@contextmanager
def noting_state(trace: CodeTrace | None, values: Sequence[Any]) -> Iterator[None]:
    """Note in a capture that a backward within changes what forward has made for it, and undo it:
    each of several runs is the first.
    """
    if trace is None:
        yield
        return
    inside = Snapshot()
    if trace.source.witness is not None:  # what is changed outside is refused
        inside._seen.update(trace.source.witness.outside._seen)
    for value in values:
        inside.see(value)
    symbols = [each for each in optree.tree_leaves([*values]) if isinstance(each, Value)]
    nodes = [each.node for each in symbols]
    yield
    inside.restore()
    is_written = any(a.node is not b for a, b in zip(symbols, nodes, strict=True))
    if is_written or inside.change or inside.new_attributes:
        trace.omit(STATE)


def functions_of(*functions: Any) -> list[types.FunctionType]:
    """Return the plain functions of callables, and the user's helpers that they mention."""
    seen: dict[types.FunctionType, None] = {}
    waiting = [*functions]
    while waiting:
        plain = plain_function(waiting.pop(0))
        if plain is None or plain in seen or (plain.__module__ or "").startswith(f"{OWN}."):
            continue
        if is_library_file(plain.__code__.co_filename):
            continue
        seen[plain] = None
        references = [*[value for _, value in mentioned(plain)], *held_around(plain)]
        helpers = types.FunctionType | types.MethodType
        waiting += [value for value in references if isinstance(value, helpers)]
    return [*seen]


def may_act(*functions: Any) -> bool:
    return any(map(acts, codes_of(*functions)))


def codes_of(*functions: Any) -> Iterator[types.CodeType]:
    for plain in functions_of(*functions):
        yield from nested_codes(plain.__code__)


# --- kinds of state -------------------------------------------------------------------------------
def put_back(
    value: Any, before: Any, read: Callable[[Any], Any], write: Callable[[Any, Any], None]
) -> str:
    """Restore a value's contents; return the change in words, "" for none."""
    contents = read(value)
    if _same_items(contents, before):
        return ""
    write(value, before)
    return f"changes a {type(value).__name__} from outside it"


def _same_items(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        if a.dtype.hasobject:
            return all(map(is_, a.flat, b.flat))
        return a.shape == b.shape and a.tobytes() == b.tobytes()
    if not isinstance(a, list | dict) or not isinstance(b, list | dict):
        return type(a) is type(b) and (a is b or bool(a == b))
    has_same_items = len(a) == len(b) and all(map(is_, a, b))
    return has_same_items and (not isinstance(a, dict) or all(a[key] is b[key] for key in a))


def _limited(read: Callable[[Any], Any], value: Any) -> Any:
    """Return a container's contents, or only its length if it has more than MOST_ITEMS items."""
    return read(value) if len(value) <= MOST_ITEMS else len(value)


def _list_of(kind: type) -> Callable[[Any], Any]:
    return partial(_limited, lambda value: list(kind.__iter__(value)))


def _dict_of(kind: type) -> Callable[[Any], Any]:
    return partial(_limited, lambda value: dict(kind.items(value)))


def _write_list(value: Any, items: Any) -> None:
    if not isinstance(items, int):
        list.__setitem__(value, slice(None), items)
    elif len(value) > items:
        list.__delitem__(value, slice(items, None))


def _read_cell(cell: Any) -> list[Any]:
    return [contents(cell)]


def _write_cell(cell: Any, items: list[Any]) -> None:
    (cell.cell_contents,) = items


def _write_all(kind: Any, add: Callable[[Any, Any], Any], value: Any, items: Any) -> None:
    if not isinstance(items, int):
        kind.clear(value)
        add(value, items)


def _write_dict(kind: Any, value: Any, items: Any) -> None:
    if not isinstance(items, int):
        kind.clear(value)
        for key, each in items.items():
            kind.__setitem__(value, key, each)


def _write_weak(value: Any, items: Any) -> None:
    value.clear()
    value.update(items)


def _write_file(value: Any, state: tuple[Any, int]) -> None:
    value.seek(0)
    value.truncate()
    value.write(state[0])
    value.seek(state[1])


def _read_file(value: Any) -> tuple[Any, int]:
    return value.getvalue(), value.tell()


def _write_bytes(value: Any, items: bytes) -> None:
    value[:] = items if isinstance(value, bytearray) else array.array(value.typecode, items)


def _read_memory(value: Any) -> bytes:
    return memoryview(value).tobytes()


def _write_memory(value: Any, items: bytes) -> None:
    memoryview(value).cast("B")[:] = items


def _write_array(value: np.ndarray[Any, Any], items: np.ndarray[Any, Any]) -> None:
    value[...] = items  # writable: only a writable array can have changed


def _read_variable(value: contextvars.ContextVar[Any]) -> list[Any]:
    return [value.get()]


def _write_variable(value: contextvars.ContextVar[Any], items: list[Any]) -> None:
    value.set(items[0])


# The classes' own methods, since a subclass's may do more. A subclass comes before its base.
KINDS: dict[type, Access] = {
    OrderedDict: (_dict_of(OrderedDict), partial(_write_dict, OrderedDict)),
    dict: (_dict_of(dict), partial(_write_dict, dict)),
    list: (_list_of(list), _write_list),
    set: (_list_of(set), partial(_write_all, set, set.update)),
    deque: (_list_of(deque), partial(_write_all, deque, deque.extend)),
    bytearray: (bytes, _write_bytes),
    array.array: (array.array.tobytes, _write_bytes),
    types.CellType: (_read_cell, _write_cell),
    io.StringIO: (_read_file, _write_file),
    io.BytesIO: (_read_file, _write_file),
    contextvars.ContextVar: (_read_variable, _write_variable),
    # What was read holds the entries, so that none is freed before it is compared.
    weakref.WeakValueDictionary: (dict, _write_weak),
    weakref.WeakKeyDictionary: (dict, _write_weak),
    weakref.WeakSet: (set, _write_weak),
}


def access_of(value: Any) -> Access | None:
    """Return functions that read and write a mutable value's contents; None for other values."""
    kind = next((kind for kind in KINDS if isinstance(value, kind)), None)
    if kind is not None:
        return KINDS[kind]
    try:  # a buffer, such as a number shared between processes
        return None if memoryview(value).readonly else (_read_memory, _write_memory)
    except (BufferError, TypeError):
        return None


def global_generators() -> list[Any]:
    """Return the global random generators, of Python and of the libraries in use."""
    generators: list[Any] = [random]
    numpy: Any = imported_module("numpy.random")
    if numpy is not None:
        generators.append(numpy.mtrand._rand)
    for dialect in registered_dialects().values():
        if dialect.state.generators is not None:
            generators += dialect.state.generators()
    return generators


def is_generator(value: Any) -> bool:
    """Return whether a value draws random numbers and exposes its state."""
    kind = type(value)  # a class or module that only defines generators is none
    return (
        isinstance(value, random.Random)
        or hasattr(kind, "bit_generator")
        or (hasattr(kind, "get_state") and hasattr(kind, "set_state"))
    )


def generator_state(generator: Any) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    if hasattr(generator, "getstate"):
        return generator.getstate, generator.setstate
    if hasattr(generator, "get_state"):
        return generator.get_state, generator.set_state
    bits = generator.bit_generator
    return lambda: bits.state, lambda state: setattr(bits, "state", state)


def _same_state(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and type(a[-1]) in (int, float, type(None)) and isinstance(a[1], tuple):
        return a == b  # the state of Python's generator, a tuple of 625 numbers
    if isinstance(a, dict):
        return a.keys() == b.keys() and _same_state([*a.values()], [b[key] for key in a])
    if isinstance(a, tuple | list):
        pairs = zip(a, b, strict=False)
        are_equal = (x == y if type(x) in INERT else _same_state(x, y) for x, y in pairs)
        return len(a) == len(b) and all(are_equal)
    return bool((a == b).all()) if hasattr(a, "shape") else a == b


def is_state(value: Any) -> bool:
    """Return whether a value is a library's tensor or variable, NumPy's arrays excepted."""
    if issubclass(type(value), Value):  # it replaces a tensor that is an input
        return False
    root = type(value).__module__.partition(".")[0].removesuffix("lib")
    dialects = registered_dialects()
    tensors = tuple([d.tensors.tensor for name, d in dialects.items() if name != "numpy"])
    is_own = root != "numpy" and (root in dialects or issubclass(type(value), tensors))
    # Asked last, as a `__getattr__` of the user's may raise anything.
    return is_own and hasattr(value, "dtype") and hasattr(value, "shape")


# --- objects --------------------------------------------------------------------------------------
def has_state(value: Any) -> bool:
    """Return whether a value is the user's own object, class or module, with attributes."""
    if isinstance(value, types.FunctionType | Value):
        return False
    kind = value if isinstance(value, type) else type(value)
    module = value if isinstance(value, types.ModuleType) else sys.modules.get(kind.__module__)
    if module is None or is_library_file(getattr(module, "__file__", None)):
        return False
    root = module.__name__.partition(".")[0]  # `torch.ops.aten` is a module without a file
    is_known = root == OWN or root in registered_dialects()
    return not is_known and bool(hasattr(value, "__dict__") or attributes_of(value))


def is_owner(value: Any) -> bool:
    """Return whether a value has attributes that users set.

    These are their own objects, and those of Python or a library that does not fill them in itself;
    classes and modules only if they are the user's.
    """
    if isinstance(value, type | types.ModuleType | types.FunctionType | Value):
        return has_state(value)
    if has_state(value):
        return True
    roots = [base.__module__.partition(".")[0] for base in type(value).__mro__]
    if not hasattr(value, "__dict__") or roots[0] in (OWN, *SHARED):
        return False
    dialects = registered_dialects()
    library = next((dialects[root] for root in roots if root in dialects), None)
    changes = library is not None and library.habits.objects_change
    return changes or roots[0] in sys.stdlib_module_names


def is_used_up(value: Any) -> bool:
    """Return whether each use of a value changes it irreversibly, as for an iterator."""
    is_other = isinstance(value, queue.SimpleQueue) or hasattr(type(value), "__next__")
    return is_other and access_of(value) is None


def _attributes(owner: Any) -> dict[Any, Any]:
    return dict(vars(owner) if isinstance(owner, FIXED) else attributes_of(owner))


def _method_names(kind: type) -> set[str]:
    methods = [method_of(each) for base in kind.__mro__ for each in vars(base).values()]
    users = [m for m in methods if m is not None and not is_library_file(m.__code__.co_filename)]
    return {name for m in users for code in nested_codes(m.__code__) for name in code.co_names}


def assign(owner: Any, name: str, value: Any) -> None:
    """Set an attribute; on an object, without running code of its class."""
    table = getattr(owner, "__dict__", None)
    if isinstance(owner, FIXED):
        setattr(owner, name, value)
    elif table is None or isinstance(getattr(type(owner), name, None), types.MemberDescriptorType):
        object.__setattr__(owner, name, value)
    else:
        table[name] = value


def _remove(owner: Any, name: str) -> None:
    if isinstance(owner, FIXED) or name not in vars(owner):
        delattr(owner, name)
    else:
        del vars(owner)[name]


def shown(owner: Any) -> str:
    if isinstance(owner, type | types.ModuleType):
        return owner.__name__
    return f"a {type(owner).__name__}"
