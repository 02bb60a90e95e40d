"""Cases made from the op table alone: operands from domains and kinds, attributes from samples.

A case is the op as a function of one array `x` of SHAPE, numbers of both signs that lie apart; each
operand is made of x, inside its domain. It runs on arrays and records on symbolic values alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multigrad.core import ops
from multigrad.core.ir import op as attributes
from multigrad.core.ir.op import (
    PER_ELEMENT,
    Attr,
    Op,
    kept,
    overwritten,
    reduced,
    shaped_like_second,
)
from multigrad.core.ops.numerics import ignoring_warnings
from multigrad.core.ops.properties import REALS, Domain
from multigrad.core.ops.table import zero
from multigrad.core.trace.trace import apply
from multigrad.core.trace.xp import all as neutral

xp: Any = neutral
Tensor = Any
SHAPE = (2, 3)
# Values of attributes whose samples depend on the operand's shape: those for SHAPE.
SAMPLES: dict[Attr, tuple[Any, ...]] = {
    attributes.AXIS: (1, -2),
    ops.ordering.AXIS_OR_NONE: (-1, None),
    attributes.AXES: (0, None, (0, 1)),
    attributes.LAST_AXES: (-1, (0, 1)),
    attributes.NEW_AXIS: (1, 0),
    ops.orders.PLACE: (0, -1),
    ops.orders.MOVED: (0, -1),
    ops.orders.PLACES: ((1, 0), None),
    ops.indexing.INDEX: (((None, None, -1), (1, None, None)), (0, None), ("...", 1)),
    ops.indexing.INDICES: ((1, 1, 0), (-1,)),
    ops.indexing.REPETITIONS: ((2, 1), (2, 1, 2)),
    attributes.SHAPE: ((3, 2), (4, 2, 3), (-1,)),
    ops.products.SUBSCRIPTS: ("ij,kj->ik", "...i,...i->..."),
    ops.indexing.WIDTHS: (((1, 0), (0, 2)),),
}
# The same for operands of whatever shape.
OF_ANY_SHAPE: dict[Attr, Any] = {
    attributes.AXIS: -1,
    ops.ordering.AXIS_OR_NONE: -1,
    attributes.AXES: None,
    attributes.LAST_AXES: -1,
}
# To reductions and orders a scalar is one element along any axis; to these it is not.
NEED_AN_AXIS = {
    row
    for module in (ops.shapes, ops.orders, ops.indexing)
    for row in vars(module).values()
    if isinstance(row, Op)
} - {ops.FLIP, ops.ROLL}
KEEPING = (
    *PER_ELEMENT,
    kept,
    overwritten,
    shaped_like_second,
    ops.ordering.masked,
    ops.ordering.held,
    ops.ordering.reordered,
    ops.products.cotangent_of_left,
    ops.products.cotangent_of_right,
)
# Rows that the cases leave to tests of their own, and why.
LEFT_OUT: dict[Op, str] = {
    **{row: "it draws" for row in ops.CALLABLE_OPS if "key" in row.operands},
    **{row: "it needs shards" for row in vars(ops.collectives).values() if isinstance(row, Op)},
    ops.CAST: "its slope is rounded",
    ops.FULL_LIKE: "its result has a dtype of its own",
    ops.ARRAY: "its value is an array of NumPy",
    ops.STOP_GRADIENT: "its VJP is not its slope",
    **dict.fromkeys((ops.SVD, ops.EIGH, ops.QR), "the signs of its vectors are the backend's"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """An op with attributes: `name` is the row's, with those that differ from the first case's."""

    name: str
    row: Op
    attrs: dict[str, Any]

    def operands(self, x: Tensor) -> tuple[Tensor, ...]:
        """Make the operands of an array."""
        if self.row in OPERANDS:
            return OPERANDS[self.row](x, self.attrs)
        if self.row.variadic:
            return bases(x)[: self.attrs.get("subscripts", ",").count(",") + 1]
        return tuple(make_operand(self, i, x) for i in range(len(self.row.operands)))

    def arrays(self, x: Any, dtype: Any) -> list[Any]:
        """Make the operands of an array of NumPy: floats in a dtype, masks, integers, numbers."""
        if not x.ndim:
            return [np.reshape(operand, ()) for operand in self.arrays(x.reshape(1), dtype)]
        operands = self.operands(x)
        return [o.astype(dtype) if is_float_array(o) else o for o in operands]

    def __call__(self, x: Tensor) -> Tensor:
        return apply(self.row, *self.operands(x), **self.attrs)

    def meaning(self, *operands: Any) -> Any:
        """What NumPy gives for operands, without a warning."""
        with np.errstate(all="ignore"), ignoring_warnings():
            return self.row.numpy(*operands, **self.attrs)

    def needs_elements(self) -> bool:
        """Return whether the op has no value over nothing, as NumPy says or the frameworks."""
        try:
            self.meaning(*self.operands(np.zeros(0)))
        except ValueError:
            return True
        return self.row in NEED_ELEMENTS

    def smooth(self, x: Tensor) -> Tensor:
        """A function of x, of x's shape, whose slopes are those of the op; x has several."""
        y = self(x)
        if self.row.result in PER_ELEMENT and self.row.vjp is not zero:
            return y
        return x * y if keeps_shape(self.row) else x * xp.sum(xp.sin(0.3 * y))


