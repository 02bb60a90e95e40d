"""Dialects: which foreign function means which op.

An alias is keyed by (dialect, callable), because the same name has other defaults elsewhere (`torch.std`
divides by n - 1, `np.std` by n). A backend contributes its framework's table; NumPy's stands here.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import TraceError
from ..ir import neutral
from ..ir.record import Trace, Value

Handler = Callable[..., Any]

_aliases: dict[str, Mapping[Any, Handler]] = {}


def register_dialect(name: str, aliases: Mapping[Any, Handler]) -> None:
    """Add a dialect: its callables and what each records."""
    _aliases[name] = aliases


def record_call(dialect: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a foreign function called with symbolic values."""
    trace = _find_trace((*args, *kwargs.values()))
    handler = _aliases.get(dialect, {}).get(function)
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", function)
    if handler is None:
        raise trace.error(
            f"calls {dialect}'s {name}, which is not captured. "
            f"Write it with xg.xp, or register the rule with native=True to run it as it is"
        )
    try:
        return handler(*args, **kwargs)
    except TypeError as error:
        raise trace.error(f"calls {dialect}'s {name} in a way not captured: {error}") from error


def _find_trace(values: tuple[Any, ...]) -> Trace:
    for value in values:
        if isinstance(value, Value):
            return value.trace
        if isinstance(value, tuple | list):
            inner = [v for v in value if isinstance(v, Value)]
            if inner:
                return inner[0].trace
    raise TraceError("no symbolic value among the arguments")


# --- substitution ---------------------------------------------------------------------------------


def maximum_of(*args: Any, **kwargs: Any) -> Any:
    """The builtin `max`, which also takes symbolic scalars and tensors."""
    if len(args) > 1 and builtins.any(isinstance(a, Value) for a in args):
        result = args[0]
        for other in args[1:]:
            result = neutral.maximum(result, other)
        return result
    return builtins.max(*args, **kwargs)


def minimum_of(*args: Any, **kwargs: Any) -> Any:
    """The builtin `min`, which also takes symbolic scalars and tensors."""
    if len(args) > 1 and builtins.any(isinstance(a, Value) for a in args):
        result = args[0]
        for other in args[1:]:
            result = neutral.minimum(result, other)
        return result
    return builtins.min(*args, **kwargs)


BUILTINS: dict[str, Any] = {"max": maximum_of, "min": minimum_of}


def substitute(function: types.FunctionType, trace: Trace) -> types.FunctionType:
    """Return a copy of a Python function whose builtins see symbolic values, helpers included.

    The copy shares code, defaults and closure; its globals are a copy in which user helpers are
    substituted too. Library functions stay as they are: they dispatch by protocol.
    """
    return _substitute(function, trace, {})


def _substitute(
    function: types.FunctionType, trace: Trace, done: dict[types.FunctionType, Any]
) -> types.FunctionType:
    if function in done:
        return done[function]
    trace.codes.add(function.__code__)
    namespace = dict(function.__globals__)
    own = namespace.get("__builtins__", builtins)
    namespace["__builtins__"] = {
        **(own if isinstance(own, dict) else vars(own)),
        **BUILTINS,
    }
    closure = function.__closure__
    copy = types.FunctionType(
        function.__code__, namespace, function.__name__, function.__defaults__, closure
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    done[function] = copy
    for name in function.__code__.co_names:
        helper = function.__globals__.get(name)
        if _is_users(helper, function):
            namespace[name] = _substitute(helper, trace, done)
    if closure:
        cells = tuple(_substitute_cell(cell, function, trace, done) for cell in closure)
        if cells != closure:
            again = types.FunctionType(
                function.__code__, namespace, function.__name__, function.__defaults__, cells
            )
            again.__kwdefaults__ = function.__kwdefaults__
            done[function] = again
            return again
    return copy


def _substitute_cell(
    cell: types.CellType,
    function: types.FunctionType,
    trace: Trace,
    done: dict[types.FunctionType, Any],
) -> types.CellType:
    try:
        helper = cell.cell_contents
    except ValueError:  # an empty cell: the name is not bound yet
        return cell
    if _is_users(helper, function):
        return types.CellType(_substitute(helper, trace, done))
    return cell


def _is_users(helper: Any, function: types.FunctionType) -> bool:
    """Return whether a helper stands in the same package as the rule, so that it is the user's."""
    if not isinstance(helper, types.FunctionType) or helper is function:
        return False
    own = (function.__module__ or "").partition(".")[0]
    return (helper.__module__ or "").partition(".")[0] == own
