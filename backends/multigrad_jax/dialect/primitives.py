"""The meaning in ops of elementwise primitives and those of shapes and axes; see `traced.py`.

In a jaxpr every broadcast is an equation, while our ops broadcast implicitly. So an operand keeps
the shape in which it was computed, with ones along repeated axes, until an op needs it whole.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from multigrad.capture.meanings import composites
from multigrad.capture.types.oracle import ModeOf
from multigrad.graph import ops
from multigrad.graph.ir.questions import pardoned
from multigrad.graph.ir.types import BOOL, FLOATS, INT32, INT64, INTEGERS, SMALL, WHOLE, T
from multigrad.graph.support.class_bases import dataclass
from multigrad.trace.coercion import lift_array
from multigrad.trace.trace import Trace, Value, apply, cast, constant
from multigrad.trace.xp import all as xp

from ..jaxprs import subscripts_of
from .families import ALIASES

Tensor = Any
Shape = tuple[Any, ...]
Params = Mapping[str, Any]
# The dtype of a tensor that is made of a number of this kind.
WEAK = {"float": T, "int": INT32, "bool": BOOL}
REDUCED = (ops.SUM, ops.MEAN, ops.MAX, ops.MIN, ops.PROD, ops.ANY, ops.ALL)


class Unknown(Exception):
    """A jaxpr cannot be imported, for this reason.

    Attributes:
        lacks: the reason, if a primitive has no op, which the user's line does not show.
    """

    def __init__(self, reason: str, *, lacks: str = "") -> None:
        super().__init__(reason)
        self.lacks = lacks


@dataclass(frozen=True, slots=True)
class TrialDtype:
    """The dtype that stands for the input's open dtype while jax traces.

    Attributes:
        is_wide: whether the user has switched 64 bits on, so that int64 is not narrowed.
    """

    dtype: str
    is_wide: bool = field(default_factory=lambda: bool(ModeOf("jax").meaning()[0]))

    def context(self) -> AbstractContextManager[Any]:
        return jax.enable_x64(self.is_wide or self.dtype == "float64")


@dataclass(frozen=True, slots=True)
class Operand:
    """A recorded value, and the shape of its jaxpr variable, with ones along repeated axes, or ().

    `known` holds its numbers if they are constants.
    """

    value: Any
    shape: Shape
    known: Any = None


class ImportScope:
    """One import: its capture, and the meaning of the jaxpr's dtypes and lengths."""

    def __init__(self, trace: Trace, trial: TrialDtype, lengths: Mapping[str, Any]) -> None:
        self.trace = trace
        self.trial = trial
        self.lengths = lengths
        self.examples: dict[Shape, Value] = {}

    def remember(self, operand: Operand) -> None:
        """Keep a tensor as an example of its shape, which others can be broadcast to."""
        if operand.shape and operand.value.node.type.kind == "tensor":
            self.examples.setdefault(operand.shape, operand.value)

    def lift(self, array: Any) -> Operand:
        array = np.asarray(array)
        if array.dtype == jax.dtypes.float0:  # zeros of no bytes, which no result depends on
            array = np.zeros(array.shape, bool)
        if array.ndim == 0:
            return Operand(self.trace.value(constant(array.item())), (), array)
        value = self.trace.value(lift_array(self.trace, array))
        if array.dtype.kind in "iu":  # never weak: a jaxpr has each cast as an equation
            fits = not array.size or np.abs(array.astype(np.float64)).max() < 2**31
            name = self.dtype_name(array.dtype)
            value = cast(value, name if name in SMALL else INT32 if fits else INT64)
        return Operand(value, array.shape, array)

    def noted(self, operand: Operand) -> Operand:
        """Return an operand with its number noted, if it is a constant."""
        node = operand.value.node
        if operand.known is not None or operand.shape or node.op is not ops.CONST:
            return operand
        return replace(operand, known=np.asarray(node.attr("value")))

    def whole(self, operand: Operand, shape: Shape) -> Value:
        """Return an operand repeated to a shape."""
        if operand.shape == shape and (shape or operand.value.node.type.kind == "tensor"):
            return operand.value
        like = self.examples.get(shape)
        if like is not None:
            if operand.value.node.type.kind == "scalar":
                dtype = WEAK[operand.value.node.type.dtype]
                return xp.full_like(like, operand.value, dtype)
            return xp.broadcast_to(operand.value, like)
        if not all(isinstance(n, int) for n in shape):
            raise Unknown(f"a tensor of shape {shape}, which no other has")
        if operand.value.node.type.kind == "scalar":
            return self.filled(operand.value, shape) if shape else operand.value
        return xp.broadcast_to(operand.value, tuple(shape))

    def whole_tensor(self, operand: Operand, shape: Shape) -> Value:
        """Return an operand repeated to a shape, a number as a tensor too."""
        value = self.whole(operand, shape)
        if value.node.type.kind == "tensor":
            return value
        return xp.reshape(self.filled(value, (1,)), integers(shape))

    def filled(self, number: Value, shape: Shape) -> Value:
        ones = self.trace.value(lift_array(self.trace, np.ones(shape)))
        return xp.full_like(ones, number, WEAK[number.node.type.dtype])

    def given_back(self, operand: Operand, struct: Any) -> Value:
        """Return a whole result, with integers cast to the jaxpr's dtype."""
        value = self.whole(operand, tuple(struct.shape))
        dtype, type_ = self.dtype_name(struct.dtype), value.node.type
        if type_.kind == "tensor" and type_.dtype in (T, *FLOATS) and dtype in WHOLE:
            raise Unknown(f"floats where jax gives {dtype}")
        is_other = type_.kind == "tensor" and type_.dtype in WHOLE and dtype in WHOLE
        return cast(value, dtype) if is_other else value

    def length(self, dimension: Any) -> Any:
        """Return a length of the jaxpr: a number, or a value computed from open lengths."""
        if isinstance(dimension, int | np.integer):
            return int(dimension)
        try:
            with pardoned():  # jax compares factors with 1, and goes on if it cannot
                return dimension._evaluate(dict(self.lengths))
        except Exception as error:
            raise Unknown(f"the length {dimension}") from error

    def dtype_name(self, dtype: Any) -> str:
        name: str = np.dtype(dtype).name
        narrow = {} if self.trial.is_wide else {"int64": "int32"}
        return T if name == self.trial.dtype else narrow.get(name, name)


