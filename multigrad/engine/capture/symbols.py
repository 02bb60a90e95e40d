"""What code gets of a symbolic tensor besides tensors: its dtype, shape and device, its number, and
its class; and casts.

    x.dtype, x.device, x.shape    `SymbolicDType`, `SymbolicDevice`, `SymbolicShape`; `KnownShape`
    x.item(), x.tolist()          a `Number`: a symbol for a Python number
    x.__class__, match x          `class_of`, if `asks_for_class`

A symbolic number stays a tensor without axes in the graph. Arithmetic goes on with it, in 64 bits
for integers, in the dtype of the function's tensors for floats; it is refused where Python needs
its value.
"""

from __future__ import annotations

import builtins
import math
import operator
from typing import Any

import numpy as np

from ...core import ops
from ...core.ir.graph import Node
from ...core.ir.op import (
    BOOL,
    FLOAT8,
    FLOATS,
    FLOATS_OF_16_BITS,
    INPUT_SHAPE,
    INT32,
    INT64,
    SCALAR_SHAPE,
    SMALL,
    WHOLE,
    T,
    dtype_name,
    is_float,
)
from ...core.ops.numerics import as_numpy_dtype
from ...core.trace import trace
from ...core.trace.trace import NeedsConcrete, Value, cast_node, constant, known_shape
from ...core.trace.xp import all as xp
from ..passes.shapes import needed_shapes
from ..trace.code_trace import CodeTrace, place_of
from ..trace.python_protocols import PASSING, Answers, is_asked_by
from .dialect import Dialect, find_dialect, habits_of

PASSING.add(__file__)


# --- dtype, device, shape -------------------------------------------------------------------------
class SymbolicDType:
    """The dtype of a symbolic value; `T` is the input's, whatever it will be."""

    __slots__ = ("symbol", "trace")

    def __init__(self, symbol: str, trace: CodeTrace | None = None) -> None:
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
        symbols = (self.symbol, getattr(other, "symbol", None))
        if T in symbols and BOOL not in symbols:
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

    def __init__(self, trace: CodeTrace) -> None:
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


class _LibraryShape:
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


class SymbolicShape(_LibraryShape):
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
            shape, other_shape = self.value.node.type.shape, other.value.node.type.shape
            if shape == other_shape == INPUT_SHAPE:
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
        raise NeedsConcrete(*needed_shapes(self.value.node))  # a known one is a tuple


class KnownShape(_LibraryShape, tuple[int, ...]):
    """A shape that this capture has fixed."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        lengths = super().__getitem__(index)
        return KnownShape(lengths) if isinstance(index, slice) else lengths

    def __add__(self, other: Any) -> Any:
        return KnownShape(super().__add__(other))

    def numel(self) -> int:
        return math.prod(self)


# --- a number of a tensor -------------------------------------------------------------------------
DIVIDING = ("truediv", "rtruediv", "pow", "rpow")
OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")


def item(x: Any) -> Any:
    """Return the number of a tensor of one element."""
    type_ = x.node.type
    dtypes = (T, *FLOATS, BOOL, *WHOLE)
    if type_.kind == "tensor" and type_.dtype in dtypes:
        shape = () if type_.shape == SCALAR_SHAPE else known_shape(x)
        if shape is None:
            raise NeedsConcrete(*needed_shapes(x.node))
        if math.prod(shape) == 1:
            scalar = x if shape == () else xp.reshape(x, ())
            if type_.dtype in WHOLE:
                return x.trace.value(cast_node(scalar.node, INT64)).as_whole()
            scalar = xp.stop_gradient(scalar)
            return scalar if type_.dtype == BOOL else cast(scalar, T).as_number()
    return x._concrete("reads a tensor's value (.item())", "Keep it a tensor")


def to_list(x: Any) -> Any:
    """Return the numbers of a tensor that code made of numbers alone, as lists."""
    return _known_numbers(x, "tolist").tolist()


def to_numpy(x: Any, *, force: bool = False) -> Any:
    """Return the numbers of a tensor that code made of numbers alone, as an array."""
    return np.array(_known_numbers(x, "numpy"))


def _known_numbers(x: Any, method: str) -> Any:
    numbers = _numbers_of(x, x.node)
    if numbers is None:
        advice = x.trace.words.advise("use array functions on it")
        raise x.trace.error(f"calls .{method}(): a symbolic tensor holds no numbers{advice}")
    return numbers


def _numbers_of(x: Any, node: Node) -> Any:
    """Return a node's value; None if it depends on an input by more than its dtype."""
    dtype = node.type.dtype
    if dtype == T and (dtype := x.trace.facts.get("dtype")) is None:
        raise NeedsConcrete("dtype")
    if node.op is ops.CONST:
        return node.attr("value")
    if node.op is ops.ARRAY:
        return node.attr("value").as_numpy(as_numpy_dtype(dtype))
    operands = [_numbers_of(x, operand) for operand in node.operands]
    if node.op is ops.INPUT or not operands or any(each is None for each in operands):
        return None
    attrs = dict(node.attrs)
    if "dtype" in attrs:
        attrs["dtype"] = as_numpy_dtype(dtype)
    return node.op.numpy(*operands, **attrs)


