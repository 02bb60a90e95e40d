"""Result types of ops: rules that take the operands' types and the attributes."""

from __future__ import annotations

from typing import Any

from .op import (
    BOOL,
    BOOL_SCALAR,
    INT_SCALAR,
    KEY,
    UNKNOWN,
    ResultRule,
    Type,
    broadcast_shapes,
    reduce_shape,
)


def elementwise(*types: Type, **attrs: Any) -> Type:
    tensors = [t for t in types if t.kind == "tensor"]
    # Scalars change neither the dtype nor the shape of a tensor.
    if len(tensors) == 1:
        return tensors[0]
    if not tensors:
        weak = "int" if all(t.dtype == "int" for t in types) else "float"
        return Type("scalar", "bool" if all(t.dtype == "bool" for t in types) else weak)
    return Type("tensor", tensors[0].dtype, broadcast_shapes(*[t.shape for t in tensors]))


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


def shaped_like_second(x: Type, like: Type, **attrs: Any) -> Type:
    return Type("tensor", x.dtype, like.shape)


def expanded(x: Type, *, axis: int) -> Type:
    # A new axis where a reduction removed one gives the shape of that reduction with keepdims.
    is_inverse = isinstance(x.shape, tuple) and x.shape == ("reduced", axis, False)
    return Type("tensor", x.dtype, ("reduced", axis, True) if is_inverse else UNKNOWN)


def integer(x: Type, **attrs: Any) -> Type:
    return INT_SCALAR


def same(x: Type, **attrs: Any) -> Type:
    return x


def called(value: Type, *inputs: Type, **attrs: Any) -> Type:
    return value


def drawn(key: Type, x: Type, *params: Type) -> Type:
    return Type("tensor", x.dtype, x.shape)


def need_tensors(*types: Type) -> None:
    for type_ in types:
        if type_.kind != "tensor":
            raise TypeError(f"it needs a tensor, not {type_}")


def kept(x: Type, *others: Type, **attrs: Any) -> Type:
    need_tensors(x)
    return x


def overwritten(x: Type, value: Type, **attrs: Any) -> Type:
    need_tensors(x)
    if value.kind == "tensor" and value.dtype != x.dtype:
        raise TypeError(f"it holds {x.dtype}, not {value}")
    return x


def reshaped(x: Type, *others: Type, **attrs: Any) -> Type:
    """Return a type whose shape is known at run time only."""
    need_tensors(x, *others)
    return Type("tensor", x.dtype, UNKNOWN)


def key(*types: Type, **attrs: Any) -> Type:
    return KEY


def structural(*args: Any, **attrs: Any) -> Any:
    raise TypeError("an input or a constant is not executed")


def of_dtype(like: Type, *, dtype: str, value: Any) -> Type:
    return Type("tensor", dtype, UNKNOWN)


OWN_ELEMENTS: tuple[ResultRule, ...] = (elementwise, float_elementwise, compared, chosen)
# Rules of ops whose result elements each depend on the same element of the operands only.
PER_ELEMENT = (*OWN_ELEMENTS, cast_to, filled, same)
# Rules of ops whose result is memory of its own, never an operand's.
OWNING = (*OWN_ELEMENTS, reduced, drawn, overwritten)
