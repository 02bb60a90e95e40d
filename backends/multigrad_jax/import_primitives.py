"""What each primitive of a jaxpr means in ops; see `import_jaxpr.py`.

In a jaxpr every broadcast is written out. Ours broadcast by themselves, so that an operand keeps
the shape in which it was computed, ones where it is to be repeated, until something needs it whole.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multigrad import ops
from multigrad.ir.questions import pardoned
from multigrad.ir.types import T
from multigrad.tracing import xp_all as xp
from multigrad.tracing.constants import lift_array
from multigrad.tracing.trace import Trace, Value, apply, cast, constant

from . import capture_lax

Tensor = Any
Shape = tuple[Any, ...]
Params = Mapping[str, Any]
REDUCED = (ops.SUM, ops.MEAN, ops.MAX, ops.MIN, ops.PROD, ops.ANY, ops.ALL)


class Unknown(Exception):
    """A jaxpr cannot be imported; says why."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A recorded value and its shape: that of the jaxpr's variable, with ones where it is to be
    repeated, or ().
    """

    value: Any
    shape: Shape


class Scope:
    """One import: the capture it is part of, what stands for the jaxpr's dtypes and lengths."""

    def __init__(self, trace: Trace, dtype: str, lengths: Mapping[str, Any]) -> None:
        self.trace = trace
        self.dtype = dtype
        self.lengths = lengths
        self.examples: dict[Shape, Value] = {}

    def remember(self, operand: Operand) -> None:
        """Keep a tensor as the example of its shape."""
        if operand.shape and operand.value.node.type.kind == "tensor":
            self.examples.setdefault(operand.shape, operand.value)

    def lift(self, array: Any) -> Operand:
        """Return a constant of the jaxpr."""
        array = np.asarray(array)
        if array.ndim == 0:
            return Operand(self.trace.value(constant(array.item())), ())
        return Operand(self.trace.value(lift_array(self.trace, array)), array.shape)

    def whole(self, operand: Operand, shape: Shape) -> Value:
        """Return an operand repeated to its shape."""
        if operand.shape == shape and (shape or operand.value.node.type.kind == "tensor"):
            return operand.value
        like = self.examples.get(shape)
        if like is not None:
            if operand.value.node.type.kind == "scalar":
                dtype = bool if operand.value.node.type.dtype == "bool" else None
                return xp.full_like(like, operand.value, dtype)
            return xp.broadcast_to(operand.value, like)
        if not all(isinstance(n, int) for n in shape):
            raise Unknown(f"a tensor of shape {shape}, which no other has")
        if operand.value.node.type.kind == "scalar":
            node = lift_array(self.trace, np.ones(shape)) if shape else None
            return operand.value if node is None else self.trace.value(node) * operand.value
        return xp.broadcast_to(operand.value, tuple(shape))

    def length(self, dimension: Any) -> Any:
        """Return a length of the jaxpr: a number, or computed from the lengths that stay open."""
        if isinstance(dimension, int | np.integer):
            return int(dimension)
        try:
            with pardoned():  # jax looks for ones among the factors, and goes on without
                return dimension._evaluate(dict(self.lengths))
        except Exception as error:
            raise Unknown(f"the length {dimension}") from error

    def dtype_name(self, dtype: Any) -> str:
        name = np.dtype(dtype).name
        return T if name == self.dtype else {"int64": "int32"}.get(name, name)


@dataclass(frozen=True, slots=True)
class Step:
    """One equation: its operands, the shapes that the jaxpr gives them, the result, parameters."""

    scope: Scope
    operands: list[Operand]
    shapes: list[Shape]
    shape: Shape
    params: Params

    def whole(self, i: int = 0) -> Value:
        """Return an operand in the jaxpr's shape."""
        return self.scope.whole(self.operands[i], self.shapes[i])

    def result(self, value: Any) -> Operand:
        """Return a value that has the jaxpr's shape."""
        return Operand(value, self.shape)