def _number_operator(name: str) -> Any:
    """Return an operator of a number, which gives a number again if all operands are numbers."""
    method = getattr(Value, name)

    def operate(self: Any, *others: Any) -> Any:
        if not all(
            isinstance(x, int | float) or (isinstance(x, Value) and is_number(x)) for x in others
        ):
            return method(self, *others)
        # A non-negative integer power of an integer stays one.
        power = others[0] if others and name == "__pow__" else -1
        divides = name.strip("_") in DIVIDING and not (type(power) is int and power >= 0)
        return among_numbers(method, self, *others, divides=divides)

    operate.__name__ = operate.__qualname__ = name
    return operate


def among_numbers(record: Any, *numbers: Any, divides: bool = False) -> Any:
    """Return the result of a function of Python numbers; integers alone give an exact integer,
    unless it `divides`.
    """
    gives_whole = not divides and all(map(is_whole, numbers))
    tensors = map(_as_tensor, numbers)
    result = record(*(tensors if gives_whole else map(_in_floats, tensors)))
    if not isinstance(result, Value) or result.node.type.kind != "tensor":
        return result
    return result.as_whole() if gives_whole else result.as_number()  # type: ignore[attr-defined]


def rounded(record: Any, number: Any) -> Any:
    """Return the integer that `round`, `math.floor` or the like makes of a number."""
    if number.kind is int:
        return number
    result = record(_as_tensor(number))
    return number.trace.value(cast_node(result.node, INT64)).as_whole()


def _as_tensor(number: Any) -> Any:
    # The tensor of a number, which a library promotes as a tensor.
    return number.trace.value(number.node) if isinstance(number, Number) else number


def _in_floats(number: Any) -> Any:
    # An integer becomes a Python float, which 16 bits would not hold: at least float32.
    if not isinstance(number, Value) or number.node.type.dtype not in WHOLE:
        return number
    dtype = number.trace.facts.get("dtype")
    if dtype is None:
        raise NeedsConcrete("dtype")
    return cast(number, "float32" if dtype in (*FLOATS_OF_16_BITS, "float32") else "float64")


def is_whole(number: Any) -> bool:
    # Of a Python number, symbolic or not.
    if isinstance(number, Number):
        return number.kind is int
    if isinstance(number, Value):
        return number.node.type.dtype == "int"
    return type(number) is int


def number(x: Any) -> Any:
    """Return Python's number for a symbolic one, which becomes a fact; anything else unchanged."""
    if not isinstance(x, Value) or x.node.type.kind != "scalar":
        return x
    return operator.index(x) if x.node.type.dtype == "int" else float(x)


def is_number(value: Value) -> bool:
    return value.is_number or value.node.type.kind == "scalar"


class Number:
    """The behavior of a symbol for a Python number."""

    __slots__ = ()
    is_number = True

    for _name in OPERATORS:
        locals()[f"__{_name}__"] = _number_operator(f"__{_name}__")
        locals()[f"__r{_name}__"] = _number_operator(f"__r{_name}__")
    for _name in ("__neg__", "__pos__", "__abs__"):
        locals()[_name] = _number_operator(_name)

    def __round__(self: Any, digits: int | None = None) -> Any:
        if digits is None or (digits == 0 and self.kind is int):
            return rounded(Answers.__round__, self)
        if digits == 0:  # of a float, which Python keeps one
            return among_numbers(Answers.__round__, self)
        return Answers.__round__(self, digits)

    def __getattr__(self, name: str) -> Any:
        if not hasattr(self.kind, name):
            raise AttributeError(f"{self.kind.__name__!r} object has no attribute {name!r}")
        value = self._concrete(f"uses .{name} of a number", "Write it with math")  # type: ignore[attr-defined]
        return getattr(value, name)


# --- the class of a symbol ------------------------------------------------------------------------
SCALAR_CLASSES = {"float": float, "int": int, "bool": bool}
ATTRIBUTES = (SymbolicShape, SymbolicDType, SymbolicDevice)


def class_of(value: Any) -> type:
    """Return the class of the value that a symbol represents; TraceError if it may be several."""
    if isinstance(value, ATTRIBUTES):
        return _class_of_attribute(value)
    if not isinstance(value, Value):
        return builtins.type(value)
    if value.is_number:
        return value.kind
    if value.node.type.kind == "scalar":
        return SCALAR_CLASSES[value.node.type.dtype]
    dialect = find_dialect(value.trace.dialect)
    if dialect is None or not dialect.classes.one_class or may_be_scalar(value, dialect):
        raise value.trace.error("asks for the class of a tensor. Write isinstance(x, ...)")
    return dialect.tensors.tensor


