"""What schedules are given: numbers, whole numbers, functions by name."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from numbers import Real
from typing import Any

from ...backend.finding.values import concrete_number
from ...errors import BackendNotFound, FormatError, RuleTypeError, RuleValueError
from ...trace.scope.moving import Moving


def read_number(what: str, value: Any) -> float:
    number = None if isinstance(value, Moving) else number_in(value)
    if number is None:
        raise RuleTypeError(f"{what} is a number, got {type(value).__name__} {value!r:.40}")
    if not math.isfinite(number):
        raise RuleValueError(f"{what} is finite, got {number!r}")
    return number


def read_whole(what: str, value: Any, least: int) -> int:
    number = read_number(what, value)
    if number != int(number):
        raise RuleTypeError(f"{what} is a whole number, got {value!r:.40}")
    if number < least:
        raise RuleValueError(f"{what} is >= {least}, got {value!r:.40}")
    return int(number)


def number_in(value: Any) -> float | None:
    """Return a number, also that in a tensor without axes; None for anything else."""
    if isinstance(value, bool | str | bytes):
        return None
    if isinstance(value, Real):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if getattr(value, "shape", None) != () or "bool" in str(getattr(value, "dtype", "bool")):
        return None
    try:
        return concrete_number(value)
    except (BackendNotFound, TypeError, ValueError):
        return None


def name_of(fn: Callable[..., Any]) -> str:
    """Return the name by which a function is found again, "module:name".

    Raises:
        FormatError: there is none: a lambda, a function inside of another, a partial.
    """
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if module in sys.modules and name is not None and "<" not in name:
        found: Any = sys.modules[module]
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is fn:
            return f"{module}:{name}"
    raise FormatError(
        f"schedule of({fn!r:.60}) cannot be saved: no name of a module stands for the function. "
        "Define it by def at the top of a module"
    )


def find_function(fn: str) -> Callable[..., Any]:
    """Return the function of that name, in a module that is imported.

    Raises:
        FormatError: there is none.
    """
    module, _, name = str(fn).partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise FormatError(
            f"a saved schedule needs the function {fn!r:.60}: import {module!r} first"
        )
    return found