Handler = Callable[[Step], Operand]


# --- element by element ---------------------------------------------------------------------------
def repeated(shapes: Sequence[Shape]) -> Shape:
    """Return the shape of an elementwise result: 1 where all operands have it."""
    full = [shape for shape in shapes if shape]
    if not full:
        return ()
    return tuple(next((n for n in lengths if n != 1), 1) for lengths in zip(*full, strict=True))


def elementwise(function: Callable[..., Any]) -> Handler:
    """Return the handler of a primitive that computes element by element."""

    def handle(step: Step) -> Operand:
        result = function(*(operand.value for operand in step.operands))
        return Operand(result, repeated([operand.shape for operand in step.operands]))

    return handle


def integer_pow(step: Step) -> Operand:
    (x,) = step.operands
    return Operand(xp.pow(x.value, int(step.params["y"])), x.shape)


def round_(step: Step) -> Operand:
    (x,) = step.operands
    return Operand(capture_lax.round_(x.value, step.params["rounding_method"]), x.shape)


def convert_element_type(step: Step) -> Operand:
    (x,) = step.operands
    return Operand(cast(x.value, step.scope.dtype_name(step.params["new_dtype"])), x.shape)


def dim_as_value(step: Step) -> Operand:
    length = step.scope.length(step.params["dim"])
    return Operand(length, ()) if isinstance(length, Value) else step.scope.lift(length)


def divide(a: Tensor, b: Tensor) -> Tensor:
    if all(x.node.type.dtype in ("int", "int32") for x in (a, b)):
        raise Unknown("a division of integers")
    return xp.divide(a, b)


def select_n(which: Tensor, *cases: Tensor) -> Tensor:
    if len(cases) != 2 or which.node.type.dtype != "bool":
        raise Unknown(f"select_n with {len(cases)} cases")
    return xp.where(which, cases[1], cases[0])


def identity(x: Tensor) -> Tensor:
    return x


# --- along axes -----------------------------------------------------------------------------------
def reduction(function: Callable[..., Any]) -> Handler:
    """Return the handler of a reduction."""

    def handle(step: Step) -> Operand:
        axes = tuple(int(axis) for axis in step.params["axes"])
        everything = len(axes) == len(step.shapes[0])
        return step.result(function(step.whole(), None if everything else axes))

    return handle


def along(function: Callable[..., Any]) -> Handler:
    """Return the handler of what runs along one axis, in either direction."""

    def handle(step: Step) -> Operand:
        return step.result(function(step.whole(), step.params["axis"], step.params["reverse"]))

    return handle


def sort(step: Step) -> Operand:
    if len(step.operands) != 1:
        raise Unknown("a sort of several arrays by one of them")
    return step.result(xp.sort(step.whole(), step.params["dimension"]))


# --- shapes ---------------------------------------------------------------------------------------
def broadcast_in_dim(step: Step) -> Operand:
    """Put the operand's axes in their places, ones in the others; repeated where that matters."""
    operand, places = step.operands[0], step.params["broadcast_dimensions"]
    if not operand.shape:
        return operand
    rank = len(step.params["shape"])
    added = tuple(axis for axis in range(rank) if axis not in places)
    shape = list(operand.shape)
    for axis in added:
        shape.insert(axis, 1)
    node = operand.value.node
    if node.op in REDUCED and node.attr("axis") == added and not node.attr("keepdims"):
        attrs = {**dict(node.attrs), "keepdims": True}
        x = step.scope.trace.value(node.operands[0])
        return Operand(apply(node.op, x, **attrs), tuple(shape))
    x = operand.value
    for axis in added:
        x = xp.expand_dims(x, axis)
    return Operand(x, tuple(shape))


