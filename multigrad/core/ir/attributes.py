"""Attributes of ops: their legal values, the values that tests try, and how `xg.xp` takes them."""

from __future__ import annotations

import keyword
import unicodedata
from collections.abc import Callable
from typing import TypeGuard

from .op import DTYPES, REQUIRED, Attr, T

ORDERS = ("C", "channels_last", "channels_last_3d")  # of elements in memory


def is_axis(value: object) -> bool:
    axes = value if isinstance(value, tuple) else (value,)
    # `type(axis) is int`, here and below, because True is an instance of int.
    return value is None or all(type(axis) is int for axis in axes)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_dtype(value: object) -> bool:
    return value is None or value in (T, *DTYPES)


# `fold_in` takes any 32-bit word.
def is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**32


def is_order(value: object) -> bool:
    return is_number(value) and value > 0  # type: ignore[operator]


def are_integers(value: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and all(type(n) is int for n in value)


def is_shape(value: object) -> bool:
    return are_integers(value) and all(n >= -1 for n in value) and value.count(-1) < 2


def is_name(value: object) -> TypeGuard[str]:
    """Return whether a value can be the name of a variable in emitted code."""
    if not isinstance(value, str) or not 0 < len(value) <= 100:
        return False
    # Python normalizes identifiers to NFKC, so another form would name another variable.
    is_normalized = value.isascii() or unicodedata.normalize("NFKC", value) == value
    return (
        is_normalized
        and value.isidentifier()
        and not keyword.iskeyword(value)
        and not value.startswith("__")
    )


def is_layout(value: object) -> bool:
    """Return whether a value is "alias", "own", or one of "copy" and "contiguous" with an order."""
    word, _, order = value.partition(" ") if isinstance(value, str) else ("", "", "")
    words = {"copy": ("", *ORDERS), "contiguous": ORDERS, "alias": ("",), "own": ("",)}
    return order in words.get(word, ())


def instance_of(kind: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, kind)


def optional(legal: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or legal(value)


def number(*samples: float, taken: str = "float") -> Attr:
    """Return the attribute of a number; the first sample is its default."""
    return Attr(is_number, samples, samples[0], "float", taken)


def number_or_none(*samples: float) -> Attr:
    return Attr(optional(is_number), (None, *samples), None)


def flag(default: bool) -> Attr:
    return Attr(instance_of(bool), (False, True), default, "bool", "bool")


def count(*samples: int) -> Attr:
    return Attr(is_count, samples)


def required(attr: Attr) -> Attr:
    """Return an attribute without its default."""
    return attr._replace(default=REQUIRED)


AXIS = Attr(is_axis, (), -1, "int", "one_axis")
NEW_AXIS = Attr(is_axis, (), 0, "int")
AXES = Attr(is_axis, (), None, "Axis", "axes_of")
LAST_AXES = AXES._replace(default=-1)
ANYTHING = Attr(instance_of(object))
DTYPE = Attr(is_dtype)
HALVES = Attr(is_count, (0, 1))
LAYOUT = Attr(is_layout)
NAME = Attr(is_name)
ORDER = Attr(is_order, (2, 1, 3, 0.5, float("inf")))
SHAPE = Attr(is_shape)
