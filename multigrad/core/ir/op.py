"""Ops as data: the types of values, `Op`, a row of the op table, and `Attr`, one of its attributes;
the legal values of attributes; and the types of results, by rules that take the operands' types and
the attributes. `multigrad.core.ops` has all ops.

A rule is captured once for every rank and float dtype, so a dtype is `T` ("that of the rule's
input") unless the author fixed one, and a shape is a relation to the input's shape. Scalars are
weak: a Python number or a run-time parameter that takes the dtype of the tensor it meets.
"""

from __future__ import annotations

import functools
import keyword
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeGuard

import numpy as np

# --- types ----------------------------------------------------------------------------------------
Kind = Literal["tensor", "scalar", "key"]

T = "T"  # the symbolic dtype: that of tin, or of grad_out where there is no tin
BOOL = "bool"
INT32 = "int32"  # the integers of bit operations
INT64 = "int64"  # places, and integers that a Function is given
INTEGERS = (INT32, INT64)
SMALL = ("int8", "uint8", "int16")  # kept as such; ops compute on them in int32 and wrap around
WHOLE = (*SMALL, *INTEGERS)
FLOATS_OF_16_BITS = ("float16", "bfloat16")
FLOATS = (*FLOATS_OF_16_BITS, "float32", "float64")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")  # kept as such; no op computes on them
DTYPES = (BOOL, *WHOLE, *FLOAT8, *FLOATS)

# INPUT_SHAPE, UNKNOWN or SCALAR_SHAPE; ("reduced", axis, keepdims): that of the input's reduction;
# ("alike", i): that of carried value i, in a turn of a scan.
Shape = str | tuple[object, ...]
INPUT_SHAPE = "x"  # the shape of tin and grad_out
SCALAR_SHAPE = ()  # rank 0
UNKNOWN = "?"


class Type(NamedTuple):
    """The type of one IR value; `dtype` of a scalar is "float", "int" or "bool" (weak)."""

    kind: Kind
    dtype: str
    shape: Shape = SCALAR_SHAPE

    def __str__(self) -> str:
        if self.kind == "key":
            return "key"
        if self.kind == "scalar":
            return f"weak {self.dtype}"
        return f"{self.dtype}[{format_shape(self.shape)}]"


def format_shape(shape: Shape) -> str:
    if isinstance(shape, str):
        return "..." if shape == INPUT_SHAPE else "?"
    if shape and shape[0] == "reduced":
        return f"... without {shape[1]}" if not shape[2] else f"... with 1 at {shape[1]}"
    return ""


FLOAT_SCALAR = Type("scalar", "float")
INT_SCALAR = Type("scalar", "int")
BOOL_SCALAR = Type("scalar", "bool")
KEY = Type("key", "uint32")
INPUT = Type("tensor", T, INPUT_SHAPE)


def is_float(type_: Type) -> bool:
    """Return whether a value of this type carries gradients."""
    return type_.dtype in (T, *FLOATS, *FLOAT8, "float")


def reduce_shape(shape: Shape, axis: object, keepdims: bool) -> Shape:
    """Return the shape after a reduction over `axis` (None: all axes)."""
    if shape == SCALAR_SHAPE:
        return SCALAR_SHAPE
    if axis is None and not keepdims:
        return SCALAR_SHAPE
    if shape == INPUT_SHAPE:
        return ("reduced", axis, keepdims)
    return UNKNOWN


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape of an elementwise result, or UNKNOWN."""
    distinct = dict.fromkeys(shapes)
    distinct.pop(SCALAR_SHAPE, None)
    if len(distinct) < 2:
        return next(iter(distinct), SCALAR_SHAPE)
    if INPUT_SHAPE in distinct and all(s == INPUT_SHAPE or keeps_rank(s) for s in distinct):
        return INPUT_SHAPE
    return UNKNOWN


def keeps_rank(shape: Shape) -> bool:
    """Return whether a shape is the input's with ones in reduced places."""
    return isinstance(shape, tuple) and len(shape) == 3 and shape[0] == "reduced" and bool(shape[2])


def dtype_name(dtype: Any) -> str:
    """Return the IR's name of a dtype given as a string, a Python type or a framework's object."""
    if dtype is bool:
        return BOOL
    if dtype is float:
        return T
    if isinstance(dtype, np.dtype):
        return _numpy_name(dtype)
    name = getattr(dtype, "symbol", None) or getattr(dtype, "name", None)
    if not isinstance(name, str) or (name.isupper() and name != T):  # an enum member
        name = getattr(dtype, "__name__", None) or str(dtype)
    # torch.float32 is shown with its module, numpy.bool_ with an underscore.
    return name.rsplit(".", 1)[-1].rstrip("_")


