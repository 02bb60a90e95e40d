"""Bases of our classes: a faster `dataclass`, `cached_property`, weak references, notebooks.

`dataclass` is the part of Python's that our classes use, made in a quarter of the time: Python
compiles each method of each class, which was a fifth of the time until a first gradient. Here only
`__init__` is compiled, since calls name its parameters; other methods read the fields by name.
Tests: `tests/graph/support/test_data.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import MISSING, Field, FrozenInstanceError
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
    from functools import cached_property
else:

    class cached_property(functools.cached_property):
        """Python's, without the lock that it has before Python 3.12."""

        def __init__(self, function):
            # A forked child would wait forever for the thread of its parent that held the lock.
            super().__init__(function)
            self.lock = nullcontext()

    # Without annotations: for type checkers the name is Python's own.
    def dataclass(cls=None, /, *, frozen=False, slots=False, eq=True):
        if cls is not None:
            return make_dataclass(cls, frozen, slots, eq)
        return lambda cls: make_dataclass(cls, frozen, slots, eq)


# The methods that `dataclass` makes.
GENERATED = ("__init__", "__repr__", "__eq__", "__hash__", "__getstate__", "__setstate__")


def make_dataclass(cls: type, frozen: bool, slots: bool, eq: bool) -> type:
    """Return a class with the methods of a dataclass, unless it defines them itself."""
    user_defined = {name for name in GENERATED if name in vars(cls)}
    # Python sets `__hash__ = None` where a class defines only `__eq__`.
    if vars(cls).get("__hash__", True) is None:
        user_defined.discard("__hash__")
    # Python's own collects the fields, and compiles nothing with these options.
    new_cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    fields = dataclasses.fields(new_cls)
    methods: dict[str, Any] = {
        "__init__": init_of(new_cls, fields, frozen),
        "__repr__": repr_of(tuple(each.name for each in fields if each.repr)),
    }
    if eq:
        methods["__eq__"], hasher = compare_of(tuple(each.name for each in fields if each.compare))
        methods["__hash__"] = hasher if frozen else None
    if frozen:
        new_cls.__setattr__, new_cls.__delattr__ = refuse_to_set, refuse_to_delete
    if frozen and slots:
        methods["__getstate__"], methods["__setstate__"] = get_state, set_state
    for name, method in methods.items():
        if name not in user_defined:
            setattr(new_cls, name, method)
    return new_cls


def init_of(cls: type, fields: tuple[Field[Any], ...], frozen: bool) -> Callable[..., None]:
    # What the compiled code reads: defaults and factories as well.
    namespace: dict[str, Any] = {"setattr_": object.__setattr__, "MISSING": MISSING}
    parameters, lines = ["self"], []
    for each in fields:
        name = value = each.name
        default_source = ""
        if each.default is not MISSING:
            default_source = f"default_{name}"
            namespace[default_source] = each.default
        elif each.default_factory is not MISSING:
            namespace[f"make_{name}"] = each.default_factory
            default_source, value = "MISSING", f"make_{name}() if {name} is MISSING else {name}"
        if each.init:
            parameters.append(f"{name}={default_source}" if default_source else name)
        elif default_source:
            value = f"make_{name}()" if default_source == "MISSING" else default_source
        else:  # `__post_init__` sets it
            continue
        lines.append(f"setattr_(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    body = "\n    ".join(lines or ["pass"])
    exec(f"def __init__({', '.join(parameters)}):\n    {body}\n", namespace)  # noqa: S102
    method = namespace["__init__"]
    method.__qualname__, method.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    return method


def repr_of(names: tuple[str, ...]) -> Callable[[Any], str]:
    def __repr__(self: Any) -> str:
        fields = ", ".join([f"{name}={getattr(self, name)!r}" for name in names])
        return f"{type(self).__qualname__}({fields})"

    return __repr__


def compare_of(names: tuple[str, ...]) -> tuple[Callable[..., Any], Callable[[Any], int]]:
    values_of = operator.attrgetter(*names) if len(names) > 1 else partial(tuple_of, names)

    def __eq__(self: Any, other: object) -> Any:
        # Only values of the same class are compared, as by Python's own dataclass.
        return values_of(self) == values_of(other) if type(other) is type(self) else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(values_of(self))

    return __eq__, __hash__


def tuple_of(names: tuple[str, ...], value: Any) -> tuple[Any, ...]:
    return tuple([getattr(value, name) for name in names])


def refuse_to_set(self: Any, name: str, value: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def refuse_to_delete(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def get_state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def set_state(self: Any, state: list[Any]) -> None:
    for each, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)


class HeldWeakly:
    """A base of dataclasses with slots whose objects weak references may point to."""

    # From Python 3.11 on `weakref_slot=True` does the same.
    __slots__ = ("__weakref__",)


class InNotebooks:
    """A base of objects that have a page of their own in notebooks."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        # By name: the page's module may not be imported by the object's own.
        return import_module("multigrad.look.notebook").html_of(self)


class Shown(str):
    """A text for readers: a prompt and a notebook show it as printed."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
