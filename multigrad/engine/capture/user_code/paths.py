"""Paths to the values that code reads: how each is found anew, and how it is compared.

A value is found from the start of its path, without running code of the user's, and is compared by
a token that is the same while the value is, and that keeps no other object alive.
"""

from __future__ import annotations

import array
import ctypes
import itertools
import math
import operator
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import is_dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from ....core.trace.identity import Same, value_key
from ...trace.contents import attributes_of, dict_of
from ..dialect import registered_dialects
from .inspection import WRAPPED, contents, method_of, plain_function, values_of

Path = tuple[tuple[str, Any], ...]  # to a value: ("global_of", "Atan"), ("stored", "slope")
Find = Callable[[], Any]
Take = Callable[[Any, Any], Any]
MOST_WATCHED = 2**20  # elements of an array that is compared by value
bases_of = type.__dict__["__mro__"].__get__  # whatever a class of classes does
WITHOUT_DATA = frozenset(("abc", "argparse", "builtins", "enum", "types", "typing"))
MISSING = type("Missing", (), {})()
Open = type("Open", (), {})
POSITIVE, NEGATIVE = Open(), Open()  # stand for any float of a sign
ATOMS = frozenset((Open, float, int, bool, str, bytes, complex, type(None), type(MISSING)))
LISTS = (list, tuple, deque)
MAPPINGS = (dict, types.MappingProxyType)
CONTAINERS = (*MAPPINGS, *LISTS)
SETS = (set, frozenset)
VIEWS = (type({}.keys()), type({}.values()), type({}.items()))
# Of numbers, changed in place.
BUFFERS = (bytearray, memoryview, array.array, ctypes.c_int.__mro__[2])


def root_of(module: str | None) -> str:
    return (module or "").partition(".")[0]


def token_of(value: Any) -> Any:
    """Return an object that is the same while a value is, and that keeps no other alive."""
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is types.FunctionType or isinstance(value, type):
        return weakref.ref(value)
    if isinstance(value, np.ndarray) and value.size <= MOST_WATCHED and not value.dtype.hasobject:
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, SETS):
        return frozenset(map(value_key, [*value]))
    if isinstance(value, BUFFERS):
        return (kind.__name__, bytes(value))
    if isinstance(value, WRAPPED):
        return weakref.ref(method_of(value) or kind)
    if is_tensor(value):  # a large one by torch's count of writes to it
        return values_of(value) or (Same(value), getattr(value, "_version", 0))
    # What these hold has paths of its own.
    if isinstance(value, CONTAINERS) or is_record(value):
        return weakref.ref(kind)
    try:
        return weakref.ref(value)
    except TypeError:
        # Of libraries' objects, and numbers such as an enum's flags: they lead to nothing of the
        # user's.
        root = root_of(kind.__module__)
        is_plain = root in sys.stdlib_module_names or root in registered_dialects()
        return value if is_plain or isinstance(value, int | float | bytes) else weakref.ref(kind)


def is_same(token: Any, other: Any) -> bool:
    if token is other or type(token) is not type(other):
        return token is other
    return type(token) in (tuple, str) and token == other  # of arrays and keys, made anew


def key_of(token: Any) -> Any:
    if type(token) is weakref.ref:
        return Same(token())
    if type(token) is tuple and type(token[-1]) is bytes:
        return (*token[:-1], blake2b(token[-1]).digest())  # which is short, as many keys are kept
    return token if type(token) in (tuple, frozenset) else value_key(token)


def is_record(value: Any) -> bool:
    """Return whether an object is what it holds, so that an equal one may take its place."""
    return isinstance(value, types.SimpleNamespace) or is_dataclass(type(value))


def is_of_python(value: Any) -> bool:
    """Return whether an object's class, or a base of it, is one of Python's that holds data."""
    roots = {root_of(base.__module__) for base in type(value).__mro__}
    return not (roots - WITHOUT_DATA).isdisjoint(sys.stdlib_module_names)


def is_data(value: Any) -> bool:
    return type(value) in ATOMS or isinstance(value, (*CONTAINERS, *BUFFERS, *SETS))


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
            return dict_of(owner)[name]
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


