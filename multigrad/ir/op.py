"""One row of the op table: what is declared of an operation, and the rules that give result types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .types import BOOL, BOOL_SCALAR, INT_SCALAR, KEY, UNKNOWN, Type, broadcast_shapes, reduce_shape

ResultRule = Callable[..., Type]


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One row of the table.

    `coerce` says what operands become first: "float" (bools are cast), "same" (one dtype for all),
    "bool" (must be bools), "where" (a bool, then "same"), "raw" (taken as they are).
    """

    name: str
    operands: tuple[str, ...]
    attrs: tuple[str, ...]
    coerce: str
    result: ResultRule
    numpy: Callable[..., Any]
    vjp: Callable[..., tuple[Any, ...]] | None
    doc: str
    symbol: str | None = None
    random: bool = False

    def __repr__(self) -> str:
        return f"Op({self.name})"


OPS: dict[str, Op] = {}


def op(
    name: str,
    args: str,
    *,
    numpy: Callable[..., Any],
    vjp: Callable[..., Any] | None,
    doc: str,
    result: ResultRule,
    coerce: str = "float",
    attrs: tuple[str, ...] = (),
    symbol: str | None = None,
    random: bool = False,
) -> Op:
    """Declare a row and return it."""
    row = Op(name, tuple(args.split()), attrs, coerce, result, numpy, vjp, doc, symbol, random)
    OPS[name] = row
    return row


# --- result types -----------------------------------------------------------------------------


def elementwise(*types: Type, **attrs: Any) -> Type:
    tensors = [t for t in types if t.kind == "tensor"]
    if not tensors:
        weak = "int" if all(t.dtype == "int" for t in types) else "float"
        return Type("scalar", "bool" if all(t.dtype == "bool" for t in types) else weak)
    return Type("tensor", tensors[0].dtype, broadcast_shapes(*(t.shape for t in tensors)))


def float_elementwise(*types: Type, **attrs: Any) -> Type:
    type_ = elementwise(*types)
    return Type("scalar", "float") if type_.kind == "scalar" else type_


def compared(*types: Type, **attrs: Any) -> Type:
    type_ = elementwise(*types)
    return BOOL_SCALAR if type_.kind == "scalar" else Type("tensor", BOOL, type_.shape)


def chosen(condition: Type, a: Type, b: Type) -> Type:
    values = elementwise(a, b)
    if condition.kind == "scalar":
        return values
    if values.kind == "scalar":
        raise TypeError("where needs a tensor among its values")
    return Type("tensor", values.dtype, broadcast_shapes(condition.shape, a.shape, b.shape))


def cast_to(x: Type, *, dtype: str) -> Type:
    return Type("tensor", dtype, x.shape)


def filled(x: Type, value: Type, *, dtype: str | None) -> Type:
    return Type("tensor", dtype or x.dtype, x.shape)


def reduced(x: Type, *, axis: Any, keepdims: bool, **attrs: Any) -> Type:
    return Type("tensor", x.dtype, reduce_shape(x.shape, axis, keepdims))


def shaped_like_second(x: Type, like: Type) -> Type:
    return Type("tensor", x.dtype, like.shape)


def expanded(x: Type, *, axis: int) -> Type:
    back = isinstance(x.shape, tuple) and x.shape == ("reduced", axis, False)
    return Type("tensor", x.dtype, ("reduced", axis, True) if back else UNKNOWN)


def integer(x: Type, **attrs: Any) -> Type:
    return INT_SCALAR


def same(x: Type, **attrs: Any) -> Type:
    return x


def drawn(key: Type, x: Type) -> Type:
    return Type("tensor", x.dtype, x.shape)


def key(*types: Type, **attrs: Any) -> Type:
    return KEY


def structural(*args: Any, **attrs: Any) -> Any:
    raise TypeError("an input or a constant is not executed")
