"""Copies of objects: in their present state, or with other tensors than their own.

A capture of a method runs on a `FilledCopy`, whose tensors are symbols; the object itself is not
touched. Afterwards `FilledCopy.changed` says whether the code has assigned to the copy.
"""

from __future__ import annotations

import copy
import types
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...errors import RuleTypeError
from ...trace.identity import attributes_of
from ...trace.trace import Trace, Value
from .inspection import held_around, mentioned, nested_codes
from .libraries import is_library_file
from .object_state import ObjectState, StateReader, contents_of, may_hold_tensors
from .snapshot import assign


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
    """A copy of an object with other tensors.

    Attributes:
        object: the copy, which shares with the original all values that lead to no tensor.
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
            return self._tensors[id(value)]
        if id(value) not in self._leading:
            return value
        known = self._copies.get(id(value))
        if known is not None:
            return known
        kind = type(value)
        if isinstance(value, tuple):
            items = map(self._copy, value)
            made = tuple(items) if kind is tuple else kind._make(items)  # type: ignore[attr-defined]
            return self._copies.setdefault(id(value), made)
        if kind is types.MethodType:
            return types.MethodType(value.__func__, self._copy(value.__self__))
        if isinstance(value, types.FunctionType):
            return self._copy_function(value)
        made = self._copies[id(value)] = _empty(value)
        for name, held in contents_of(value):
            if isinstance(value, list):
                made.append(self._copy(held))
            elif isinstance(value, dict):
                made[name] = self._copy(held)
            else:
                assign(made, name, self._copy(held))
        return made

    def _copy_function(self, function: types.FunctionType) -> types.FunctionType:
        named = {
            name: self._copy(held) for name, held in mentioned(function) if may_hold_tensors(held)
        }
        cells = [
            cell if self._copy(held) is held else types.CellType(self._copy(held))
            for cell, held in zip(function.__closure__ or (), held_around(function), strict=True)
        ]
        made = types.FunctionType(
            function.__code__,
            {**function.__globals__, **named},
            function.__name__,
            function.__defaults__,
            tuple(cells),
        )
        made.__kwdefaults__, made.__module__ = function.__kwdefaults__, function.__module__
        return self._copies.setdefault(id(function), made)

    def mention(self, trace: Trace) -> None:
        """Let messages name lines of the user's classes."""
        copies = self._copies.values()
        for kind in {type(each) for each in copies if not isinstance(each, list | tuple | dict)}:
            for method in vars(kind).values():
                code = getattr(method, "__code__", None)
                if code is not None and not is_library_file(code.co_filename):
                    trace.source.codes.update(nested_codes(code))

    def changed(self) -> str:
        """Return in words an assignment to the copy, which the object would keep; "" for none.

        A new attribute that holds no symbol may be a cache.
        """
        for each, rows in self._before:
            before = dict(rows)
            for name, now in contents_of(each):
                is_new = name not in before
                if now is not before.get(name) and (not is_new or isinstance(now, Value)):
                    return f"assigns to {name!r} of {_shown(each)}"
        return ""


def _empty(value: Any) -> Any:
    # Attributes that are not read (a library's bookkeeping) are shared with the original.
    if isinstance(value, list):
        return []
    if isinstance(value, dict):
        return OrderedDict() if isinstance(value, OrderedDict) else {}
    made = object.__new__(type(value))
    for name, held in attributes_of(value):
        assign(made, name, held)
    return made


def _shown(holder: Any) -> str:
    is_container = isinstance(holder, list | tuple | dict)
    return "what it holds" if is_container else f"a {type(holder).__name__}"