def _unwrapped(mapping: Any) -> Any:
    # Keras on TensorFlow holds dicts in proxies, which say that they are dicts.
    return mapping if issubclass(type(mapping), MAPPINGS) else mapping.__wrapped__


def item_of(container: Any, place: Any) -> Any:
    if isinstance(container, MAPPINGS):
        container = _unwrapped(container)
        get: Any = dict.get if isinstance(container, dict) else types.MappingProxyType.get
        return get(container, place, MISSING)
    try:
        return container[place] if isinstance(container, LISTS) else MISSING
    except IndexError:  # it has become shorter
        return MISSING


def rows_of(container: Any) -> Iterable[tuple[Any, Any]]:
    """Return the items of a container as they are now, whatever another thread does to it."""
    if isinstance(container, MAPPINGS):
        container = _unwrapped(container)
        copy: Any = dict.copy if isinstance(container, dict) else types.MappingProxyType.copy
        return copy(container).items()
    return enumerate([*container])


def nth_of(container: Any, n: int) -> Any:
    return next((row for _, row in itertools.islice(rows_of(container), n, None)), MISSING)


def length_of(container: Any, _: None) -> int:
    return len(container) if isinstance(container, CONTAINERS) else -1


def order_of(container: Any, _: None) -> str:
    """Return the keys of a mapping as text, in the order in which a loop meets them."""
    try:
        return "\0".join(container)
    except TypeError:
        return repr([*container])


def key_at(container: Any, n: int) -> Any:
    return next(itertools.islice([*container], n, None), MISSING)


def base_of(kind: Any, n: int) -> Any:
    """Return a class at a place in the method resolution order of a class, or of an object's."""
    return bases_of(kind if isinstance(kind, type) else type(kind))[n]


def text_of(container: Any, latest: list[Any]) -> Any:
    """Return the numbers and strings in a long container as text; `latest`: these, and that."""
    rows = [row for row in rows_of(container) if type(row[1]) in ATOMS]
    items = [*itertools.chain.from_iterable(rows)]
    if len(items) != len(latest[0]) or not all(map(operator.is_, items, latest[0])):
        latest[:] = items, repr(rows)
    return latest[1]


def own_names(value: Any, _: None) -> frozenset[Any]:
    return frozenset(name for name, _ in attributes_of(value))


def kind_of(value: Any, _: None) -> type:
    return type(value)


def environment_of(environ: Any, _: None) -> Any:
    return frozenset(dict.copy(stored(environ, "_data")).items())


def function_of(value: Any, _: None) -> Any:
    return method_of(value) or plain_function(value) or MISSING


def variable_of(variable: ContextVar[Any], _: None) -> Any:
    return variable.get(MISSING)


def referent_of(reference: weakref.ref[Any], _: None) -> Any:
    return reference()


def origin_of(function: Any, _: None) -> Any:
    """Return the class of which a Function was made."""
    return function.recipe.origin


def module_of(_: Any, name: str) -> Any:
    return sys.modules.get(name, MISSING)


STARTS = (global_of.__name__, cell_of.__name__)  # steps from a function
TAKES: dict[str, Take] = {
    take.__name__: take
    for take in (
        *(base_of, cell_of, environment_of, function_of, getattr, global_of, item_of, key_at),
        *(kind_of, length_of, module_of, nth_of, order_of, origin_of, own_names, referent_of),
        *(stored, variable_of),
    )
}


def opened(find: Find) -> Any:
    """Return a token that all finite floats of one sign share, and any other value itself.

    At 0, infinity and NaN, Python's arithmetic differs from that of arrays.
    """
    value = find()
    if type(value) is not float or not math.isfinite(value) or value == 0:
        return value
    return POSITIVE if value > 0 else NEGATIVE


def step(find: Find, take: Callable[[Any, Any], Any], place: Any) -> Find:
    """Return a function that finds what `take` gives of what another finds."""

    def find_next() -> Any:
        owner = find()
        try:
            return MISSING if owner is MISSING or owner is None else take(owner, place)
        # What is there now is an object of another kind.
        except (AttributeError, IndexError, TypeError):
            return MISSING

    return find_next
