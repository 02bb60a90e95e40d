"""The symbolic dtype, shape and device of a tensor, and the symbolic number of `x.item()`.

Such a number stays a tensor without axes in the graph. Arithmetic goes on with it, in 64 bits for
integers, in the dtype of the function's tensors for floats; it is refused where Python needs its
value.
"""

from __future__ import annotations

import math
from typing import Any

from ...graph import ops
from ...graph.ir.graph import Node
from ...graph.ir.types import (
    BOOL,
    FLOATS,
    FLOATS_OF_16_BITS,
    INPUT_SHAPE,
    INT64,
    SCALAR_SHAPE,
    WHOLE,
    T,
)
from ...graph.ops.numerics import as_numpy_dtype
from ...graph.passes.facts import needed_shapes
from ...trace.axes import known_shape
from ...trace.python_protocols import is_asked_by, place_of
from ...trace.trace import NeedsConcrete, Trace, Value, cast, cast_node, dtype_name
from ...trace.xp import all as xp


class SymbolicDType:
    """The dtype of a symbolic value; `T` is the input's, whatever it will be."""

    __slots__ = ("symbol", "trace")

    def __init__(self, symbol: str, trace: Trace | None = None) -> None:
        self.symbol = symbol
        self.trace = trace  # of the tensor that has it; None: a constant such as `xp.float32`

    def _is_open(self) -> bool:
        # Once the dtype is a fact, a library's own dtype object may replace the symbol.
        return self.trace is not None and "dtype" not in self.trace.facts

    def __repr__(self) -> str:
        if self.trace is not None and self._is_open() and is_asked_by(self.trace.source.codes):
            raise NeedsConcrete("dtype")
        return f"<SymbolicDType {self.symbol}>"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SymbolicDType) and self.symbol == other.symbol:
            return True
        if T in (self.symbol, getattr(other, "symbol", None)) and BOOL not in (
            self.symbol,
            getattr(other, "symbol", None),
        ):
            raise NeedsConcrete("dtype")
        return self.symbol == dtype_name(other)

    def __hash__(self) -> int:
        if self._is_open():
            raise NeedsConcrete("dtype")
        return hash(self.symbol)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self.trace is None:
            raise AttributeError(name)
        if not self._is_open():
            raise self.trace.error(
                f"asks a dtype for .{name}, and nothing tells which library's dtype it is"
            )
        raise NeedsConcrete("dtype")  # the library's own dtype object has it, or not

    @property
    def is_floating_point(self) -> bool:
        return self.symbol not in (BOOL, *WHOLE)


class SymbolicDevice:
    """The device of the input, where a rule stays."""

    __slots__ = ("trace",)

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def __repr__(self) -> str:
        return "<SymbolicDevice>" if not is_asked_by(self.trace.source.codes) else self._refuse()

    def __eq__(self, other: object) -> bool:
        return True if isinstance(other, SymbolicDevice) else self._refuse()

    def __hash__(self) -> int:
        return self._refuse()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse()

    @property
    def type(self) -> str:
        return place_of(self.trace)

    def _refuse(self) -> Any:
        # A function on the CPU: its device is known, as a fact.
        if self.trace.kind != "rule" and place_of(self.trace) == "cpu":
            raise NeedsConcrete("device")
        raise self.trace.error(
            "looks at the device of a tensor, which one graph for all devices does not know"
        )


class _AsLibrariesHave:
    """Methods that the libraries' own shapes have besides a tuple's."""

    __slots__ = ()

    def num_elements(self: Any) -> Any:
        return self.numel()

    def as_list(self: Any) -> list[int]:
        return list(self)

    @property
    def rank(self: Any) -> int:
        return len(self)

    ndims = rank


class SymbolicShape(_AsLibrariesHave):
    """The shape of a symbolic value: an index gives a symbolic integer, `len` asks for the rank."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int):
            return xp.dim(self.value, index)
        return self._known()[index]

    def __len__(self) -> int:
        return self.value.ndim

    def __iter__(self) -> Any:
        return iter(self._known())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SymbolicShape):
            mine, theirs = self.value.node.type.shape, other.value.node.type.shape
            if mine == theirs == INPUT_SHAPE:
                return True
        return self._known() == other

    def __hash__(self) -> int:
        return hash(self._known())

    def __repr__(self) -> str:
        if is_asked_by(self.value.trace.source.codes):
            return repr(self._known())
        return f"<SymbolicShape of {self.value.node.type}>"

    def __add__(self, other: Any) -> Any:
        return self._known() + other

    def __radd__(self, other: Any) -> Any:
        return other + self._known()

    def __mul__(self, times: Any) -> Any:
        return self._known() * times

    __rmul__ = __mul__

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self._known()

    def numel(self) -> Any:
        return xp.size(self.value)

    def _known(self) -> tuple[int, ...]:
        if self.value.node.type.kind == "scalar":
            return KnownShape()
        raise NeedsConcrete(*needed_shapes(self.value.node))  # a known one is a tuple


class KnownShape(_AsLibrariesHave, tuple[int, ...]):
    """A shape that this capture has fixed."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        return KnownShape(part) if isinstance(index, slice) else part

    def __add__(self, other: Any) -> Any:
        return KnownShape(super().__add__(other))

    def numel(self) -> int:
        return math.prod(self)


