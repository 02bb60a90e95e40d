"""Which of TensorFlow's operations a selector means: a type of op, or a function that makes
several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from types import CellType
from typing import Any

import tensorflow as tf

from multigrad.errors import RuleValueError
from multigrad.models.interpose import Meant, close, no_operation, unmet

ROOMS = (tf.nn, tf.math, tf)
SILENT = frozenset({"Const", "Placeholder", "Identity", "NoOp"})
# Of a public function's decorators: what they call the function that they were given.
HOLDERS = ("dispatch_target", "op", "fn")


@dataclass(frozen=True, slots=True)
class Called(Meant):
    """What a selector means: the type of an op, or a function by its name.

    Attributes:
        cell: what holds the function that a public name of TensorFlow's calls, where that makes
            several ops; None: a type of op is meant.
    """

    cell: CellType | None = field(default=None, compare=False)


def find(selector: Any) -> Called:
    """Return what a selector means.

    Raises:
        RuleTypeError: it is no operation.
        RuleValueError: TensorFlow has none of that name, or none that could be found in a call.
    """
    if isinstance(selector, str):
        type_ = "".join(part[:1].upper() + part[1:] for part in selector.split("_"))
        if hasattr(tf.raw_ops, type_):
            return Called(selector, type_)
        function = next(
            (getattr(room, selector) for room in ROOMS if hasattr(room, selector)), None
        )
        if function is None:
            near = close(selector, [*dir(tf.nn), *dir(tf.math), *dir(tf.raw_ops)])
            raise RuleValueError(f"TensorFlow has no operation {selector!r}{near}")
        return _of_function(selector, function)
    if not callable(selector):
        raise no_operation(selector)
    return _of_function(selector, selector)


def _of_function(selector: Any, function: Callable[..., Any]) -> Called:
    name = getattr(function, "__name__", type(function).__name__)
    types = types_made(function)
    if len(types) == 1:
        return Called(selector, types[0])
    if not types and hasattr(tf.raw_ops, name):
        return Called(selector, name)
    cell = target_of(function)
    if cell is None:
        made = f" ({', '.join(sorted(set(types)))})" if types else ""
        raise RuleValueError(
            f"{name!r} is not a single operation of TensorFlow{made}: select its ops by name"
        )
    return Called(selector, name, cell)


def types_made(function: Callable[..., Any]) -> list[str]:
    """Return the types of the ops that a function makes of an array, or of two."""
    for count in (1, 2):
        with suppress(Exception), tf.Graph().as_default() as graph:
            inputs = [tf.compat.v1.placeholder(tf.float32, (2, 3)) for _ in range(count)]
            function(*inputs)
            return [op.type for op in graph.get_operations() if op.type not in SILENT]
    return []


def target_of(function: Any) -> CellType | None:
    """Return what holds the function that a public name calls, inside of all its decorators."""
    found = None
    while True:
        names = function.__code__.co_freevars if hasattr(function, "__code__") else ()
        held = next((name for name in HOLDERS if name in names), None)
        if held is None:
            return found
        found = function.__closure__[names.index(held)]
        function = found.cell_contents


def refuse_unmet(name: str, meant: Meant, names: Iterable[str]) -> None:
    """Say which selector a function does not call.

    Raises:
        RuleValueError: always.
    """
    near, called = close(meant.name, names), set(names) - SILENT
    raise RuleValueError(unmet(f"function {name!r}", repr(meant.said), near, called))
