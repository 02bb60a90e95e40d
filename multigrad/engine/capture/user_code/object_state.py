"""The state of an object whose method is captured: its tensors, and a key of all else in it.

An object may change between calls: an optimizer steps, `load_state_dict` replaces tensors,
`.eval()` sets a flag. So `read_state` is called at each call:

    layer                            tensors: {"weight": ..., "inner.bias": ...}
      .weight      a tensor          key: (Layer, "weight", ("tensor", 0), "rate", 0.1,
      .rate        0.1                     "inner", Dense, "bias", ("tensor", 1))
      .inner.bias  a tensor

The tensors become inputs of the graph; one capture serves all states with equal keys. A capture
runs on a `FilledCopy`, whose tensors are symbols; `FilledCopy.changed` says whether the code has
assigned to it.
"""

from __future__ import annotations

import copy
import functools
import types
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ....core.backend.discovery import backend_of
from ....core.ir.op import BOOL, FLOATS, WHOLE, dtype_name
from ....core.trace.identity import Same, is_plain, value_key
from ....core.trace.trace import Value
from ....errors import BackendNotFound, RuleTypeError
from ...trace.code_trace import CodeTrace
from ...trace.contents import attributes_of
from ..dialect import load_dialects, registered_dialects
from .inspection import held_around, mentioned, nested_codes
from .libraries import OWN, is_library_file
from .snapshot import assign

MOST_VALUES = 20_000  # values that are read; the rest is compared by identity
MOST_BYTES = 4096  # of an array that is compared by its values
CONTAINERS = (list, tuple, dict, OrderedDict)
FIXED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
# Attributes that hold what users know as attributes: of torch modules and flax nnx variables.
UNNAMED = ("_parameters", "_buffers", "_modules", "_raw_value")


@dataclass(slots=True)
class ObjectState:
    """The present state of an object.

    Attributes:
        tensors: each once, by the path from the object.
        holders: the object that holds each, by the same paths.
        key: equal if one capture serves.
        leading: the ids of all values on a path to a tensor.
    """

    tensors: dict[str, Any] = field(default_factory=dict)
    holders: dict[str, Any] = field(default_factory=dict)
    key: tuple[Any, ...] = ()
    leading: set[int] = field(default_factory=set)

    @property
    def home(self) -> str:
        """The framework of its tensors, "" if it has none."""
        tensors = map(held_by, self.tensors.values())
        return next((backend_of(tensor).name for tensor in tensors), "")


def read_state(owner: Any) -> ObjectState:
    """Return the state of an object, of a tuple's objects, or of a function's references."""
    load_dialects()  # they recognize variables
    items = owner if type(owner) is tuple else ()
    reader = StateReader({id(owner), *map(id, items)})
    reader.visit(owner, ())
    reader.state.key = tuple(reader.key_parts)
    return reader.state


class StateReader:
    """One walk through an object: its state, but for the key, which `key_parts` will make."""

    def __init__(self, roots: set[int]) -> None:
        self.roots = roots  # by id, where the walk begins; functions elsewhere are not opened
        self.state = ObjectState()
        self.key_parts: list[Any] = []
        self.serials: dict[int, int] = {}  # by id, the number of a tensor
        self.numbers: dict[int, int] = {}  # of open values, in the order of first visits

    def visit(self, value: Any, path: tuple[str, ...], holder: Any = None) -> bool:
        """Read a value and return whether it is, or leads to, a tensor."""
        if is_plain(value):
            self.key_parts.append(value_key(value))
            return False
        # Shared and cyclic references are part of the key, by the number of the first visit.
        if id(value) in self.numbers:
            self.key_parts.append(("again", self.numbers[id(value)]))
            return id(value) in self.state.leading
        if _is_tensor(value) or _is_known_variable(value):
            self._see_tensor(value, path, holder)
            return True
        if isinstance(value, np.ndarray):
            # By its values, since they become constants; a large one by identity.
            is_opaque = value.nbytes > MOST_BYTES or value.dtype.hasobject
            row = (value.shape, value.dtype.str)
            self.key_parts.append(Same(value) if is_opaque else (*row, value.tobytes()))
            return False
        is_root = id(value) in self.roots and isinstance(value, types.FunctionType)
        if len(self.key_parts) > MOST_VALUES or not (is_root or is_open(value)):
            self.key_parts.append(Same(value))
            return False
        self.numbers[id(value)] = len(self.numbers)
        self.key_parts.append(type(value))
        leads_to_tensor = False
        for name, content in contents_of(value):
            self.key_parts.append(name if isinstance(name, str | int) else value_key(name))
            leads_to_tensor |= self.visit(
                content, path if name in UNNAMED else (*path, str(name)), value
            )
        if leads_to_tensor:
            self.state.leading.add(id(value))
        return leads_to_tensor

    def _see_tensor(self, tensor: Any, path: tuple[str, ...], holder: Any) -> None:
        serial = self.serials.setdefault(id(tensor), len(self.serials))
        self.key_parts.append(("tensor", serial))
        if serial == len(self.state.tensors):
            name = ".".join(path)
            # Paths may coincide, since the names in UNNAMED are left out.
            while name in self.state.tensors:
                name += "'"
            self.state.tensors[name], self.state.holders[name] = tensor, holder