DIVIDING = ("truediv", "rtruediv", "pow", "rpow")
OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")


def item(x: Any) -> Any:
    """Return the number of a tensor of one element; a rule's is refused."""
    type_ = x.node.type
    taken = (T, *FLOATS, BOOL, *WHOLE)
    if x.trace.kind != "rule" and type_.kind == "tensor" and type_.dtype in taken:
        shape = () if type_.shape == SCALAR_SHAPE else known_shape(x)
        if shape is None:
            raise NeedsConcrete(*needed_shapes(x.node))
        if math.prod(shape) == 1:
            one = x if shape == () else xp.reshape(x, ())
            if type_.dtype in WHOLE:
                return x.trace.value(cast_node(one.node, INT64)).as_whole()
            one = xp.stop_gradient(one)
            return one if type_.dtype == BOOL else cast(one, T).as_number()
    return x._concrete("reads a tensor's value (.item())", "Keep it a tensor")


def to_list(x: Any) -> Any:
    """Return the numbers of a tensor that code made of numbers alone, as lists."""
    made = _made(x, x.node)
    if made is None:
        advice = x.trace.words.advise("use array functions on it")
        raise x.trace.error(f"calls .tolist(): a symbolic tensor holds no numbers{advice}")
    return made.tolist()


def _made(x: Any, node: Node) -> Any:
    # None if the node depends on an input by more than its dtype.
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
    # An operator of a number: with other numbers it gives a number again.
    plain = getattr(Value, name)

    def operate(self: Any, *others: Any) -> Any:
        if not all(
            isinstance(x, int | float) or (isinstance(x, Value) and is_number(x)) for x in others
        ):
            return plain(self, *others)
        # A non-negative integer power of an integer stays one.
        power = others[0] if others and name == "__pow__" else -1
        divides = name.strip("_") in DIVIDING and not (type(power) is int and power >= 0)
        return among_numbers(plain, self, *others, divides=divides)

    operate.__name__ = operate.__qualname__ = name
    return operate


def among_numbers(record: Any, *numbers: Any, divides: bool = False) -> Any:
    """Return the result of a function of Python numbers; integers alone give an exact integer.

    Args:
        divides: the function gives a float for integers too.
    """
    whole = not divides and all(map(is_whole, numbers))
    result = record(*(number if whole else _in_floats(number) for number in map(_bare, numbers)))
    if not isinstance(result, Value) or result.node.type.kind != "tensor":
        return result
    return result.as_whole() if whole else result.as_number()  # type: ignore[attr-defined]


def rounded(record: Any, number: Any) -> Any:
    """Return the integer that `round`, `math.floor` or the like makes of a number."""
    if number.kind is int:
        return number
    result = record(_bare(number))
    return number.trace.value(cast_node(result.node, INT64)).as_whole()


def _bare(number: Any) -> Any:
    # The tensor of a number, which a library promotes as a tensor.
    return number.trace.value(number.node) if isinstance(number, Number) else number


def _in_floats(number: Any) -> Any:
    # An integer becomes a Python float, which 16 bits would not hold: at least float32.
    if not isinstance(number, Value) or number.node.type.dtype not in WHOLE:
        return number
    own = number.trace.facts.get("dtype")
    if own is None:
        raise NeedsConcrete("dtype")
    return cast(number, "float32" if own in (*FLOATS_OF_16_BITS, "float32") else "float64")


def is_whole(number: Any) -> bool:
    """Return whether a Python number, symbolic or not, is an integer."""
    if isinstance(number, Number):
        return number.kind is int
    if isinstance(number, Value):
        return number.node.type.dtype == "int"
    return type(number) is int


def is_number(value: Value) -> bool:
    return value.is_number or value.node.type.kind == "scalar"


class Number:
    """The behavior of a symbol for a Python number."""

    __slots__ = ()
    is_number = True

    for _name in OPERATORS:
        locals()[f"__{_name}__"] = _numeric(f"__{_name}__")
        locals()[f"__r{_name}__"] = _numeric(f"__r{_name}__")
    __neg__, __pos__, __abs__ = _numeric("__neg__"), _numeric("__pos__"), _numeric("__abs__")

    def __round__(self: Any, digits: int | None = None) -> Any:
        return Value.__round__(self, digits) if digits else rounded(Value.__round__, self)

    def _updated(self, value: Any) -> Any:
        return value  # numbers are immutable: an augmented assignment binds the name to another

    def __getattr__(self, name: str) -> Any:
        if not hasattr(self.kind, name):
            raise AttributeError(f"{self.kind.__name__!r} object has no attribute {name!r}")
        number = self._concrete(f"uses .{name} of a number", "Write it with math")  # type: ignore[attr-defined]
        return getattr(number, name)
