"""Keys for users' objects by identity, never by the user's own `==`, hash or text.

Numbers, strings and tuples of them are equal if nothing distinguishes them: not 1 and True, nor 0.0
and -0.0. Any other object is equal to itself only (`engine/trace/contents.py`).
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ..support.lazy_modules import provided

EXACT = (bool, int, str, bytes, type(None), type(Ellipsis), type(NotImplemented), np.dtype)


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
    return key_within(value, [])


def items_key(values: Mapping[str, Any]) -> Any:
    """Return named values as a key, in any order."""
    return tuple([(name, value_key(values[name])) for name in sorted(values)])


def is_plain(value: Any) -> bool:
    """Return whether a value is an immutable number, string, None or a tuple of them."""
    kind = type(value)
    return kind in (float, complex, *EXACT) or (kind is tuple and all(map(is_plain, value)))


def key_within(value: Any, seen: list[Any]) -> Any:
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
    return key_of_object(value, seen)


@provided
def key_of_object(value: Any, seen: list[Any]) -> Any:
    """Return the key of an object with contents: the core reads none."""
    return (Same(value), ())


def _keys(values: Iterable[Any], seen: list[Any]) -> tuple[Any, ...]:
    return tuple(key_within(each, seen) for each in values)
