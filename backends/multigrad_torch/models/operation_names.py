"""The names of torch's operations: of functions, methods, operators and overloads of one, one name.

`torch.add`, `Tensor.__iadd__`, `operator.add` and `torch.ops.aten.add.Tensor` are "add". Also which
of torch's Python functions call operations internally, so that a mode can see those calls.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.nn.functional as F

Call = Callable[..., Any]

# The name of an operation by its other names.
ALIASES = {
    "truediv": "div", "itruediv": "div", "rtruediv": "div", "divide": "div", "true_divide": "div",
    "rdiv": "div", "multiply": "mul", "subtract": "sub", "rsub": "sub", "negative": "neg",
    "absolute": "abs", "clip": "clamp", "expit": "sigmoid", "mm": "matmul", "invert": "bitwise_not",
    "arctan": "atan", "arcsin": "asin", "arccos": "acos", "arctanh": "atanh", "arcsinh": "asinh",
    "arccosh": "acosh", "arctan2": "atan2", "concat": "cat", "concatenate": "cat", "fix": "trunc",
    "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne",
    "swapaxes": "transpose", "swapdims": "transpose", "row_stack": "vstack", "getitem": "getitem",
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "floordiv": "floor_divide",
    "mod": "remainder", "log_sigmoid": "logsigmoid", "moveaxis": "movedim",
    **{
        f"{pooling}{n}d_with_indices": f"{pooling}{n}d"
        for pooling in ("max_pool", "adaptive_max_pool") for n in (1, 2, 3)
    },
}  # fmt: skip
# Where torch's functions and methods are.
HOMES = (torch, torch.Tensor, F, torch.special, torch.linalg, torch.fft)
CALLABLES = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)


def find_operation(selector: Any) -> str | None:
    if isinstance(selector, str):
        return selector if selector in operation_names() else None
    if isinstance(selector, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return name_operation(selector)
    try:
        name = known_functions().get(selector)
    except TypeError:  # no hash
        return None
    return name if name in operation_names() else None


def is_operation(selector: Any) -> bool:
    """Return whether a selector of `override` is a function of torch."""
    # Python's own operators and strings are also selectors of other frameworks.
    is_ours = getattr(selector, "__module__", None) != "_operator" and not isinstance(selector, str)
    return is_ours and find_operation(selector) is not None


def name_operation(function: Any) -> str:
    """Return the operation that a function computes; "" for one without a name."""
    name = getattr(function, "__name__", "") or ""
    if isinstance(function, torch._ops.OpOverload):
        name = name.partition(".")[0]
    if name.startswith("__") and name.endswith("__"):
        return name_of_special_method(name[2:-2])
    for home in ("special_", "linalg_", "fft_"):
        name = name.removeprefix(home)
    return plain_name(name.strip("_") or name)


def name_of_special_method(word: str) -> str:
    """Return the operation of a method `__word__`: "add" for "iadd" and "radd"."""
    for prefix in ("", "i", "r"):
        operation = plain_name(word.removeprefix(prefix))
        # `__invert__` is no in-place `nvert`.
        if word.startswith(prefix) and operation in torch_names():
            return operation
    return plain_name(word)


def plain_name(name: str) -> str:
    return ALIASES.get(name, name)


@functools.cache
def torch_names() -> frozenset[str]:
    """Return the public names in torch's namespaces, aliases among them."""
    names = {
        name.rstrip("_")
        for home in HOMES
        for name in dir(home)
        if not name.startswith("_") and isinstance(getattr(home, name, None), CALLABLES)
    }
    return frozenset({*names, "getitem"})


@functools.cache
def operation_names() -> frozenset[str]:
    return frozenset(map(plain_name, torch_names()))


@functools.cache
def known_functions() -> dict[Any, str]:
    """Return the operations by the functions, methods and operators that compute them."""
    functions = {
        value: name_operation(value)
        for home in HOMES
        for name in dir(home)
        if is_public(name) and isinstance(value := getattr(home, name, None), CALLABLES)
    }
    operators = {
        value: name_of_special_method(name.strip("_"))
        for name, value in vars(operator).items()
        if isinstance(value, types.BuiltinFunctionType)
    }
    own_operators = {value: name for value, name in operators.items() if name in operation_names()}
    return functions | {abs: "abs", pow: "pow"} | own_operators


def is_public(name: str) -> bool:
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


# --- functions of torch that call others ----------------------------------------------------------
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
    callees = {
        value: {plain_name(name.rstrip("_")) for name in value.__code__.co_names}
        for home in (F, torch.functional)
        for value in vars(home).values()
        if isinstance(value, types.FunctionType)
    }
    helpers = {value.__name__: names for value, names in callees.items()}
    has_grown = True
    # Then also those in what it calls, until nothing is added.
    while has_grown:
        has_grown = False
        for names in callees.values():
            new_names = set().union(*(helpers[n] for n in names & helpers.keys())) - names
            names |= new_names
            has_grown = has_grown or bool(new_names)
    return {
        value: names
        for value, names in callees.items()
        if value.__module__ in (F.__name__, torch.functional.__name__)
        and not value.__name__.startswith("_")
    }


ASKING_FOR_MODES = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


def has_none(*args: Any) -> bool:
    """Return False, as `has_torch_function` in a function that is seen through."""
    return False


@functools.cache
def see_through(function: types.FunctionType) -> Call:
    """Return one of torch's Python functions so that modes see the calls within it."""
    # Without `__name__`, or Dynamo would read the globals from the module of that name.
    names = {**function.__globals__, **dict.fromkeys(ASKING_FOR_MODES, has_none)}
    del names["__name__"]
    transparent = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    transparent.__kwdefaults__ = function.__kwdefaults__
    return transparent