@dataclass(frozen=True, slots=True)
class EquationStep:
    """One equation: its operands, their shapes and dtypes, its first result's shape, its params."""

    scope: ImportScope
    operands: list[Operand]
    shapes: list[Shape]
    dtypes: list[Any]
    shape: Shape
    params: Params

    def whole(self, i: int = 0) -> Value:
        """Return an operand in the jaxpr's shape."""
        return self.scope.whole(self.operands[i], self.shapes[i])

    def whole_tensor(self, i: int = 0) -> Value:
        """Return an operand in the jaxpr's shape, a number as a tensor too."""
        return self.scope.whole_tensor(self.operands[i], self.shapes[i])

    def result(self, value: Any) -> Operand:
        return Operand(value, self.shape)


Handler = Callable[[EquationStep], Operand | list[Operand]]


# --- along axes -----------------------------------------------------------------------------------
def reduction(function: Callable[..., Any]) -> Handler:
    def handle(step: EquationStep) -> Operand:
        axes = tuple(int(axis) for axis in step.params["axes"])
        everything = len(axes) == len(step.shapes[0])
        return step.result(function(step.whole(), None if everything else axes))

    return handle


def along(function: Callable[..., Any]) -> Handler:
    """Return the handler of what runs along one axis, in either direction."""

    def handle(step: EquationStep) -> Operand:
        x, axis, reverse = step.whole(), step.params["axis"], step.params["reverse"]
        along_axis = function(xp.flip(x, axis) if reverse else x, axis)
        return step.result(xp.flip(along_axis, axis) if reverse else along_axis)

    return handle


def moved(function: Callable[..., Any], name: str) -> Handler:
    """Return the handler of a function that takes one param, of integers."""

    def handle(step: EquationStep) -> Operand:
        return step.result(function(step.whole(), integers(step.params[name])))

    return handle


def joined(function: Callable[..., Any], name: str) -> Handler:
    def handle(step: EquationStep) -> Operand:
        parts = [step.whole(i) for i in range(len(step.operands))]
        return step.result(function(parts, step.params[name]))

    return handle


# --- shapes ---------------------------------------------------------------------------------------
def broadcast_in_dim(step: EquationStep) -> Operand:
    """Move the operand's axes, with ones along new axes, repeated later where it matters."""
    operand, places = step.operands[0], step.params["broadcast_dimensions"]
    if not operand.shape:
        return operand
    rank = len(step.params["shape"])
    added = tuple(axis for axis in range(rank) if axis not in places)
    shape = list(operand.shape)
    for axis in added:
        shape.insert(axis, 1)
    node = operand.value.node
    # a reduction whose axes are added again is one with keepdims
    if node.op in REDUCED and node.attr("axis") == added and not node.attr("keepdims"):
        attrs = {**dict(node.attrs), "keepdims": True}
        x = step.scope.trace.value(node.operands[0])
        return Operand(apply(node.op, x, **attrs), tuple(shape))
    x = operand.value
    for axis in added:
        x = xp.expand_dims(x, axis)
    return Operand(x, tuple(shape))