def reshape(step: Step) -> Operand:
    lengths = [step.scope.length(n) for n in step.params["new_sizes"]]
    like = step.scope.examples.get(step.shape)
    open_ones = [i for i, n in enumerate(lengths) if not isinstance(n, int)]
    if like is not None and open_ones:
        return step.result(xp.reshape_like(step.whole(), like))
    if len(open_ones) > 1:
        raise Unknown(f"a reshape to {step.shape}")
    sizes = [-1 if i in open_ones else n for i, n in enumerate(lengths)]
    return step.result(xp.reshape(step.whole(), sizes))


def squeeze(step: Step) -> Operand:
    return step.result(xp.squeeze(step.whole(), _integers(step.params["dimensions"])))


def transpose(step: Step) -> Operand:
    return step.result(xp.permute_dims(step.whole(), _integers(step.params["permutation"])))


def rev(step: Step) -> Operand:
    return step.result(xp.flip(step.whole(), _integers(step.params["dimensions"])))


def tile(step: Step) -> Operand:
    return step.result(xp.tile(step.whole(), _integers(step.params["reps"])))


def concatenate(step: Step) -> Operand:
    parts = [step.whole(i) for i in range(len(step.operands))]
    return step.result(xp.concatenate(parts, step.params["dimension"]))


def stack(step: Step) -> Operand:
    parts = [step.whole(i) for i in range(len(step.operands))]
    return step.result(xp.stack(parts, step.params["axis"]))


def slice_(step: Step) -> Operand:
    starts, limits = step.params["start_indices"], step.params["limit_indices"]
    strides = step.params["strides"] or (1,) * len(starts)
    items = []
    for start, limit, stride, n in zip(starts, limits, strides, step.shapes[0], strict=True):
        whole = start == 0 and limit == n and stride == 1
        items.append(slice(None) if whole else slice(*_integers((start, limit, stride))))
    return step.result(xp.getitem(step.whole(), tuple(items)))


def split(step: Step) -> list[Operand]:
    """The one primitive here that has several results."""
    axis, start, parts = step.params["axis"], 0, []
    for size in _integers(step.params["sizes"]):
        index = (*(slice(None),) * axis, slice(start, start + size))
        shape = (*step.shape[:axis], size, *step.shape[axis + 1 :])
        parts.append(Operand(xp.getitem(step.whole(), index), shape))
        start += size
    return parts


def gather(step: Step) -> Operand:
    """One row or column, as `x[0]` picks it where lengths are open."""
    numbers, sizes = step.params["dimension_numbers"], step.params["slice_sizes"]
    node = step.operands[1].value.node
    if len(numbers.start_index_map) != 1 or numbers.collapsed_slice_dims != numbers.start_index_map:
        raise Unknown("a gather of more than one row")
    (axis,) = numbers.start_index_map
    others = [n for i, n in enumerate(sizes) if i != axis]
    if step.shapes[1] != (1,) or node.type.kind != "scalar" or node.op is not ops.CONST:
        raise Unknown("a gather by a tensor")
    if others != [n for i, n in enumerate(step.shapes[0]) if i != axis]:
        raise Unknown("a gather of a part")
    index = (*(slice(None),) * axis, int(node.attr("value")))
    return step.result(xp.getitem(step.whole(), index))


def pad(step: Step) -> Operand:
    fill, config = step.operands[1].value.node, step.params["padding_config"]
    if fill.op is not ops.CONST or any(low < 0 or high < 0 or inner for low, high, inner in config):
        raise Unknown("a pad with negative or inner widths, or of no one number")
    widths = tuple((int(low), int(high)) for low, high, _ in config)
    return step.result(xp.pad(step.whole(), widths, float(fill.attr("value"))))


def iota(step: Step) -> Operand:
    lengths = _integers(step.params["shape"])
    axis = step.params["dimension"]
    ones = [1] * len(lengths)
    ones[axis] = lengths[axis]
    return step.scope.lift(np.broadcast_to(np.arange(lengths[axis]).reshape(ones), lengths))


