"""Arrays made from a shape alone, `torch.ones(x.shape)`: no symbolic value is among the arguments,
so no protocol helps.

Stand-ins for the libraries' functions take a symbolic shape; with any other shape the function
itself makes an array, which becomes a constant where it meets a symbolic value.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterable
from typing import Any

from ..ir.types import BOOL, T
from ..tracing import xp_all as xp
from ..tracing.trace import Value, cast, copy_of, dtype_name
from .symbols import SymbolicDType, SymbolicShape

Tensor = Any


def creators(libraries: Iterable[str]) -> dict[Any, Callable[..., Any]]:
    """Return the stand-ins for the creation functions that stand in the libraries' top modules, by
    function.
    """
    found: dict[Any, Callable[..., Any]] = {}
    for library in libraries:
        for name in (*CONVERTERS, *CREATORS):
            function = getattr(sys.modules.get(library), name, None)
            if function is not None:
                found[function] = creator(name, function)
    return found


def creator(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the stand-in for a library's creation function of that name."""
    if name in CONVERTERS:
        return functools.partial(_convert, CONVERTERS[name], function)
    return functools.partial(_create, CREATORS[name], function)


def _convert(
    is_copy: bool, function: Callable[..., Any], obj: Any, *args: Any, **kwargs: Any
) -> Any:
    """Return a symbolic tensor as it is, several as one; all else by the library's own function."""
    dtype = kwargs.get("dtype", args[0] if args else None)
    items = list(obj) if isinstance(obj, list | tuple) else []
    if any(isinstance(item, Value) and item.node.type.kind == "tensor" for item in items):
        obj = xp.stack(items, 0)
    if not isinstance(obj, Value):
        if isinstance(dtype, SymbolicDType) and dtype.symbol == T:  # as any constant has it
            return function(obj)
        return function(obj, *args, **kwargs)
    result = obj if dtype is None else cast(obj, dtype)
    return copy_of(result) if kwargs.get("copy", is_copy) else result


def _create(
    make: Callable[..., Any], function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Create like the tensor whose shape is given, else by the library's own function."""
    shape = args[0] if args else kwargs.get("size", kwargs.get("shape"))
    if not isinstance(shape, SymbolicShape):
        lengths = [
            tuple(map(length, a)) if isinstance(a, tuple | list) else length(a) for a in args
        ]
        return function(*lengths, **kwargs)
    return make(shape.value, *args[1:], **{k: v for k, v in kwargs.items() if k not in NOT_TAKEN})


def length(x: Any) -> Any:
    """Return a symbolic length as a Python number, for which its fact is needed."""
    return operator.index(x) if isinstance(x, Value) and x.node.type.dtype == "int" else x


# The rule's own device and layout are the only ones.
NOT_TAKEN = ("device", "layout", "like", "order", "pin_memory", "requires_grad", "shape", "size")


def with_numbers(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a library's function with Python numbers in place of symbolic ones, for which their
    facts are needed.
    """
    given = [number(value) for value in args]
    return function(*given, **{name: number(value) for name, value in kwargs.items()})


def number(x: Any) -> Any:
    """Return a symbolic scalar as a Python number."""
    if not isinstance(x, Value) or x.node.type.kind != "scalar":
        return x
    return operator.index(x) if x.node.type.dtype == "int" else float(x)


def weak(dtype: Any) -> Any:
    """Return the dtype of what is made: bool, or that of the rule's input, as for any constant."""
    return BOOL if dtype is not None and dtype_name(dtype) == BOOL else None


def ones(like: Tensor, dtype: Any = None) -> Tensor:
    return xp.ones_like(like, weak(dtype))


def zeros(like: Tensor, dtype: Any = None) -> Tensor:
    return xp.zeros_like(like, weak(dtype))


def full(like: Tensor, fill_value: Any, dtype: Any = None) -> Tensor:
    return xp.full_like(like, fill_value, weak(dtype))


def rand(like: Tensor, dtype: Any = None) -> Tensor:
    return xp.rand_like(like)


def randn(like: Tensor, dtype: Any = None) -> Tensor:
    return xp.randn_like(like)


def arange(like: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    raise TypeError("arange takes numbers, not a shape")


# Whether the result is a copy, which an update of the original does not reach.
CONVERTERS = {"array": True, "as_tensor": False, "asarray": False, "tensor": True}
CREATORS: dict[str, Callable[..., Any]] = {"empty": zeros} | {
    function.__name__: function for function in (arange, full, ones, rand, randn, zeros)
}
