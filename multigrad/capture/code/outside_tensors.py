"""Tensors that a function refers to by a name of its module, of the function around it, or as a
default: small ones are constants of a graph, whose values are looked at anew at each call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from ...backend.finding.discovery import backend_of
from ...errors import BackendNotFound
from ...trace.scope.reads import Telling
from ...trace.trace import Trace
from .table import contents, mentioned

MOST_ELEMENTS = 1024
MOST_ITEMS = 64


class OutsideTensor(Telling):
    """The fact that tells a tensor's values: it is where it was, and holds what it held."""

    read: Callable[[], Any]
    path: tuple[int, ...]

    @classmethod
    def found(cls, anchor: Any, name: str, read: Callable[[], Any], path: Any = ()) -> Any:
        """Return the fact about what `read` gives, or about what lies in the tuples there.

        `anchor` is kept alive by `read`, so that its id is no other object's.
        """
        fact = cls(f"tensor {id(anchor)} {name} {path}")
        fact.read, fact.path = read, path
        return fact

    def meaning(self) -> Any:
        """Return its values as a key, None where there are none to be read."""
        found = self.read()
        for place in self.path:
            if not isinstance(found, tuple) or place >= len(found):
                return None
            found = found[place]
        return values_of(found)


def values_of(value: Any) -> Any:
    """Return a small tensor's values as a key, None for anything else."""
    try:
        tensors = backend_of(value).tensors
        if tensors.is_traced(value) or math.prod(value.shape) > MOST_ELEMENTS:
            return None
        array = np.asarray(tensors.to_numpy(value))
    except (AttributeError, BackendNotFound, NotImplementedError, RuntimeError, TypeError):
        return None
    return array.dtype.str, array.shape, array.tobytes()


def tensors_of(function: FunctionType) -> Iterator[tuple[Any, OutsideTensor]]:
    """Yield the tensors that a function refers to, and the facts about them."""
    namespace = function.__globals__
    for name, value in mentioned(function):
        yield from _inside(value, namespace, name, partial(namespace.get, name))
    for cell in function.__closure__ or ():
        yield from _inside(contents(cell), cell, "", partial(contents, cell))
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield from _inside(value, value, "", partial(_given, value))


def note_constants(trace: Trace, module: ModuleType, name: str) -> None:
    """Note what stands in a module under a name: a number such as pi, tensors."""
    value = getattr(module, name)
    if type(value) is float:
        trace.numbers.add(value)
    found = _inside(value, module, name, partial(getattr, module, name, None))
    trace.sources.update((id(tensor), fact) for tensor, fact in found)


def _given(value: Any) -> Any:
    return value


def _inside(
    value: Any, anchor: Any, name: str, read: Callable[[], Any], path: tuple[int, ...] = ()
) -> Iterator[tuple[Any, OutsideTensor]]:
    if isinstance(value, tuple) and len(value) <= MOST_ITEMS:
        for i, each in enumerate(value):
            yield from _inside(each, anchor, name, read, (*path, i))
    elif isinstance(value, type) and not path:
        if held := defaults_of(value):
            yield from _inside(held, value, "", partial(defaults_of, value))
    elif hasattr(type(value), "dtype") and hasattr(type(value), "shape") and _is_foreign(value):
        yield value, OutsideTensor.found(anchor, name, read, path)


def defaults_of(kind: type) -> tuple[Any, ...]:
    """Return what a class holds for its objects: its attributes, and its constructor's defaults."""
    held: list[Any] = []
    for base in kind.__mro__[:-1]:
        for name, value in list(vars(base).items()):
            function = getattr(value, "__func__", value)
            is_made = name in ("__new__", "__init__")
            held += (getattr(function, "__defaults__", None) or ()) if is_made else (value,)
    return tuple(each for each in held if hasattr(type(each), "dtype"))[:MOST_ITEMS]


def _is_foreign(value: Any) -> bool:
    """Return whether a value is a framework's tensor; the values of NumPy's arrays are taken
    once.
    """
    try:
        return backend_of(value).name != "numpy"
    except BackendNotFound:
        return False