def dot_general(step: Step) -> Operand:
    """A product, as einsum names it."""
    (left_sum, right_sum), (left_batch, right_batch) = step.params["dimension_numbers"]
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    left = [next(letters) for _ in step.shapes[0]]
    right = [next(letters) for _ in step.shapes[1]]
    for i, j in (
        *zip(left_batch, right_batch, strict=True),
        *zip(left_sum, right_sum, strict=True),
    ):
        right[j] = left[i]
    batch = [left[i] for i in left_batch]
    free = [letter for i, letter in enumerate(left) if i not in (*left_batch, *left_sum)]
    free += [letter for j, letter in enumerate(right) if j not in (*right_batch, *right_sum)]
    subscripts = f"{''.join(left)},{''.join(right)}->{''.join((*batch, *free))}"
    return step.result(xp.einsum(subscripts, step.whole(0), step.whole(1)))


def _integers(given: Any) -> tuple[int, ...]:
    """Return lengths or axes as ints."""
    try:
        return tuple(map(operator.index, given))
    except Exception as error:  # an open length
        raise Unknown(f"the lengths {tuple(given)}") from error


ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "abs": xp.abs, "acos": xp.acos, "acosh": xp.acosh, "add": xp.add,
    "add_any": xp.add, "and": xp.bitwise_and, "asin": xp.asin,
    "asinh": xp.asinh, "atan": xp.atan, "atan2": xp.atan2, "atanh": xp.atanh,
    "cbrt": xp.cbrt, "ceil": xp.ceil, "clamp": capture_lax.clamp, "copy": identity,
    "copy_p": identity, "cos": xp.cos, "cosh": xp.cosh, "digamma": xp.digamma,
    "div": divide, "eq": xp.equal, "erf": xp.erf, "erf_inv": xp.erfinv,
    "erfc": xp.erfc, "exp": xp.exp, "exp2": xp.exp2, "expm1": xp.expm1,
    "floor": xp.floor, "ge": xp.greater_equal, "gt": xp.greater,
    "is_finite": xp.isfinite, "le": xp.less_equal, "lgamma": xp.lgamma,
    "log": xp.log, "log1p": xp.log1p, "logistic": xp.sigmoid, "lt": xp.less,
    "max": xp.maximum, "min": xp.minimum, "mul": xp.multiply,
    "ne": xp.not_equal, "neg": xp.negative, "not": xp.bitwise_invert,
    "optimization_barrier": identity, "or": xp.bitwise_or, "pow": xp.pow,
    "rem": xp.fmod, "rsqrt": xp.rsqrt, "select_n": select_n, "sign": xp.sign,
    "sin": xp.sin, "sinh": xp.sinh, "sqrt": xp.sqrt, "square": xp.square,
    "stop_gradient": xp.stop_gradient, "sub": xp.subtract, "tan": xp.tan,
    "tanh": xp.tanh, "xor": xp.bitwise_xor,
}  # fmt: skip

PRIMITIVES: dict[str, Handler] = {
    **{name: elementwise(function) for name, function in ELEMENTWISE.items()},
    "broadcast_in_dim": broadcast_in_dim, "concatenate": concatenate,
    "convert_element_type": convert_element_type, "cummax": along(capture_lax.cummax),
    "cummin": along(capture_lax.cummin), "cumprod": along(capture_lax.cumprod),
    "cumlogsumexp": along(capture_lax.cumlogsumexp),
    "cumsum": along(capture_lax.cumsum), "dim_as_value": dim_as_value, "dot_general": dot_general,
    "gather": gather, "integer_pow": integer_pow, "iota": iota, "pad": pad,
    "reduce_and": reduction(xp.all), "reduce_max": reduction(xp.max),
    "reduce_min": reduction(xp.min), "reduce_or": reduction(xp.any),
    "reduce_prod": reduction(xp.prod), "reduce_sum": reduction(xp.sum),
    "reshape": reshape, "rev": rev, "round": round_, "slice": slice_, "sort": sort,
    "squeeze": squeeze, "stack": stack, "tile": tile, "transpose": transpose,
}  # fmt: skip
