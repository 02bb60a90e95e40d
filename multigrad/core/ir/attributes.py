"""Attributes of ops: their legal values, the values that tests try, and how `xg.xp` takes them."""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Callable
from typing import TypeGuard

from .graph import Region
from .op import REQUIRED, Attr
from .types import DTYPES, T

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


def is_fraction(value: object) -> bool:
    return is_number(value) and 0 <= value <= 1  # type: ignore[operator]


def is_integer(value: object) -> bool:
    return type(value) is int


def are_integers(value: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and all(type(n) is int for n in value)


def are_steps(value: object) -> bool:
    return are_integers(value) and len(value) > 0 and min(value) >= 1


def is_positive(value: object) -> bool:
    return is_count(value) and value != 0


def is_shape(value: object) -> bool:
    return are_integers(value) and all(n >= -1 for n in value) and value.count(-1) < 2


def are_widths(value: object) -> bool:
    return isinstance(value, tuple) and all(
        are_integers(pair) and len(pair) == 2 and min(pair) >= 0 for pair in value
    )


def is_index(value: object) -> bool:
    return isinstance(value, tuple) and all(map(is_index_item, value))


def is_index_item(item: object) -> bool:
    if isinstance(item, tuple):
        return len(item) == 3 and all(n is None or type(n) is int for n in item)
    return item is None or item == "..." or type(item) is int


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


def are_names(value: object) -> bool:
    """Return whether a value is a tuple of names of mesh axes or groups, or None."""
    return value is None or (
        isinstance(value, tuple)
        and len(value) > 0
        and all(isinstance(name, str) and 0 < len(name) <= 100 for name in value)
    )


def are_pairs(value: object) -> bool:
    """Return whether a value is pairs (source, target) of shards, none twice on one side."""
    if not isinstance(value, tuple):
        return False
    if not all(are_integers(pair) and len(pair) == 2 and min(pair) >= 0 for pair in value):
        return False
    sources, targets = ({pair[i] for pair in value} for i in (0, 1))
    return len(sources) == len(targets) == len(value)


def is_split(value: object) -> bool:
    """Return whether a value tells for each axis over which names it is split; (): all shards."""
    if not isinstance(value, tuple):
        return False
    return all(names is None or names == () or are_names(names) for names in value)


def is_subscripts(value: object) -> bool:
    return (
        isinstance(value, str)
        and re.fullmatch(r"[A-Za-z.,]{0,100}->[A-Za-z.]{0,60}", value) is not None
    )


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
AXIS_OR_NONE = Attr(is_axis, (), None, "int | None", "axis_or_none")
NEW_AXIS = Attr(is_axis, (), 0, "int")
AXES = Attr(is_axis, (), None, "Axis", "axes_of")
LAST_AXES = AXES._replace(default=-1)
MOVED = Attr(is_axis, (), REQUIRED, "Any", "axes_of")
PAIRS = Attr(are_pairs, (((0, 0),), ()))
PLACE = Attr(is_integer, (), REQUIRED, "int", "one_axis")
PLACES = Attr(optional(are_integers))
ANYTHING = Attr(instance_of(object))
COPIES = Attr(is_count, (2, 1, 3))
DILATIONS = Attr(are_steps, ((1,), (2,)))
DTYPE = Attr(is_dtype)
FRACTION = Attr(is_fraction, (0.5, 0.0, 0.25, 0.3, 1.0))
GROUPS = Attr(is_positive, (1,))
GROUP_NAMES = Attr(are_names, (None,), None)
HALVES = Attr(is_count, (0, 1))
INDEX = Attr(is_index)
INDICES = Attr(are_integers)
LAYOUT = Attr(is_layout)
NAME = Attr(is_name)
NORM_ORDER = Attr(is_order, (2, 1, 3, 0.5))
OFFSET = Attr(is_integer, (0, 1, -1))
ORDER = Attr(is_order, (2, 1, 3, 0.5, float("inf")))
REGION = Attr(instance_of(Region))
REPETITIONS = Attr(are_integers)
SHAPE = Attr(is_shape)
SHIFT = Attr(is_axis, (1, -2, (1, 2)))
SIZES = Attr(are_steps, ((2,),))
SPLIT = Attr(is_split, (((),), (None, ())))
STRIDES = Attr(are_steps, ((1,), (2,)))
SUBSCRIPTS = Attr(is_subscripts)
WIDTHS = Attr(are_widths)