@functools.lru_cache(maxsize=64)
def _numpy_name(dtype: np.dtype[Any]) -> str:
    # NumPy takes long to name a dtype.
    return dtype.name


# --- ops ------------------------------------------------------------------------------------------
ResultRule = Callable[..., Type]
REQUIRED: Any = object()  # the default of an attribute without one


class Attr(NamedTuple):
    """A static attribute of an op.

    Attributes:
        legal: whether a value is allowed in a graph.
        samples: values that tests try; none where they depend on the operand's shape.
        default: the value in `xg.xp` if it is left out.
        annotation: its type in `xg.xp`.
        taken: the function by which `xg.xp` reads a value, of those that
            `multigrad/core/trace/xp/ops.py` knows; "": none.
    """

    legal: Callable[[object], bool]
    samples: tuple[Any, ...] = ()
    default: Any = REQUIRED
    annotation: str = "Any"
    taken: str = ""


class Refused(NamedTuple):
    """The advice in the error of an op that every library refuses on bools."""

    advice: str


class Op:
    """One row of the table, which never changes. Fields that it is not given are the class's.

    Attributes:
        coerce: what operands become first: "float" (bools are cast), "bool" (they must be bools),
            "int" (integers), "where" (a bool, then one dtype), "indices" (integers of that name,
            the others as they are), "raw" (taken as they are).
        symbol: Python's operator.
        random: whether it draws numbers, by a key.
        xp: its name in `xg.xp`, where that is another; "" if it has none.
        in_xp: its name in `xg.xp`; "" if it has none.
        composed: whether its function in `xg.xp` is written by hand, to do more than record it.
        in_vjps: whether only VJPs record it.
        domain: intervals for each operand, or one for all, where it is smooth; None: anywhere.
        degree: how linearity in something passes through it; None: it does not.
        integer: whether integers give integers, instead of the float dtype; a dtype: they give
            that one.
        shape_only: the operands that give a shape (and a dtype) only: no value is read.
        shaped_like: the operand whose shape a check need not compare with the result's.
        view: whether the result shares memory with its operand in some framework.
        on_numbers: its function on Python numbers, instead of the NumPy function.
        plain: whether Python computes it on floats without ever raising, and on tensors.
        on_bools: for bools only: the op to use, or "numbers" (on 0 and 1, then bools again).
        power: the exponent of `pow` that is this op.
        copies: how many times its input's size the result is; None: as its largest operand.
        collective: whether shards may exchange numbers.
        loop: whether it runs a region for each of "rows", or as long as "values" say.
        shape_of: the result's shape, of the operands' and the attributes; None: run the NumPy
            function on arrays of stride 0.
        made_of: `(xp, *operands, **attrs)`, the same as a composition of other ops: a backend's
            row where it has none of its own, and the derivative where there is no VJP.
        rounds: whether the composition rounds, so that 16-bit floats are computed in float32.
        rewrites: `(node, grad_out)`, what simplifies a node of it: see `passes/simplify.py`.
    """

    name: str
    operands: tuple[str, ...]
    attrs: Mapping[str, Attr]
    coerce: str
    result: ResultRule
    numpy: Callable[..., Any]
    vjp: Callable[..., tuple[Any, ...]] | None
    doc: str
    symbol: str | None = None
    random: bool = False
    xp: str | None = None
    composed: bool = False
    in_vjps: bool = False
    domain: Any = None
    degree: Callable[..., int | None] | None = None
    integer: bool | str = False
    shape_only: tuple[int, ...] = ()
    shaped_like: int | None = None
    view: Literal["always", "sometimes"] | None = None
    on_numbers: Callable[..., Any] | None = None
    plain: bool = False
    on_bools: Op | Refused | Literal["numbers"] | None = None
    power: float | None = None
    copies: Callable[..., int] | None = None
    collective: bool = False
    loop: Literal["rows", "values"] | None = None
    shape_of: Callable[..., tuple[int, ...]] | None = None
    made_of: Callable[..., Any] | None = None
    rounds: bool = True
    rewrites: tuple[Callable[..., Any], ...] = ()
    in_xp: str = ""

    # Not a dataclass, which would take 2 ms of each import for so many fields.
    def __init__(
        self,
        name: str,
        operands: tuple[str, ...],
        attrs: Mapping[str, Attr],
        coerce: str,
        result: ResultRule,
        numpy: Callable[..., Any],
        vjp: Callable[..., tuple[Any, ...]] | None,
        doc: str,
        **fields: Any,
    ) -> None:
        if unknown := fields.keys() - Op.__annotations__.keys():
            raise TypeError(f"op {name!r} has no fields {sorted(unknown)}")
        in_xp = name if fields.get("xp") is None else fields["xp"]
        vars(self).update(
            fields,
            name=name,
            operands=operands,
            attrs=attrs,
            coerce=coerce,
            result=result,
            numpy=numpy,
            vjp=vjp,
            doc=doc,
            in_xp=in_xp,
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"op {self.name!r} is a row of a table, which does not change")

    def with_fields(self, **fields: Any) -> Op:
        """Return a row like this one with other fields."""
        return Op(**{**vars(self), **fields})

    def __repr__(self) -> str:
        return f"Op({self.name})"

    @property
    def variadic(self) -> bool:
        """Whether the last operand is one or more tensors."""
        return bool(self.operands) and self.operands[-1].startswith("*")

    def operand_names(self, count: int) -> tuple[str, ...]:
        if not self.variadic:
            return self.operands
        *fixed, last = self.operands
        return (*fixed, *(f"{last[1:]}_{i}" for i in range(count - len(fixed))))


