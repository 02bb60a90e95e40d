"""What `x.item()` gives: a Python number, which stays a tensor without axes in the graph.

Arithmetic goes on with it, in the dtype of the function's tensors; where Python needs the number
itself, that is refused.
"""

from __future__ import annotations

import math
from typing import Any

from ...graph import ops
from ...graph.ir.graph import Node
from ...graph.ir.types import BOOL, FLOATS, SCALAR_SHAPE, WHOLE, T
from ...graph.ops.numerics import as_numpy_dtype
from ...graph.passes.facts import needed_shapes
from ...trace.axes import known_shape
from ...trace.trace import NeedsConcrete, Value, cast
from ...trace.xp import all as xp

FRACTIONS = ("truediv", "pow")
OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")


def item(x: Any) -> Any:
    """The number of a tensor of one element; of a rule it is refused."""
    type_ = x.node.type
    taken = (T, *FLOATS, BOOL, *WHOLE)
    if x.trace.kind != "rule" and type_.kind == "tensor" and type_.dtype in taken:
        shape = () if type_.shape == SCALAR_SHAPE else known_shape(x)
        if shape is None:
            raise NeedsConcrete(*needed_shapes(x.node))
        if math.prod(shape) == 1:
            one = x if shape == () else xp.reshape(x, ())
            if type_.dtype in WHOLE:  # exact up to 2^24, and wide enough where the floats are not
                return cast(one, "float32").as_whole()
            one = xp.stop_gradient(one)
            return one if type_.dtype == BOOL else cast(one, T).as_number()
    return x._concrete("reads a tensor's value (.item())", "Keep it a tensor")


def to_list(x: Any) -> Any:
    """The numbers of a tensor that code made of numbers alone, as lists."""
    made = _made(x, x.node)
    if made is None:
        advice = x.trace.words.advise("use array functions on it")
        raise x.trace.error(f"calls .tolist(): a symbolic tensor holds no numbers{advice}")
    return made.tolist()


def _made(x: Any, node: Node) -> Any:
    """Return the value of a node that has no input below it but for its dtype; else None."""
    dtype = node.type.dtype
    if dtype == T and (dtype := x.trace.facts.get("dtype")) is None:
        raise NeedsConcrete("dtype")
    if node.op is ops.CONST:
        return node.attr("value")
    if node.op is ops.ARRAY:
        return node.attr("value").as_numpy(as_numpy_dtype(dtype))
    operands = [_made(x, operand) for operand in node.operands]
    if node.op is ops.INPUT or not operands or any(each is None for each in operands):
        return None
    attrs = dict(node.attrs)
    if "dtype" in attrs:
        attrs["dtype"] = as_numpy_dtype(dtype)
    return node.op.numpy(*operands, **attrs)


def _numeric(name: str) -> Any:
    """Return an operator of a number: with other numbers it gives a number again."""
    plain = getattr(Value, name)

    def operate(self: Any, *others: Any) -> Any:
        result: Any = plain(self, *others)
        is_tensor = any(isinstance(other, Value) and not is_number(other) for other in others)
        if is_tensor or not isinstance(result, Value):
            return result
        whole = name.strip("_").removeprefix("r") not in FRACTIONS and all(
            map(_is_whole, (self, *others))
        )
        return result.as_whole() if whole else result.as_number()  # type: ignore[attr-defined]

    operate.__name__ = operate.__qualname__ = name
    return operate


def _is_whole(other: Any) -> bool:
    kind = other.kind if isinstance(other, Number) else type(other)
    return kind is int


def is_number(value: Value) -> bool:
    """Return whether a symbol stands for a Python number."""
    return value.is_number or value.node.type.kind == "scalar"


class Number:
    """What a symbol does that stands for a Python number."""

    __slots__ = ()
    is_number = True

    for _name in OPERATORS:
        locals()[f"__{_name}__"] = _numeric(f"__{_name}__")
        locals()[f"__r{_name}__"] = _numeric(f"__r{_name}__")
    __neg__, __pos__, __abs__ = _numeric("__neg__"), _numeric("__pos__"), _numeric("__abs__")

    def _updated(self, value: Any) -> Any:
        return value  # numbers are immutable: an augmented assignment binds the name anew

    def __getattr__(self, name: str) -> Any:
        if not hasattr(self.kind, name):
            raise AttributeError(f"{self.kind.__name__!r} object has no attribute {name!r}")
        number = self._concrete(f"uses .{name} of a number", "Write it with math")  # type: ignore[attr-defined]
        return getattr(number, name)
