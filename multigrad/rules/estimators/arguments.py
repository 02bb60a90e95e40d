"""What a call of an estimator is checked for: kinds of arguments, and shapes beside the first one.

A shape may have lengths that are not known yet (None), as in a model that is being built; they fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import index
from typing import Any, TypeAlias

from ...errors import RuleTypeError
from ...trace.trace import Value

Tensor = Any
Lengths: TypeAlias = tuple[Any, ...]
# `fit(own, like) -> what would fit`, "" where `own` does.
Fit: TypeAlias = Callable[[Lengths, Lengths], str]


# --- kinds ---------------------------------------------------------------------------------------


def as_tensor(value: Any) -> Any:
    """A tensor or a number: an int is the float of that value."""
    if isinstance(value, float) or type(value) is int:
        return float(value)  # NumPy's among them
    if isinstance(value, bool | str | list | tuple | dict):
        raise TypeError("a number or a tensor")
    return value


def as_int(value: Any) -> Any:
    if type(value) is int:
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__") or getattr(value, "ndim", 0):
        raise TypeError("an int")
    return index(value)


def as_bool(value: Any) -> Any:
    if type(value) is bool:
        return value
    if type(value).__name__ in ("bool", "bool_"):  # NumPy's
        return bool(value)
    raise TypeError("a bool")


def as_word(value: Any) -> Any:
    if not isinstance(value, str):
        raise TypeError("a str")
    return value


KINDS: Mapping[str, Callable[[Any], Any]] = {
    "Tensor": as_tensor,
    "float": as_tensor,
    "int": as_int,
    "bool": as_bool,
    "str": as_word,
}


USUAL: Mapping[str, type] = {
    "Tensor": float,
    "float": float,
    "int": int,
    "bool": bool,
    "str": str,
}


def usual_type(annotation: str) -> type:
    """Return the type of what an argument takes as it is."""
    return USUAL[annotation.partition(" | ")[0]]


def coerce(subject: str, name: str, annotation: str, value: Any) -> Any:
    """Return an argument as its annotation has it.

    Raises:
        RuleTypeError: it is of another kind.
    """
    kind, _, rest = annotation.partition(" | ")
    if isinstance(value, Value) or (value is None and rest == "None"):
        return value
    try:
        if value is None:
            raise TypeError("a number or a tensor" if KINDS[kind] is as_tensor else kind)
        return KINDS[kind](value)
    except TypeError as expected:
        given = f"{type(value).__name__} {value!r:.40}"
        raise RuleTypeError(f"{subject}: {name!r} is {expected}, got {given}") from None


# --- shapes --------------------------------------------------------------------------------------


def lengths_of(value: Any) -> Lengths | None:
    """Return a tensor's lengths; None: it has none, or they are not known."""
    if isinstance(value, Value):
        return None
    shape = getattr(value, "shape", None)
    if shape is None or getattr(shape, "rank", 0) is None:
        return None
    return tuple(shape)


def agree(own: Any, other: Any) -> bool:
    return own is None or other is None or own == other


def broadcasts(own: Lengths, like: Lengths) -> str:
    """It broadcasts to the first argument: a number for all, or one for each channel."""
    if len(own) <= len(like):
        for mine, other in zip(own[::-1], like[::-1], strict=False):
            if mine != 1 and not agree(mine, other):
                break
        else:
            return ""
    expected = "a shape that broadcasts to it, as ()"
    places = [i for i, n in enumerate(like) if own == (n,)]
    if not places:
        return expected
    channels = tuple(n if i == places[0] else 1 for i, n in enumerate(like))
    return f"{expected}, or {channels} for one number per index of axis {places[0]}"


def alike(own: Lengths, like: Lengths) -> str:
    """It has the shape of the first argument."""
    is_same = len(own) == len(like) and all(map(agree, own, like))
    return "" if is_same else "the same shape"


def codes(own: Lengths, like: Lengths) -> str:
    """It is a table of vectors as long as the first argument's last axis."""
    if len(own) == 2 and like and agree(own[1], like[-1]) and own[0] != 0:
        return ""
    return f"(number of codes, {like[-1] if like else 'length of a vector'})"


def row(own: Lengths, like: Lengths) -> str:
    """It has one axis, of any length but 0."""
    return "" if len(own) == 1 and own[0] != 0 else "one axis, with a number for each level but one"