def is_float_array(operand: Any) -> bool:
    return isinstance(operand, np.ndarray) and operand.dtype.kind == "f"


def keeps_shape(row: Op) -> bool:
    """Return whether the result has its operand's shape, or is a number."""
    # Of operands that have more axes than x.
    if row in (ops.CONV_LEFT, ops.CONV_RIGHT, ops.FFT):
        return False
    return row.result in KEEPING or row in (ops.DIM, ops.SIZE)


def bases(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x, 0.3 * x * x - 1.05, xp.sin(x)


def make_operand(case: Case, position: int, x: Tensor) -> Tensor:
    """Make the operand of that position: of its kind, inside its domain."""
    row, base = case.row, bases(x)[position]
    is_condition = row.operands[position] in ("mask", "condition")
    if is_condition or row.coerce == "bool":
        return xp.greater(base, -1.0)
    if row.coerce == "int":
        return xp.cast(8.3 * (xp.abs(base) if position else base), "int32")
    return inside(domain_of(row, position), base, case.attrs)


def domain_of(row: Op, position: int) -> Domain:
    """Return where an operand is."""
    domain = REALS if row.domain is None else row.domain
    return domain if isinstance(domain, Domain) else domain[position]


def inside(domain: Domain, x: Tensor, attrs: dict[str, Any]) -> Tensor:
    """Take numbers into an interval, smoothly."""
    if domain.falls:
        return -xp.cumsum(x * x, attrs["axis"], attrs["reverse"])
    if domain == REALS:
        return x
    if np.isinf(domain.high):
        return domain.low + xp.exp(0.5 * x)
    if np.isinf(domain.low):
        return domain.high - xp.exp(0.5 * x)
    return domain.low + (domain.high - domain.low) * xp.sigmoid(x)


# --- what a row cannot say ------------------------------------------------------------------------


def undoing(forward: Op) -> Callable[[Tensor, dict[str, Any]], tuple[Tensor, ...]]:
    """The operands of a row that undoes another: its result, and its operand."""
    return lambda x, attrs: (apply(forward, x * x, **attrs), x)


def order(x: Tensor, attrs: dict[str, Any]) -> Tensor:
    return xp.argsort(x, attrs["axis"])


def taken_at(x: Tensor, attrs: dict[str, Any]) -> tuple[Tensor, ...]:
    return x, xp.argmax(x, attrs["axis"], keepdims=True)


def undone_at(x: Tensor, attrs: dict[str, Any]) -> tuple[Tensor, ...]:
    return xp.take_at(x * x, taken_at(x, attrs)[1], attrs["axis"]), taken_at(x, attrs)[1], x


def beyond(operands: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    """The same with some of the places outside, on either side."""

    def make(x: Tensor, attrs: dict[str, Any]) -> tuple[Tensor, ...]:
        first, places, *rest = operands(x, attrs)
        return first, places * 4 - 1, *rest

    return make


def twice_as_long(x: Tensor, attrs: dict[str, Any]) -> tuple[Tensor, ...]:
    """Of even length along every axis that is to be halved."""
    return (xp.concatenate([x, x * x], axis=attrs["axis"]),)


def positive(x: Tensor) -> Tensor:
    """Matrices that have every factor and inverse."""
    return 0.1 * (x @ xp.matrix_transpose(x)) + np.eye(2)


def systems(x: Tensor, attrs: dict[str, Any]) -> tuple[Tensor, ...]:
    return positive(x), xp.sin(x)


def mirrored(x: Tensor, attrs: dict[str, Any]) -> tuple[Tensor, ...]:
    """Matrices of a negative determinant."""
    return (positive(x) * np.array([1.0, -1.0]),)


def with_inverse(x: Tensor, attrs: dict[str, Any]) -> tuple[Tensor, ...]:
    return (positive(x),)


def convolved(x: Tensor) -> tuple[Tensor, Tensor]:
    """A batch of one example, and two kernels of two elements."""
    kernels = xp.stack(
        [xp.getitem(row, (slice(None), slice(2))) for row in (0.3 * x, xp.sin(x))], axis=0
    )
    return xp.expand_dims(x, 0), kernels


def undone_convolution(x: Tensor, attrs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    seen, kernels = convolved(x)
    return xp.conv(xp.sin(seen), kernels, **attrs), seen, kernels


# Operands that depend on each other.
OPERANDS: dict[Op, Callable[[Tensor, dict[str, Any]], tuple[Tensor, ...]]] = {
    ops.MATMUL: lambda x, attrs: (x, xp.swapaxes(bases(x)[1], 0, 1)),
    ops.MATMUL_LEFT: lambda x, attrs: (x @ xp.swapaxes(x, 0, 1), xp.swapaxes(x, 0, 1), x),
    ops.MATMUL_RIGHT: lambda x, attrs: (x @ xp.swapaxes(x, 0, 1), x, x),
    ops.CHOLESKY: with_inverse,
    ops.INV: with_inverse,
    ops.EIGVALSH: with_inverse,
    ops.DET: mirrored,
    ops.EXPM: with_inverse,
    ops.LOGABSDET: mirrored,
    ops.SIGNDET: mirrored,
    ops.LU: with_inverse,
    ops.LU_PIVOTS: with_inverse,
    ops.LU_PERMUTATION: lambda x, attrs: (apply(ops.LU_PIVOTS, positive(x)), positive(x)),
    ops.SOLVE: systems,
    ops.TRIANGULAR_SOLVE: systems,
    ops.FFT: lambda x, attrs: (xp.stack([x, 0.3 * x * x], -1),),
    ops.UNWINDOWS: undoing(ops.WINDOWS),
    ops.CONV: lambda x, attrs: convolved(x),
    ops.CONV_LEFT: lambda x, attrs: tuple(undone_convolution(x, attrs)[i] for i in (0, 2, 1)),
    ops.CONV_RIGHT: lambda x, attrs: tuple(undone_convolution(x, attrs)[i] for i in (1, 0, 2)),
    ops.SUM_TO: lambda x, attrs: (x * x, xp.sum(x, axis=1, keepdims=True)),
    ops.BROADCAST_TO: lambda x, attrs: (xp.sum(x, axis=1, keepdims=True), x),
    ops.RESHAPE_LIKE: lambda x, attrs: (xp.swapaxes(x, 0, 1), x),
    ops.SQUEEZE: lambda x, attrs: (xp.expand_dims(x, 0),),
    ops.SETITEM: undoing(ops.GETITEM),
    ops.PUT: lambda x, attrs: (x, apply(ops.GETITEM, xp.sin(x), **attrs)),
    ops.UNTAKE: undoing(ops.TAKE),
    ops.UNTILE: undoing(ops.TILE),
    ops.UNREPEAT: undoing(ops.REPEAT),
    ops.TAKE_ALONG: lambda x, attrs: (x, order(x, attrs)),
    ops.UNTAKE_ALONG: lambda x, attrs: (x * x, order(x, attrs), x),
    ops.TAKE_AT: taken_at,
    ops.UNTAKE_AT: undone_at,
    ops.TAKE_INSIDE: beyond(taken_at),
    ops.TAKE_NEAREST: taken_at,
    ops.UNTAKE_INSIDE: beyond(undone_at),
    ops.LAST_PUT: lambda x, attrs: (order(x, attrs), x),
    ops.GLU: twice_as_long,
    ops.HALF: twice_as_long,
    ops.PART: lambda x, attrs: (xp.concatenate([x, x * x], axis=attrs["axis"]), x, 1),
    ops.UNPART: lambda x, attrs: (x, xp.concatenate([x, x], axis=attrs["axis"]), 1),
}
# Over nothing frameworks raise their own errors, or give an infinity.
NEED_ELEMENTS = (
    ops.MEDIAN, ops.QUANTILE, ops.ARGMAX_MASK, ops.ARGMIN_MASK, ops.TOP_K_MASK,
    ops.QUANTILE_WEIGHTS, ops.ARGMAX, ops.ARGMIN, ops.ARGSORT, ops.TAKE_ALONG, ops.UNTAKE_ALONG,
    ops.LAST_PUT, ops.TAKE_AT, ops.UNTAKE_AT, ops.TAKE_INSIDE, ops.TAKE_NEAREST,
    ops.UNTAKE_INSIDE, ops.WINDOWS, ops.UNWINDOWS, ops.CONV, ops.CONV_LEFT,
    ops.CONV_RIGHT, ops.FFT,
)  # fmt: skip
# Attributes that depend on each other.
ATTRS: dict[Op, Sequence[dict[str, Any]]] = {
    ops.SWAPAXES: [{"axis1": 0, "axis2": -1}],
    ops.MOVEAXIS: [{"source": 0, "destination": -1}, {"source": (0, 1), "destination": (1, 0)}],
    ops.ROLL: [
        {"shift": 1, "axis": 1},
        {"shift": (1, -1), "axis": (0, 1)},
        {"shift": 2, "axis": None},
    ],
}


# --- the cases ------------------------------------------------------------------------------------


def attrs_of(row: Op) -> Iterator[dict[str, Any]]:
    """Yield as many attributes as the longest list of samples has; the others begin anew."""
    if row in ATTRS:
        yield from ATTRS[row]
        return
    samples = {name: SAMPLES.get(attr) or attr.samples for name, attr in row.attrs.items()}
    for i in range(max(map(len, samples.values()), default=1)):
        yield {name: values[i % len(values)] for name, values in samples.items() if values}


def cases_of(row: Op) -> Iterator[Case]:
    """Yield the cases of a row, but those that its own meaning in NumPy refuses."""
    points = np.linspace(-2.5, 2.1, 6).reshape(SHAPE)
    first: dict[str, Any] | None = None
    for attrs in attrs_of(row):
        differ = [f"{k}={v}" for k, v in attrs.items() if first is not None and first[k] != v]
        case = Case(", ".join([row.name, *differ]), row, attrs)
        try:
            case.meaning(*case.operands(points))
        except (ValueError, IndexError, TypeError):
            continue
        first = first or attrs
        yield case


def cases(rows: Sequence[Op] = ops.CALLABLE_OPS) -> dict[str, Case]:
    """Return the cases of rows by their names.

    Raises:
        TypeError: a row has none, for want of samples or of operands.
    """
    found: dict[str, Case] = {}
    for row in rows:
        if row not in LEFT_OUT:
            own = {case.name: case for case in cases_of(row)}
            if not own:
                raise TypeError(f"no case can be made of {row.name}: {row.operands}, {row.attrs}")
            found |= own
    return found


def case_of_any_shape(row: Op) -> Case | None:
    """Return the case of a row on arrays of whatever shape; None where it needs axes."""
    samples = {name: attr.samples[:1] for name, attr in row.attrs.items() if attr.samples}
    samples |= {n: (OF_ANY_SHAPE[a],) for n, a in row.attrs.items() if a in OF_ANY_SHAPE}
    special = {*LEFT_OUT, *OPERANDS, *ATTRS, *NEED_AN_AXIS}
    in_place = keeps_shape(row) or row.result is reduced
    if row in special or row.variadic or not in_place or samples.keys() != row.attrs.keys():
        return None
    return Case(f"{row.name} of any shape", row, {n: value for n, (value,) in samples.items()})
