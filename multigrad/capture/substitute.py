"""Substitution: copies of the user's own functions in which builtins see symbolic values.

Protocols reach every array function, but not `max(width, 1e-6)` or `len(x)`: those are replaced by name, in the rule
and in the helpers it calls. Libraries stay as they are.
"""

from __future__ import annotations

import builtins
import functools
import math
import sysconfig
import types
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from ..ir import neutral
from ..ir.record import Trace, Value
from .dialect import contents, find_hidden, is_instance, mentioned, nested_codes

RECORDING = tuple(f"{__name__.partition('.')[0]}.{room}" for room in ("capture", "ir"))
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def maximum_of(*args: Any, **kwargs: Any) -> Any:
    """The builtin `max`, which also takes symbolic scalars and tensors."""
    return _extreme(builtins.max, neutral.maximum, args, kwargs)


def minimum_of(*args: Any, **kwargs: Any) -> Any:
    """The builtin `min`, which also takes symbolic scalars and tensors."""
    return _extreme(builtins.min, neutral.minimum, args, kwargs)


def _extreme(
    plain: Callable[..., Any], symbolic: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> Any:
    values = list(args[0]) if len(args) == 1 and isinstance(args[0], list | tuple) else args
    if len(values) > 1 and not kwargs and any(isinstance(v, Value) for v in values):
        return functools.reduce(symbolic, values)
    return plain(*args, **kwargs)


def length_of(x: Any) -> Any:
    """The builtin `len`, which stays symbolic for a tensor."""
    return neutral.dim(x, 0) if isinstance(x, Value) else builtins.len(x)


BUILTINS: dict[str, Any] = {
    "isinstance": is_instance, "len": length_of, "max": maximum_of, "min": minimum_of,
}  # fmt: skip


def on_symbols(function: Callable[..., Any], symbolic: Callable[..., Any], *args: Any) -> Any:
    """Call a function of `math`; on a symbolic scalar, record what it means."""
    scalars = [a for a in args if isinstance(a, Value) and a.node.type.kind == "scalar"]
    return symbolic(*args) if scalars else function(*args)


MATH: dict[Any, Callable[..., Any]] = {
    math.ceil: neutral.ceil, math.cos: neutral.cos, math.erf: neutral.erf, math.exp: neutral.exp,
    math.expm1: neutral.expm1, math.fabs: neutral.abs, math.floor: neutral.floor,
    math.isfinite: neutral.isfinite, math.isinf: neutral.isinf, math.isnan: neutral.isnan,
    math.log1p: neutral.log1p, math.pow: neutral.pow, math.sin: neutral.sin,
    math.sqrt: neutral.sqrt, math.tanh: neutral.tanh, math.trunc: neutral.trunc, math.atan: neutral.atan,
}  # fmt: skip


def find_stand_ins(name: str) -> dict[Any, Callable[..., Any]]:
    """Return what stands in for the functions of that name that offer no protocol."""
    found = {
        function: functools.partial(on_symbols, function, symbolic)
        for function, symbolic in MATH.items()
        if function.__name__ == name
    }
    return {**find_hidden(name), **found}


class _Stand:
    """Stands in for a module some of whose functions offer no protocol; the rest is the module's own."""

    def __init__(self, module: types.ModuleType, names: dict[str, Any]) -> None:
        self.module = module
        self.names = names

    def __getattr__(self, name: str) -> Any:
        return self.names[name] if name in self.names else getattr(self.module, name)


def substitute(function: Callable[..., Any], trace: Trace) -> Callable[..., Any]:
    """Return a copy of a rule whose builtins see symbolic values, helpers included.

    A Python function, a bound method, a `functools.partial` or an object with `__call__` is copied down to its
    functions; anything else is returned as it is. A copy shares code and defaults with its original.
    """
    return _Substitution(trace, root_module(function)).replace(function)


def stand_in_for(value: Any, name: str, hidden: dict[str, dict[Any, Any]]) -> Any:
    """Return what stands in for a module or a function that a rule refers to; the value itself if nothing does."""
    if isinstance(value, types.ModuleType):
        found = {
            name: rows[theirs]
            for name, rows in hidden.items()
            if isinstance(theirs := getattr(value, name, None), Hashable) and theirs in rows
        }
        return _Stand(value, found) if found else value
    rows = hidden.get(name or getattr(value, "__name__", ""))
    return rows.get(value, value) if rows and isinstance(value, Hashable) else value


def plain_function(function: Any) -> types.FunctionType | None:
    """Return the Python function that a callable runs, or None where it has none."""
    while isinstance(function, functools.partial):
        function = function.func
    if not isinstance(function, types.FunctionType | types.MethodType):
        function = getattr(type(function), "__call__", None)  # noqa: B004  (the class's own, unbound)
    if isinstance(function, types.MethodType):
        function = function.__func__
    return function if isinstance(function, types.FunctionType) else None


def root_module(function: Any) -> str:
    """Return the top-level package in which a callable is defined."""
    plain = plain_function(function)
    return ((plain.__module__ if plain else None) or "").partition(".")[0]


def _referred(function: types.FunctionType) -> Iterator[Any]:
    """Yield what a function's names stand for: globals, closure, defaults."""
    yield from (value for _, value in mentioned(function))
    yield from map(contents, function.__closure__ or ())
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


class _Substitution:
    """Copies functions, each once; lives while one rule is prepared for a capture."""

    def __init__(self, trace: Trace, root: str) -> None:
        self.trace = trace
        self.root = root
        self.done: dict[types.FunctionType, types.FunctionType] = {}

    def replace(self, function: Any) -> Any:
        """Return the copy of any callable."""
        if isinstance(function, types.FunctionType):
            return self.copy(function)
        if isinstance(function, functools.partial):
            inner = self.replace(function.func)
            return functools.partial(inner, *function.args, **function.keywords)
        if isinstance(function, types.MethodType):
            return types.MethodType(self.replace(function.__func__), function.__self__)
        plain = plain_function(function)
        return function if plain is None else types.MethodType(self.copy(plain), function)

    def copy(self, function: types.FunctionType) -> types.FunctionType:
        """Return the copy of a Python function."""
        if function in self.done:
            return self.done[function]
        self.trace.codes.update(nested_codes(function.__code__))
        self.trace.numbers.update(v for v in _referred(function) if isinstance(v, float))
        namespace = dict(function.__globals__)
        own = namespace.get("__builtins__", builtins)
        namespace["__builtins__"] = {**(own if isinstance(own, dict) else vars(own)), **BUILTINS}
        hidden = {name: find_stand_ins(name) for name, _ in mentioned(function)}
        stands = [stand_in_for(contents(cell), "", hidden) for cell in function.__closure__ or ()]
        # A cell without a helper is shared, so that `nonlocal` works.
        cells = tuple(
            types.CellType()
            if self.is_users(contents(cell)) or stand is not contents(cell)
            else cell
            for cell, stand in zip(function.__closure__ or (), stands, strict=True)
        )
        copy = types.FunctionType(
            function.__code__, namespace, function.__name__, function.__defaults__, cells or None
        )
        copy.__kwdefaults__ = function.__kwdefaults__
        copy.__qualname__ = function.__qualname__
        self.done[function] = copy  # before what it refers to: it may refer to itself
        for name, value in mentioned(function):
            if self.is_users(value):
                namespace[name] = self.copy(value)
            elif (stand := stand_in_for(value, name, hidden)) is not value:
                namespace[name] = stand
        for cell, original, stand in zip(cells, function.__closure__ or (), stands, strict=True):
            if cell is not original:
                is_users = self.is_users(original.cell_contents)
                cell.cell_contents = self.copy(original.cell_contents) if is_users else stand
        return copy

    def is_users(self, helper: Any) -> bool:
        """Return whether a helper is the user's: of the rule's own package, or of no library."""
        if not isinstance(helper, types.FunctionType):
            return False
        module = helper.__module__ or ""
        if module.startswith(RECORDING):
            return False
        if module.partition(".")[0] == self.root:
            return True
        return not helper.__code__.co_filename.startswith((*LIBRARIES, "<"))