def reshape(step: EquationStep) -> Operand:
    lengths = [step.scope.length(n) for n in step.params["new_sizes"]]
    x, order = step.whole(), step.params["dimensions"]
    if order is not None:
        x = xp.permute_dims(x, integers(order))
    # an open length is known by another tensor of that shape; one alone can be -1
    like = step.scope.examples.get(step.shape)
    open_ones = [i for i, n in enumerate(lengths) if not isinstance(n, int)]
    if like is not None and open_ones:
        return step.result(xp.reshape_like(x, like))
    if len(open_ones) > 1:
        raise Unknown(f"a reshape to {step.shape}")
    sizes = [-1 if i in open_ones else n for i, n in enumerate(lengths)]
    return step.result(xp.reshape(x, sizes))


def slice_(step: EquationStep) -> Operand:
    starts, limits = step.params["start_indices"], step.params["limit_indices"]
    strides = step.params["strides"] or (1,) * len(starts)
    items = []
    for start, limit, stride, n in zip(starts, limits, strides, step.shapes[0], strict=True):
        whole = start == 0 and limit == n and stride == 1
        items.append(slice(None) if whole else slice(*integers((start, limit, stride))))
    return step.result(xp.getitem(step.whole(), tuple(items)))


def split(step: EquationStep) -> list[Operand]:
    axis, start, parts = step.params["axis"], 0, []
    for size in integers(step.params["sizes"]):
        index = (*(slice(None),) * axis, slice(start, start + size))
        shape = (*step.shapes[0][:axis], size, *step.shapes[0][axis + 1 :])
        parts.append(Operand(xp.getitem(step.whole(), index), shape))
        start += size
    return parts


def unstack(step: EquationStep) -> list[Operand]:
    axis, shape = step.params["axis"], step.shapes[0]
    rest = (*shape[:axis], *shape[axis + 1 :])
    (count,) = integers(shape[axis : axis + 1])
    index = (slice(None),) * axis
    return [Operand(xp.getitem(step.whole(), (*index, i)), rest) for i in range(count)]


def iota(step: EquationStep) -> Operand:
    lengths = integers(step.params["shape"])
    axis = step.params["dimension"]
    ones = [1] * len(lengths)
    ones[axis] = lengths[axis]
    return step.scope.lift(np.broadcast_to(np.arange(lengths[axis]).reshape(ones), lengths))


def dot_general(step: EquationStep) -> Operand:
    numbers, (left, right) = step.params["dimension_numbers"], step.shapes
    subscripts = subscripts_of(numbers, len(left), len(right))
    return step.result(xp.einsum(subscripts, step.whole(0), step.whole(1)))


def integers(numbers: Any) -> tuple[int, ...]:
    """Return lengths or axes as ints."""
    try:
        return tuple(map(operator.index, numbers))
    except Exception as error:  # an open length
        raise Unknown(f"the lengths {tuple(numbers)}") from error


def several(step: EquationStep) -> list[Operand]:
    return list(step.operands)


def empty(step: EquationStep) -> Operand:
    """Return zeros for elements that no equation reads."""
    return step.scope.lift(np.zeros(integers(step.shape)))


SHAPES: dict[str, Handler] = {
    "broadcast_in_dim": broadcast_in_dim, "concatenate": joined(xp.concatenate, "dimension"),
    "cummax": along(xp.cummax), "cummin": along(xp.cummin),
    "cumprod": along(xp.cumprod), "cumlogsumexp": along(xp.logcumsumexp),
    "cumsum": along(xp.cumsum), "device_put": several, "dot_general": dot_general,
    "empty2": empty, "iota": iota, "reduce_and": reduction(xp.all),
    "reduce_max": reduction(xp.max), "reduce_min": reduction(xp.min),
    "reduce_or": reduction(xp.any), "reduce_prod": reduction(xp.prod),
    "reduce_sum": reduction(xp.sum),
    "reshape": reshape, "rev": moved(xp.flip, "dimensions"), "slice": slice_,
    "split": split, "squeeze": moved(xp.squeeze, "dimensions"), "stack": joined(xp.stack, "axis"),
    "tile": moved(xp.tile, "reps"), "transpose": moved(xp.permute_dims, "permutation"),
    "unstack": unstack,
}  # fmt: skip


# --- element by element ---------------------------------------------------------------------------
def repeated(shapes: Sequence[Shape]) -> Shape:
    """Return the shape of an elementwise result: 1 where all operands have 1."""
    full = [shape for shape in shapes if shape]
    if not full:
        return ()
    return tuple(next((n for n in lengths if n != 1), 1) for lengths in zip(*full, strict=True))


def elementwise(function: Callable[..., Any]) -> Handler:
    def handle(step: EquationStep) -> Operand:
        result = function(*(operand.value for operand in step.operands))
        return Operand(result, repeated([operand.shape for operand in step.operands]))

    return handle


