"""Keys for users' objects by identity, never by the user's own `==`, hash or text.

Numbers, strings and tuples of them are equal if nothing distinguishes them: not 1 and True, nor 0.0
and -0.0. Any other object is equal to itself only; its contents are part of the key too, as far as
they are cheap to read.
"""

from __future__ import annotations

import enum
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from ..backend.discovery import entry_points

EXACT = (bool, int, str, bytes, type(None), type(Ellipsis), type(NotImplemented), np.dtype)
MOST_HELD = 256  # objects that are read inside one object, at any depth
FIXED = (type, enum.Enum, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)


class Same:
    """A key that is equal for the same object only.

    It keeps the object alive only if Python offers no weak reference to it.
    """

    __slots__ = ("__weakref__", "_find", "_hash")

    def __init__(self, item: Any) -> None:
        self._hash = id(item)
        try:
            self._find: Callable[[], Any] = weakref.ref(item)
        except TypeError:
            self._find = lambda: item

    def item(self) -> Any:
        return self._find()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Same):
            return False
        # Python has one weak reference per object, which also outlives it.
        if self._find is other._find:
            return True
        item = self.item()
        return item is not None and item is other.item()

    def __hash__(self) -> int:
        return self._hash


def owners_of(function: Any) -> tuple[Any, ...]:
    """Return the objects that identify a callable; a bound method is a new object at each read."""
    if isinstance(function, types.MethodType):
        return (function.__self__, *owners_of(function.__func__))
    return (function,)


def function_key(function: Any) -> tuple[Same, ...]:
    return tuple(map(Same, owners_of(function)))


def value_key(value: Any) -> Any:
    return _key(value, [])


def items_key(values: Mapping[str, Any]) -> Any:
    """Return named values as a key, in any order."""
    return tuple([(name, value_key(values[name])) for name in sorted(values)])


def is_plain(value: Any) -> bool:
    """Return whether a value is an immutable number, string, None or a tuple of them."""
    kind = type(value)
    return kind in (float, complex, *EXACT) or (kind is tuple and all(map(is_plain, value)))


def _key(value: Any, seen: list[Any]) -> Any:
    kind = type(value)
    if kind in EXACT or isinstance(value, np.dtype):
        return (kind, value)
    if kind in (float, complex):
        return (kind, repr(value))  # tells 0.0 from -0.0, and makes NaN equal to itself
    if isinstance(value, np.generic):
        return (kind, str(value.dtype), value.tobytes())
    if kind in (range, slice):
        return (kind, _keys((value.start, value.stop, value.step), seen))
    # Named tuples too, unless they define an equality of their own.
    if isinstance(value, tuple) and kind.__eq__ is tuple.__eq__:
        return (kind, _keys(value, seen))
    if kind is types.MethodType:
        return (kind, function_key(value))
    # A framework's own class defines equality: a device, a dtype, a shape.
    defines_hash = kind.__hash__ is not None and kind.__hash__ is not object.__hash__
    if defines_hash and kind.__module__.partition(".")[0] in (*entry_points(), "jaxlib"):
        # torch's tensors are hashed by identity, and a key would keep them alive.
        return (kind, Same(value) if _is_hashed_by_id(value) else value)
    contents = _contents(value, seen)
    if kind in (list, dict) and contents is not None:  # nor what is in these
        return (kind, id(value), contents)
    return (Same(value), contents)


def _is_hashed_by_id(value: Any) -> bool:
    with suppress(TypeError):  # TensorFlow's tensors have no hash, and say so only when asked
        return hash(value) == id(value)
    return False


def _keys(values: Iterable[Any], seen: list[Any]) -> tuple[Any, ...]:
    return tuple(_key(each, seen) for each in values)


def _contents(value: Any, seen: list[Any]) -> Any:
    # Contents as a key, so that a change shows; None if there are too many to read.
    if isinstance(value, FIXED) or any(value is each for each in seen):
        return ()
    if type(value) in (list, set, frozenset):
        rows = [("", each) for each in [*value]]
    elif type(value) is dict:
        rows = [*value.items()]
    else:
        rows = attributes_of(value)
    if len(seen) + len(rows) > MOST_HELD:
        return None
    # The objects themselves, so that no id is reused during the walk.
    seen.append(value)
    return tuple((_key(name, seen), _key(item, seen)) for name, item in rows)


def dict_of(value: Any) -> dict[str, Any]:
    """Return the dict of an object, of a `threading.local` that of the present thread."""
    is_local = isinstance(value, threading.local)
    read = threading.local.__getattribute__ if is_local else object.__getattribute__
    found: dict[str, Any] = read(value, "__dict__")
    return found


def attributes_of(value: Any) -> list[tuple[Any, Any]]:
    """Return an object's own attributes without running code of its class."""
    rows: list[tuple[Any, Any]] = []
    with suppress(AttributeError):
        rows += dict_of(value).items()
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            member = kind.__dict__.get(name)
            if isinstance(member, types.MemberDescriptorType):
                with suppress(AttributeError):  # a slot without a value
                    rows.append((name, member.__get__(value)))
    return rows