def _is_tensor(value: Any) -> bool:
    # A framework's tensor of a dtype that is captured.
    if isinstance(value, Value):  # of a capture that fills the object
        return value.node.type.kind == "tensor"
    if not hasattr(type(value), "shape"):
        return False
    try:
        if backend_of(value).name == "numpy":
            return False
        return dtype_name(value.dtype) in (*FLOATS, *WHOLE, BOOL)
    except BackendNotFound:
        return False


def is_variable(value: Any) -> bool:
    """Return whether a value is a variable of a library above the frameworks."""
    return any(isinstance(value, d.state.variables) for d in registered_dialects().values())


def _is_known_variable(value: Any) -> bool:
    return is_variable(value) and _is_tensor(value.value)


def describe(value: Any) -> tuple[str, bool] | None:
    """Return a library's name for a variable or holder ("": the path to it), and whether it is
    trained; None if unknown.
    """
    descriptions = (dialect.state.describe for dialect in registered_dialects().values())
    return next(filter(None, (each(value) for each in descriptions if each is not None)), None)


def holding(variable: Any, tensor: Any) -> Any:
    """Return what stands for a variable, or a tensor, where it holds another tensor."""
    if tensor is variable or isinstance(tensor, Value) or not _is_known_variable(variable):
        return tensor
    states = (dialect.state for dialect in registered_dialects().values())
    make = next(each.holding for each in states if isinstance(variable, each.variables))
    return tensor if make is None else make(variable, tensor)


def held_by(value: Any) -> Any:
    """Return the tensor that a variable holds now, or the tensor itself."""
    return value.value if _is_known_variable(value) else value


def is_open(value: Any) -> bool:
    """Return whether a value's contents are read: those of containers, bound methods and objects
    with attributes; not of classes, modules and functions, nor of our objects but layers.
    """
    kind = type(value)
    if kind in CONTAINERS or kind is types.MethodType:
        return True
    if isinstance(value, FIXED):
        return False
    if kind.__module__.startswith(OWN) and not getattr(kind, "holds_weights", False):
        return False
    if isinstance(value, tuple):
        return hasattr(kind, "_make")
    if isinstance(value, list | dict):  # a subclass, such as one that tracks its items
        return True
    if isinstance(value, set | frozenset):
        return False
    if any(kind in dialect.gradients.wrappers for dialect in registered_dialects().values()):
        return False  # the result of a decorator
    return hasattr(value, "__dict__") and _is_plain_class(kind)


def _is_plain_class(kind: type) -> bool:
    # An object of the class can be made and filled without its constructor.
    if hasattr(kind, "__del__"):  # it would need what the constructor makes
        return False
    try:
        return type(object.__new__(kind)) is kind
    except TypeError:  # created in another way
        return False


def contents_of(value: Any) -> list[tuple[Any, Any]]:
    """Return the contents of an open value as (name, value) pairs."""
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    if isinstance(value, types.MethodType):
        return [("__self__", value.__self__)]
    if isinstance(value, types.FunctionType):
        closure = zip(value.__code__.co_freevars, held_around(value), strict=True)
        references = (*closure, *mentioned(value))
        return [(name, content) for name, content in references if may_hold_tensors(content)]
    ignored = frozenset[str]().union(*(d.state.bookkeeping for d in registered_dialects().values()))
    return [(name, content) for name, content in attributes_of(value) if name not in ignored]


def may_hold_tensors(value: Any) -> bool:
    """Return whether a value is an open object that may hold tensors but is none."""
    is_tensor = hasattr(type(value), "shape")
    return is_open(value) and not is_tensor and not isinstance(value, list | tuple | dict)