def _class_of_attribute(value: Any) -> type:
    if isinstance(value, SymbolicShape):
        dialect = find_dialect(value.value.trace.dialect)
        kind = tuple if dialect is None else dialect.tensors.shape_class
        return builtins.type(value._known()) if dialect is not None and kind is tuple else kind
    if isinstance(value, SymbolicDevice):
        return value._refuse()
    if value.trace is None:
        return builtins.type(value)
    if "dtype" not in value.trace.facts:
        raise NeedsConcrete("dtype")
    raise value.trace.error("asks for the class of a dtype, which is each library's own")


def may_be_scalar(value: Any, dialect: Dialect) -> bool:
    # A library may return a scalar of its own where an op gives a tensor without axes.
    return bool(dialect.tensors.scalars) and value.node.op is not ops.INPUT and value.ndim == 0


def identity_of(value: Any) -> int:
    # The builtin `id`: a symbol is another object than the real value, whose id may matter.
    if isinstance(value, Value) and value.node.type.kind == "tensor":
        raise value.trace.error("asks for the identity of a tensor. Compare tensors with `is`")
    return id(value)


def has_attribute(value: Any, name: str) -> bool:
    # The builtin `hasattr`; asking a symbol for what it refuses, a protocol too, is an error.
    return not (isinstance(value, Answers) and value.lacks(name)) and hasattr(value, name)


def get_attribute(value: Any, name: str, *default: Any) -> Any:
    # The builtin `getattr`, with the same refusals.
    if isinstance(value, Answers) and value.lacks(name) and default:
        return default[0]
    return getattr(value, name, *default)


# --- dtypes of symbols, and casts as the code's library defines them ------------------------------
def is_tensor(x: Value) -> bool:
    return x.node.type.kind == "tensor"


def own_dtype(x: Any) -> str:
    return x.node.type.dtype if isinstance(x, Value) else ""


def is_of_16_bits(x: Any) -> bool:
    """Return whether a symbolic tensor is known to hold floats of 16 bits."""
    dtype = own_dtype(x)
    return x.trace.facts.has_dtype(*FLOATS_OF_16_BITS) if dtype == T else dtype in FLOATS_OF_16_BITS


def is_bool(x: Any) -> bool:
    return own_dtype(x) == BOOL


def is_tensor_of_other_dtype(x: Any, dtype: str) -> bool:
    return bool(dtype) and isinstance(x, Value) and is_tensor(x) and own_dtype(x) != dtype


def source_dtype(x: Value) -> str:
    return (x.node.operands[0] if x.node.op is ops.CAST else x.node).type.dtype


def is_exact_cast(narrow: str, wide: str) -> bool:
    # Casting the result equals computing in the wider dtype: true of masks, and of integers, which
    # wrap around.
    return narrow == BOOL or (narrow in WHOLE and wide in WHOLE)


def is_wider(narrow: str, wide: str) -> bool:
    return {narrow, wide} <= {*WHOLE} and np.can_cast(narrow, wide)


LARGEST_FLOAT8_E4M3FN = 448.0  # it has no infinity


def cast(x: Any, dtype: Any) -> Any:
    """Return x in another dtype, cast as the code's library does."""
    name = dtype_name(dtype)
    if not isinstance(x, Value) or not is_float(x.node.type) or name not in (*SMALL, *FLOAT8):
        return trace.cast(x, dtype)
    habits = habits_of(x.trace)
    # Through int32, whose low bits are kept: the wrapped number.
    if name in SMALL and habits.small_integers_wrap:
        x = trace.cast(x, INT32)
    if name == FLOAT8[0] and habits.float8_is_limited and x.node.type.dtype not in FLOAT8:
        x = xp.clip(x, -LARGEST_FLOAT8_E4M3FN, LARGEST_FLOAT8_E4M3FN)
    return trace.cast(x, dtype)


def cast_in_graph(value: Value, dtype: str) -> Value:
    """Return a tensor in a dtype as nodes have it, where T is the input's; a number as it is."""
    dtype_of_value = value.node.type.dtype
    if dtype_of_value == dtype or value.node.type.kind == "scalar":
        return value
    if dtype_of_value not in (T, *FLOATS) and dtype != BOOL:
        return value.trace.value(cast_node(value.node, dtype))
    return cast(value, dtype)


def in_dtype(x: Any, dtype: Any) -> Any:
    return x if dtype is None else cast(x, dtype)


def as_held(x: Value, value: Value) -> Value:
    """Return a value in the dtype of the tensor that it is written to, as every library has it."""
    dtype, type_ = x.node.type.dtype, value.node.type
    if type_.kind == "tensor":
        return value if type_.dtype == dtype else cast(value, dtype)
    if value.node.op is ops.CONST and not is_float(x.node.type):
        number = value.node.attr("value")
        return x.trace.value(constant(bool(number) if dtype == BOOL else int(number)))
    return value