# --- attributes: their legal values, the values that tests try, and how `xg.xp` takes them --------
ORDERS = ("C", "channels_last", "channels_last_3d")  # of elements in memory


def is_axis(value: object) -> bool:
    axes = value if isinstance(value, tuple) else (value,)
    # `type(axis) is int`, here and below, because True is an instance of int.
    return value is None or all(type(axis) is int for axis in axes)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_dtype(value: object) -> bool:
    return value is None or value in (T, *DTYPES)


# `fold_in` takes any 32-bit word.
def is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**32


def is_order(value: object) -> bool:
    return is_number(value) and value > 0  # type: ignore[operator]


def are_integers(value: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and all(type(n) is int for n in value)


def is_shape(value: object) -> bool:
    return are_integers(value) and all(n >= -1 for n in value) and value.count(-1) < 2


def is_name(value: object) -> TypeGuard[str]:
    """Return whether a value can be the name of a variable in emitted code."""
    if not isinstance(value, str) or not 0 < len(value) <= 100:
        return False
    # Python normalizes identifiers to NFKC, so another form would name another variable.
    is_normalized = value.isascii() or unicodedata.normalize("NFKC", value) == value
    return (
        is_normalized
        and value.isidentifier()
        and not keyword.iskeyword(value)
        and not value.startswith("__")
    )


def is_layout(value: object) -> bool:
    """Return whether a value is "alias", "own", or one of "copy" and "contiguous" with an order."""
    word, _, order = value.partition(" ") if isinstance(value, str) else ("", "", "")
    words = {"copy": ("", *ORDERS), "contiguous": ORDERS, "alias": ("",), "own": ("",)}
    return order in words.get(word, ())


def instance_of(kind: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, kind)


def optional(legal: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or legal(value)


def number(*samples: float, taken: str = "float") -> Attr:
    """Return the attribute of a number; the first sample is its default."""
    return Attr(is_number, samples, samples[0], "float", taken)


def number_or_none(*samples: float) -> Attr:
    return Attr(optional(is_number), (None, *samples), None)


def flag(default: bool) -> Attr:
    return Attr(instance_of(bool), (False, True), default, "bool", "bool")


def count(*samples: int) -> Attr:
    return Attr(is_count, samples)


def required(attr: Attr) -> Attr:
    """Return an attribute without its default."""
    return attr._replace(default=REQUIRED)


AXIS = Attr(is_axis, (), -1, "int", "one_axis")
NEW_AXIS = Attr(is_axis, (), 0, "int")
AXES = Attr(is_axis, (), None, "Axis", "axes_of")
LAST_AXES = AXES._replace(default=-1)
ANYTHING = Attr(instance_of(object))
DTYPE = Attr(is_dtype)
HALVES = Attr(is_count, (0, 1))
LAYOUT = Attr(is_layout)
NAME = Attr(is_name)
ORDER = Attr(is_order, (2, 1, 3, 0.5, float("inf")))
SHAPE = Attr(is_shape)


# --- types of results -----------------------------------------------------------------------------
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
