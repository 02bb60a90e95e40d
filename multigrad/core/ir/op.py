"""`Op`, a row of the op table, and `Attr`, one of its attributes, with the types of values: kind,
dtype and shape, all symbolic. `multigrad.core.ops` has all ops.

A rule is captured once for every rank and float dtype, so a dtype is `T` ("that of the rule's
input") unless the author fixed one, and a shape is a relation to the input's shape. Scalars are
weak: a Python number or a run-time parameter that takes the dtype of the tensor it meets.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

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


def promote(dtypes: Iterable[str]) -> str | None:
    """Return the integer dtype that holds all of these, or None if there are none."""
    names = set(dtypes)
    for dtype in (INT64, INT32):
        if dtype in names:
            return dtype
    # int8 and uint8 together need 16 bits.
    return "int16" if "int16" in names or len(names) > 1 else next(iter(names), None)


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
        bits: those of an integer result; None: those of its largest operand.
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
    bits: Callable[..., int] | None = None
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