def integer_pow(step: EquationStep) -> Operand:
    (x,) = step.operands
    return Operand(xp.pow(x.value, int(step.params["y"])), x.shape)


def rounded(x: Tensor, method: Any) -> Tensor:
    if method == jax.lax.RoundingMethod.TO_NEAREST_EVEN:
        return xp.round(x)
    whole = xp.trunc(x)
    return xp.where(xp.abs(x - whole) >= 0.5, whole + xp.sign(x), whole)


def polygamma(step: EquationStep) -> Operand:
    order, x = step.operands
    if order.known is None:
        raise Unknown("polygamma of an order that is a tensor")
    # at its poles XLA gives NaN for an even order
    return Operand(composites.polygamma(float(order.known), x.value, math.nan), x.shape)


def round_(step: EquationStep) -> Operand:
    (x,) = step.operands
    return Operand(rounded(x.value, step.params["rounding_method"]), x.shape)


def convert_element_type(step: EquationStep) -> Operand:
    (x,) = step.operands
    return Operand(cast(x.value, step.scope.dtype_name(step.params["new_dtype"])), x.shape)


def dim_as_value(step: EquationStep) -> Operand:
    length = step.scope.length(step.params["dim"])
    return Operand(length, ()) if isinstance(length, Value) else step.scope.lift(length)


def less_in_order(a: Tensor, b: Tensor) -> Tensor:
    """Return a < b in a total order: -0 before 0, NaN by its sign before or after all numbers."""
    less = xp.less(a, b)
    if all(x.node.type.dtype in ("int", *INTEGERS) for x in (a, b)):
        return less
    signs = xp.signbit(a), xp.signbit(b)
    is_zero = xp.logical_and(xp.equal(a, b), xp.logical_and(signs[0], xp.logical_not(signs[1])))
    sides = [
        xp.where(xp.isnan(x), xp.where(sign, -1.0, 1.0), 0.0)
        for x, sign in zip((a, b), signs, strict=True)
    ]
    apart = xp.less(sides[0], sides[1])
    together = xp.logical_and(xp.equal(sides[0], sides[1]), xp.logical_or(less, is_zero))
    return xp.logical_or(apart, together)


def equal_in_order(a: Tensor, b: Tensor) -> Tensor:
    return xp.logical_not(xp.logical_or(less_in_order(a, b), less_in_order(b, a)))


def at_most_in_order(a: Tensor, b: Tensor) -> Tensor:
    return xp.logical_not(less_in_order(b, a))


def select_n(which: Tensor, *cases: Tensor) -> Tensor:
    are_scalars = all(case.node.type.kind == "scalar" for case in cases)
    if are_scalars and which.node.type.kind == "tensor":  # the kind of number decides the dtype
        cases = (xp.full_like(which, cases[0], WEAK[cases[0].node.type.dtype]), *cases[1:])
    if which.node.type.dtype == BOOL:
        return xp.where(which, cases[1], cases[0]) if len(cases) == 2 else cases[0]
    result = cases[-1]
    for i, case in enumerate(cases[:-1]):
        result = xp.where(xp.equal(which, i), case, result)
    return result


def reduce_precision(step: EquationStep) -> Operand:
    limits = jnp.finfo(step.dtypes[0])
    if (step.params["exponent_bits"], step.params["mantissa_bits"]) != (limits.nexp, limits.nmant):
        raise Unknown("reduce_precision to another format")
    return step.operands[0]


# Primitives that mean the same as the functions of `jax.lax` of their names.
FUNCTIONS = """
    abs acos acosh add asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp cos cosh
    digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt is_finite le lgamma log log1p
    logistic lt max min mul ne neg nextafter optimization_barrier pow rem rsqrt sign sin sinh sqrt
    square stop_gradient sub tan tanh
"""
ELEMENTWISE: dict[str, Callable[..., Any]] = {
    **{name: ALIASES[getattr(jax.lax, name)] for name in FUNCTIONS.split()},
    **dict.fromkeys(("copy", "copy_p", "name"), ALIASES[jax.nn.identity]),
    "add_any": xp.add, "and": xp.bitwise_and, "eq_to": equal_in_order,
    "le_to": at_most_in_order, "lt_to": less_in_order, "not": xp.bitwise_invert,
    "or": xp.bitwise_or, "select_n": select_n, "xor": xp.bitwise_xor,
}  # fmt: skip

ELEMENTS: dict[str, Handler] = {
    **{name: elementwise(function) for name, function in ELEMENTWISE.items()},
    "convert_element_type": convert_element_type, "dim_as_value": dim_as_value,
    "integer_pow": integer_pow, "polygamma": polygamma, "reduce_precision": reduce_precision,
    "round": round_,
}  # fmt: skip
