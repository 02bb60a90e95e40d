"""torch's operations, each under one name for its functions, methods and operators."""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
import torch.nn.functional as F

from ..versions import COMPILES

Function = Callable[..., Any]

# The name used here for an operation, by its other names.
SAME = {
    "truediv": "div", "itruediv": "div", "rtruediv": "div", "divide": "div", "true_divide": "div",
    "rdiv": "div", "multiply": "mul", "subtract": "sub", "rsub": "sub", "negative": "neg",
    "absolute": "abs", "clip": "clamp", "expit": "sigmoid", "mm": "matmul", "invert": "bitwise_not",
    "arctan": "atan", "arcsin": "asin", "arccos": "acos", "arctanh": "atanh", "arcsinh": "asinh",
    "arccosh": "acosh", "arctan2": "atan2", "concat": "cat", "concatenate": "cat", "fix": "trunc",
    "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne",
    "swapaxes": "transpose", "swapdims": "transpose", "row_stack": "vstack", "getitem": "getitem",
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "floordiv": "floor_divide",
    "mod": "remainder", "log_sigmoid": "logsigmoid", "moveaxis": "movedim",
    "max_pool1d_with_indices": "max_pool1d",
    "max_pool2d_with_indices": "max_pool2d", "max_pool3d_with_indices": "max_pool3d",
    "adaptive_max_pool1d_with_indices": "adaptive_max_pool1d",
    "adaptive_max_pool2d_with_indices": "adaptive_max_pool2d",
    "adaptive_max_pool3d_with_indices": "adaptive_max_pool3d",
}  # fmt: skip
HOMES = (torch, torch.Tensor, F, torch.special, torch.linalg, torch.fft)
CALLABLES = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)


def name_operation(function: Any) -> str:
    name = getattr(function, "__name__", "") or ""
    if isinstance(function, torch._ops.OpOverload):
        name = name.partition(".")[0]
    if name.startswith("__") and name.endswith("__"):
        word = name[2:-2]
        # `__iadd__` and `__radd__` are add, but `__invert__` is no in-place `nvert`.
        for prefix in ("", "i", "r"):
            plain = SAME.get(word.removeprefix(prefix), word.removeprefix(prefix))
            if word.startswith(prefix) and plain in read_names()[0]:
                return plain
        return SAME.get(word, word)
    for home in ("special_", "linalg_", "fft_"):
        name = name.removeprefix(home)
    name = name.strip("_") or name
    return SAME.get(name, name)


@functools.cache
def read_names() -> tuple[frozenset[str], frozenset[str]]:
    """Return the names in torch's namespaces without the operators', and the operations' names."""
    found = {
        name.rstrip("_")
        for home in HOMES
        for name in dir(home)
        if not name.startswith("_") and isinstance(getattr(home, name, None), CALLABLES)
    }
    found.add("getitem")
    return frozenset(found), frozenset(SAME.get(name, name) for name in found)


def operation_names() -> frozenset[str]:
    return read_names()[1]


@functools.cache
def known_functions() -> dict[Any, str]:
    found = {
        value: name_operation(value)
        for home in HOMES
        for name in dir(home)
        if is_public(name) and isinstance(value := getattr(home, name, None), CALLABLES)
    }
    operators = {
        value: name_operator(name)
        for name, value in vars(operator).items()
        if isinstance(value, types.BuiltinFunctionType)
    }
    return (
        found
        | {abs: "abs", pow: "pow"}
        | {value: name for value, name in operators.items() if name}
    )


def name_operator(name: str) -> str | None:
    found = name_operation(types.SimpleNamespace(__name__=f"__{name.strip('_')}__"))
    return found if found in operation_names() else None


def is_public(name: str) -> bool:
    """Return whether a name is public, as those of operators are."""
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


def find_operation(selector: Any) -> str | None:
    """Return the operation that a selector means, or None."""
    if isinstance(selector, str):
        return selector if selector in operation_names() else None
    if isinstance(selector, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return name_operation(selector)
    try:
        name = known_functions().get(selector)
    except TypeError:  # no hash
        return None
    return name if name in operation_names() else None


# --- functions of torch that call others ----------------------------------------------------------

HAS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


def has_none(*args: Any) -> bool:
    """Return False, as `has_torch_function` in a function that is seen through."""
    return False


@functools.cache
def see_through(function: types.FunctionType) -> Function:
    """Return one of torch's Python functions so that modes see the calls within it."""
    # Without `__name__`, or Dynamo would read the globals from the module of that name.
    names = {**function.__globals__, **dict.fromkeys(HAS, has_none)}
    del names["__name__"]
    seen = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    seen.__kwdefaults__ = function.__kwdefaults__
    return seen


def let_dynamo_dispatch(functions: Iterable[Any]) -> None:
    """Let Dynamo ask modes about functions."""
    if COMPILES:
        # Dynamo asks only about those that torch lists as overridable (torch 2.13): hardswish, tanh
        # and relu_ are not among them.
        from torch._dynamo.variables.torch import get_overridable_functions

        get_overridable_functions().update(functions)


def overloaded(name: str) -> tuple[tuple[Any, ...], ...]:
    """Return torch's operators of a name, also in place: each packet and its overloads."""
    packets = (getattr(torch.ops.aten, each, None) for each in (name, f"{name}_"))
    return tuple(
        (packet, *(getattr(packet, each) for each in packet.overloads()))
        for packet in packets
        if packet is not None
    )


def functions_calling(operations: Collection[str]) -> tuple[types.FunctionType, ...]:
    """Return torch's Python functions that call one of some operations internally."""
    return tuple(
        function
        for function, names in _callees().items()
        if not names.isdisjoint(operations) and name_operation(function) not in operations
    )


@functools.cache
def _callees() -> dict[types.FunctionType, set[str]]:
    # The operations that each Python function of torch names in its code.
    called = {
        value: {SAME.get(name.rstrip("_"), name.rstrip("_")) for name in value.__code__.co_names}
        for home in (F, torch.functional)
        for value in vars(home).values()
        if isinstance(value, types.FunctionType)
    }
    helpers = {value.__name__: names for value, names in called.items()}
    grown = True
    # Then also those in what it calls, until nothing is added.
    while grown:
        grown = False
        for names in called.values():
            more = set().union(*(helpers[n] for n in names & helpers.keys())) - names
            names |= more
            grown = grown or bool(more)
    return {
        value: names
        for value, names in called.items()
        if value.__module__ in (F.__name__, torch.functional.__name__)
        and not value.__name__.startswith("_")
    }