# --- copies: in their present state, or with other tensors than their own -------------------------
def copied(called: Any) -> Any:
    """Return a copy of a callable in its present state; its tensors may be shared."""
    owner = called.__self__ if isinstance(called, types.MethodType) else called
    if type(owner).__reduce__ is object.__reduce__:
        try:
            return copy.deepcopy(called)
        except (RuntimeError, TypeError) as error:
            raise RuleTypeError(
                f"a {type(owner).__name__} cannot be copied: {error}. Delete first what it has "
                "computed and keeps, as a functools.cached_property is kept"
            ) from error
    # deepcopy would recreate it from a description, which may be incomplete, as of a Keras layer.
    reader = StateReader({id(called)})
    reader.visit(called, ())
    return FilledCopy(called, replace(reader.state, leading=set(reader.numbers)), {}).object


class FilledCopy:
    """A copy of an object with other tensors: `object`, which shares with the original all values
    that lead to no tensor.
    """

    def __init__(self, owner: Any, state: ObjectState, tensors: Mapping[str, Any]) -> None:
        """Copy `owner`; `tensors` replace its own, by the names in `state`, where there is one."""
        self._leading = state.leading
        self._tensors = {id(own): tensors.get(name, own) for name, own in state.tensors.items()}
        self._copies: dict[int, Any] = {}
        self.object = self._copy(owner)
        self._before = [(each, contents_of(each)) for each in self._copies.values()]

    def _copy(self, value: Any) -> Any:
        if id(value) in self._tensors:
            return holding(value, self._tensors[id(value)])
        if id(value) not in self._leading:
            return value
        earlier_copy = self._copies.get(id(value))
        if earlier_copy is not None:
            return earlier_copy
        kind = type(value)
        if isinstance(value, tuple):
            items = map(self._copy, value)
            clone = tuple(items) if kind is tuple else kind._make(items)  # type: ignore[attr-defined]
            return self._copies.setdefault(id(value), clone)
        if kind is types.MethodType:
            return types.MethodType(value.__func__, self._copy(value.__self__))
        if isinstance(value, types.FunctionType):
            return self._copy_function(value)
        clone = self._copies[id(value)] = _empty(value)
        for name, content in contents_of(value):
            if isinstance(value, list):
                clone.append(self._copy(content))
            elif isinstance(value, dict):
                clone[name] = self._copy(content)
            else:
                assign(clone, name, self._copy(content))
        return clone

    def _copy_function(self, function: types.FunctionType) -> types.FunctionType:
        replacements = {
            name: self._copy(item) for name, item in mentioned(function) if may_hold_tensors(item)
        }
        cells = [
            cell if self._copy(item) is item else types.CellType(self._copy(item))
            for cell, item in zip(function.__closure__ or (), held_around(function), strict=True)
        ]
        clone = types.FunctionType(
            function.__code__,
            {**function.__globals__, **replacements},
            function.__name__,
            function.__defaults__,
            tuple(cells),
        )
        clone.__kwdefaults__, clone.__module__ = function.__kwdefaults__, function.__module__
        return self._copies.setdefault(id(function), clone)

    def mention(self, trace: CodeTrace) -> None:
        """Let messages name lines of the user's classes."""
        copies = self._copies.values()
        for kind in {type(each) for each in copies if not isinstance(each, list | tuple | dict)}:
            for method in vars(kind).values():
                code = getattr(method, "__code__", None)
                if code is not None and not is_library_file(code.co_filename):
                    trace.source.codes.update(nested_codes(code))

    def changed(self, *, may_add: bool = False) -> str:
        """Return in words an assignment to the copy, which the object would keep; "" for none.

        `may_add`: whether a new attribute is none, which counts only where it holds a symbol.
        """
        for each, rows in self._before:
            before = dict(rows)
            for name, value in contents_of(each):
                declared = getattr(type(each), str(name), None)
                is_cache = isinstance(declared, functools.cached_property)
                is_cache |= name not in before and (may_add or not isinstance(value, Value))
                if value is not before.get(name) and not is_cache:
                    return f"assigns to {name!r} of {_shown(each)}"
        return ""

    def added(self, *, drops: bool) -> str:
        """Return in words an attribute that only the copy has, "" for none, and drop all such."""
        words = ""
        for each, rows in self._before:
            for name in {name for name, _ in contents_of(each)} - {name for name, _ in rows}:
                words = words or f"{name!r}, which {_shown(each)} keeps"
                if drops:
                    vars(each).pop(name, None)
        return words


def _empty(value: Any) -> Any:
    # Attributes that are not read (a library's bookkeeping) are shared with the original.
    if isinstance(value, list):
        return []
    if isinstance(value, dict):
        return OrderedDict() if isinstance(value, OrderedDict) else {}
    clone = object.__new__(type(value))
    for name, content in attributes_of(value):
        assign(clone, name, content)
    return clone


def _shown(holder: Any) -> str:
    is_container = isinstance(holder, list | tuple | dict)
    return "what it holds" if is_container else f"a {type(holder).__name__}"
