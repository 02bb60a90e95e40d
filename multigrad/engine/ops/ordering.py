"""Cumulative ops, sorting, masks of the largest elements, quantiles, products and deviations.

What other libraries return as indices is a mask or a permuted array here, so that every value keeps
its input's shape. Sorting is stable, -0 equals 0, NaN is larger than every number; a scalar counts
as one element along any axis.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...core.ir.op import (
    AXES,
    AXIS,
    BOOL,
    INT64,
    Attr,
    Op,
    Type,
    count,
    flag,
    is_axis,
    is_number,
    kept,
    need_tensors,
    number,
    reduced,
)
from ...core.ops.numerics import Array, Axis, widened, wider
from ...core.ops.properties import FALLING, REALS, in_first, linear
from ...core.ops.reductions import count_over, over, over_axes, reduction, spread
from ...core.ops.shapes import Shape
from ...core.ops.table import Composed, Cotangents, moved_by, op, zero
from .result_shapes import broadcast, first

AXIS_OR_NONE = Attr(is_axis, (), None, "int | None", "axis_or_none")


def lifted(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return a function that takes scalars as arrays of one element, along any axis."""

    @functools.wraps(function)
    def call(*arrays: Any, axis: Axis, **attrs: Any) -> Array:
        arrays = tuple(map(np.asarray, arrays))
        if all(array.ndim == 0 for array in arrays):
            return function(*(a.reshape(1) for a in arrays), axis=0, **attrs).reshape(())
        return function(*arrays, axis=axis, **attrs)

    return call


def cumulative(name: str, numpy: Any, vjp: Any, doc: str, **fields: Any) -> Op:
    return op(name, "x", numpy=numpy, vjp=vjp, doc=doc, result=kept, axis=AXIS, **fields)


def reordered(values: Type, x: Type, **attrs: Any) -> Type:
    need_tensors(values, x)
    return Type("tensor", values.dtype, x.shape)


def held(x: Type, mask: Type, *, axis: int) -> Type:
    if mask.dtype != BOOL:
        raise TypeError(f"its mask must be bool, not {mask}")
    return reordered(x, mask)


def ordered_shape(values: Shape, x: Shape, *, axis: Axis, **attrs: Any) -> Shape:
    """Return the shape of values in an order of x, or taken by a mask of it, along an axis."""
    return first(broadcast(values, x), axis=axis)


def in_order(name: str, args: str, numpy: Any, vjp: Any, doc: str, **fields: Any) -> Op:
    """Declare an op that a VJP needs, linear in values that another operand orders."""
    fields = {"result": reordered, "shape_of": ordered_shape, "axis": AXIS, **fields}
    fields |= {"in_vjps": True, "degree": in_first}
    return op(name, args, coerce="raw", numpy=numpy, vjp=vjp, doc=doc, **fields)


def from_either_end(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return the op of a cumulative NumPy function that can also begin at the end."""

    def call(x: Array, *, axis: int, reverse: bool) -> Array:
        if reverse:
            return np.flip(function(np.flip(x, axis), axis=axis), axis)
        return function(x, axis=axis)

    call.__name__ = call.__qualname__ = function.__name__
    return widened(lifted(call))


def cumprod_vjp(xp: Any, ct: Any, y: Any, x: Any, *, axis: int) -> Cotangents:
    # Right at zeros too: the share of the first zero is a sum over products without it. With two
    # zeros in one product the second derivative is lost, as in `prod`.
    is_zero = xp.equal(x, 0)
    is_first = xp.logical_and(is_zero, xp.equal(xp.cumsum(is_zero * 1.0, axis=axis), 1))
    products = xp.cumprod(xp.where(is_first, 1.0, x), axis=axis)
    at_first = xp.cumsum(ct * products, axis=axis, reverse=True)
    at_others = xp.cumsum(ct * y, axis=axis, reverse=True) / xp.where(is_zero, 1.0, x)
    return (xp.where(is_first, at_first, xp.where(is_zero, 0.0, at_others)),)


def cumulative_extreme_vjp(xp: Any, ct: Any, y: Any, x: Any, *, axis: int) -> Cotangents:
    # Each result comes from the latest element that is equal to it.
    records = xp.logical_or(xp.equal(x, y), xp.isnan(x))
    return (xp.unhold(ct, records, axis=axis),)


def logcumsumexp_vjp(xp: Any, ct: Any, y: Any, x: Any, *, axis: int, reverse: bool) -> Cotangents:
    # Zero where everything so far is -inf: without this x - y would be NaN.
    finite_y = xp.where(xp.equal(y, -math.inf), 0.0, y)
    return (xp.exp(x - finite_y) * xp.discounted_sum(ct, y, axis=axis, reverse=not reverse),)


@widened
@lifted
def discounted_sum(values: Array, y: Array, *, axis: int, reverse: bool) -> Array:
    values, y = (np.moveaxis(each, axis, 0) for each in (values, y))
    values, y = (values[::-1], y[::-1]) if reverse else (values, y)
    # A neighbor of equal y counts in full, an infinite one too; min(., 0) because rounding must not
    # let one count for more.
    share = np.where(y[1:] == y[:-1], y.dtype.type(0), np.minimum(y[1:] - y[:-1], 0))
    sums = np.array(values)
    for i, each in enumerate(np.exp(share), 1):
        sums[i] += each * sums[i - 1]
    return np.moveaxis(sums[::-1] if reverse else sums, 0, axis)


def discounted_sum_vjp(
    xp: Any, ct: Any, result: Any, values: Any, y: Any, *, axis: int, reverse: bool
) -> Cotangents:
    # Linear in the values; its transpose goes the other way, with y negated.
    share = xp.discounted_sum(ct, -y, axis=axis, reverse=not reverse)
    return share, ct * result - values * share


def last_true(mask: Array, axis: int) -> Array:
    """Return the index of the latest True so far, -1 before the first; the axis is moved last."""
    mask = np.moveaxis(mask, axis, -1)
    places = np.where(mask, np.arange(mask.shape[-1]), -1)
    return np.maximum.accumulate(places, axis=-1)


@lifted
def hold(x: Array, mask: Array, *, axis: int) -> Array:
    # Index -1, before the first True, reads element 0 and is then replaced by zero.
    latest = last_true(mask, axis)
    values = np.take_along_axis(np.moveaxis(x, axis, -1), np.maximum(latest, 0), -1)
    return np.moveaxis(np.where(latest < 0, x.dtype.type(0), values), -1, axis)


@widened
@lifted
def unhold(x: Array, mask: Array, *, axis: int) -> Array:
    latest = last_true(mask, axis)
    sums = np.zeros_like(np.moveaxis(x, axis, -1), order="C")
    *rows, _ = np.indices(latest.shape, sparse=True)
    values = np.where(latest < 0, x.dtype.type(0), np.moveaxis(x, axis, -1))
    # np.add.at, because many places share the latest True.
    np.add.at(sums, (*rows, np.maximum(latest, 0)), values)
    return np.moveaxis(sums, -1, axis)


CUMSUM = cumulative(
    "cumsum",
    from_either_end(np.cumsum),
    "xp.cumsum(ct, axis=axis, reverse=not reverse)",
    "The sum of each element and those before it along an axis (`reverse`: after it).",
    reverse=flag(False),
    degree=linear,
    integer=INT64,
)
CUMPROD = cumulative(
    "cumprod",
    widened(lifted(np.cumprod)),
    cumprod_vjp,
    "The product of each element and those before it along an axis.",
    integer=INT64,
)
CUMMAX = cumulative(
    "cummax",
    widened(lifted(np.maximum.accumulate)),
    cumulative_extreme_vjp,
    "The largest so far, NaN from the first on; the latest of equal ones takes the gradient.",
    on_bools="numbers",
    integer=True,
)
CUMMIN = cumulative(
    "cummin",
    widened(lifted(np.minimum.accumulate)),
    cumulative_extreme_vjp,
    "The smallest so far, NaN from the first on; the latest of equal ones takes the gradient.",
    on_bools="numbers",
    integer=True,
)
LOGCUMSUMEXP = cumulative(
    "logcumsumexp",
    from_either_end(np.logaddexp.accumulate),
    logcumsumexp_vjp,
    "The log of the sum of exponentials so far along an axis (`reverse`: from its end).",
    reverse=flag(False),
)
DISCOUNTED_SUM = in_order(
    "discounted_sum",
    "values y",
    discounted_sum,
    discounted_sum_vjp,
    "Sums of values[j] exp(y[i] - y[j]), j up to i (`reverse`: from i on); y falls that way.",
    domain=(REALS, FALLING),
    reverse=flag(False),
)
HOLD = in_order(
    "hold",
    "x mask",
    hold,
    moved_by("unhold", 1),
    "The last value at which the mask held; 0 before the first.",
    result=held,
)
UNHOLD = in_order(
    "unhold",
    "x mask",
    unhold,
    moved_by("hold", 1),
    "Sums from each place where the mask holds to the next; 0 elsewhere.",
    result=held,
)


def rearranged(name: str, numpy: Any, vjp: Any, doc: str) -> Op:
    return in_order(name, "values x", numpy, vjp, doc, descending=flag(False))


def order(x: Array, axis: int, descending: bool) -> Array:
    """Return the stable permutation that sorts x."""
    x = wider(x)
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    # Sorted backward and turned around, equal values keep their order and NaN comes first.
    reversed_order = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(reversed_order, axis)


def ranks(x: Array, axis: int, descending: bool) -> Array:
    """Return the position of each element in sorted x, which inverts the permutation."""
    return np.argsort(order(x, axis, descending), axis=axis)


@lifted
def sort(x: Array, *, axis: int, descending: bool) -> Array:
    return np.take_along_axis(x, order(x, axis, descending), axis)


@lifted
def sort_like(values: Array, x: Array, *, axis: int, descending: bool) -> Array:
    return np.take_along_axis(values, order(x, axis, descending), axis)


@lifted
def unsort(values: Array, x: Array, *, axis: int, descending: bool) -> Array:
    return np.take_along_axis(values, ranks(x, axis, descending), axis)


SORT = cumulative(
    "sort",
    sort,
    moved_by("unsort", 0),
    "x sorted along an axis, stable; NaN is larger than every number.",
    descending=flag(False),
    on_bools="numbers",
    integer=True,
)
SORT_LIKE = rearranged(
    "sort_like", sort_like, moved_by("unsort", 1), "Values in the order that sorts x."
)
UNSORT = rearranged(
    "unsort", unsort, moved_by("sort_like", 1), "Values in the order of sorted x, put back."
)


def masked(x: Type, **attrs: Any) -> Type:
    need_tensors(x)
    return Type("tensor", BOOL, x.shape)


def mask(name: str, numpy: Any, doc: str, **fields: Any) -> Op:
    fields |= {"result": masked, "shape_of": first}
    return op(name, "x", numpy=numpy, vjp=zero, doc=doc, **fields)


@lifted
def argmax_mask(x: Array, *, axis: int | None) -> Array:
    return first_only(x, axis, np.argmax)


@lifted
def argmin_mask(x: Array, *, axis: int | None) -> Array:
    return first_only(x, axis, np.argmin)


def first_only(x: Array, axis: int | None, find: Callable[..., Array]) -> Array:
    """Return a mask that is True only at the index that `find` returns."""
    if x.size == 0:
        return np.zeros(x.shape, bool)
    if axis is None:
        return (np.arange(x.size) == find(wider(x))).reshape(x.shape)
    places = np.arange(x.shape[axis]).reshape((-1,) + (1,) * (x.ndim - 1 - axis % x.ndim))
    return places == find(wider(x), axis=axis, keepdims=True)


@lifted
def top_k_mask(x: Array, *, axis: int, k: int) -> Array:
    return ranks(x, axis, True) < k


ARGMAX_MASK = mask(
    "argmax_mask",
    argmax_mask,
    "True at the first of the largest, along an axis or of all; NaN is larger.",
    axis=AXIS_OR_NONE,
)
ARGMIN_MASK = mask(
    "argmin_mask",
    argmin_mask,
    "True at the first of the smallest, along an axis or of all; NaN is smaller.",
    axis=AXIS_OR_NONE,
)
TOP_K_MASK = mask(
    "top_k_mask",
    top_k_mask,
    "True at the k largest, all where there are fewer.",
    axis=AXIS,
    k=count(1, 2, 0, 9),
    composed=True,
)


# --- quantiles, in terms of other ops: the weight of each element is an op ------------------------
def is_fraction(value: object) -> bool:
    return is_number(value) and 0 <= value <= 1  # type: ignore[operator]


def as_axes(x: Array, axis: Axis) -> tuple[int, ...]:
    """Return the axes to reduce over; a scalar has none."""
    if axis is None or x.ndim == 0:
        return tuple(range(x.ndim))
    return axis if isinstance(axis, tuple) else (axis,)


def middle(xp: Any, x: Any, *, axis: Any, keepdims: bool) -> Any:
    return xp.quantile(x, axis=axis, keepdims=keepdims, q=0.5)


def in_rows(xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """Return x with the given axes merged into one, at the end."""
    lead, y = x.ndim - len(axes), moved_last(xp, x, axes)
    lengths = [xp.dim(y, axis=i) for i in range(x.ndim)]
    return xp.reshape(y, shape=(*lengths[:lead], math.prod(lengths[lead:])))


def moved_last(xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
    last = tuple(range(x.ndim - len(axes), x.ndim))
    return xp.moveaxis(x, source=axes, destination=last) if axes else x


def neighbor(xp: Any, length: Any, q: float, like: Any) -> tuple[Any, Any]:
    """Return the position below the q-quantile and the weight of the next one, as tensors where a
    framework knows the length only at run time.
    """
    if not hasattr(length, "dtype"):
        place = q * (length - 1)
        return math.floor(place), place - math.floor(place)
    # In float64: positions beyond 2**24 are no longer exact in float32.
    place = q * xp.astype(xp.maximum(length - 1, 0), dtype="float64")
    low = xp.floor(place)
    return xp.astype(low, dtype="int64"), xp.astype(place - low, dtype=like.dtype)


def between(xp: Any, x: Any, *, axis: Axis, keepdims: bool, q: float) -> Any:
    axes = as_axes(x, axis)
    rows = in_rows(xp, x, axes)
    length = xp.dim(rows, axis=-1)
    low, weight = neighbor(xp, length, q, x)
    # NaN after each row: rows without elements read it, and NaN sorts last.
    padded = xp.pad(rows, widths=((0, 1),), fill=math.nan)
    rows = xp.sort(padded, axis=-1, descending=False)
    low_values, largest = rows[..., low], rows[..., length - 1]
    result = low_values
    if hasattr(weight, "dtype") or weight:
        result = low_values * (1 - weight) + rows[..., low + 1] * weight
    # A weight known only at run time may be 0 next to an infinity, and inf * 0 is NaN.
    if hasattr(weight, "dtype"):
        result = xp.where(weight == 0, low_values, result)
    result = xp.where(xp.isnan(largest), largest, result)
    for position in sorted(i % x.ndim for i in axes) if keepdims else ():
        result = xp.expand_dims(result, axis=position)
    return result


def shares(xp: Any, x: Any, *, axis: Axis, q: float) -> Any:
    axes = as_axes(x, axis)
    rows = in_rows(xp, x, axes)
    low, weight = neighbor(xp, xp.dim(rows, axis=-1), q, x)
    order = xp.argsort(rows, axis=-1, descending=False)
    # The inverse permutation: the position of each element in its sorted row.
    place = xp.argsort(order, axis=-1, descending=False)
    is_low, is_next = (xp.astype(place == position, dtype=x.dtype) for position in (low, low + 1))
    like = moved_last(xp, x, axes)
    weights = xp.reshape_like(is_low * (1 - weight) + is_next * weight, like)
    last = tuple(range(x.ndim - len(axes), x.ndim))
    return xp.moveaxis(weights, source=last, destination=axes) if axes else weights


def quantile_vjp(
    xp: Any, ct: Any, y: Any, x: Any, *, axis: Any, keepdims: bool, q: float
) -> Cotangents:
    weights = xp.quantile_weights(x, q, axis=axis)
    return (weights * spread(xp, ct, x, axis, keepdims),)


FRACTION = Attr(is_fraction, (0.5, 0.0, 0.25, 0.3, 1.0))
MEDIAN = reduction(
    "median",
    Composed(middle, rounds=False),
    None,
    "The middle value, the mean of the two middle ones if their number is even; NaN propagates.",
)
QUANTILE = op(
    "quantile",
    "x",
    axis=AXES,
    keepdims=flag(False),
    q=FRACTION,
    numpy=Composed(between),
    vjp=quantile_vjp,
    result=reduced,
    doc="The q-quantile, linear between neighbors; NaN propagates.",
    composed=True,
)
QUANTILE_WEIGHTS = op(
    "quantile_weights",
    "x",
    q=FRACTION,
    axis=AXES,
    numpy=Composed(shares),
    vjp=zero,
    result=kept,
    doc="What each element contributes to the q-quantile.",
    in_vjps=True,
)

# --- products and deviations ----------------------------------------------------------------------


def prod_vjp(xp: Any, ct: Any, y: Any, x: Any, *, axis: Any, keepdims: bool) -> Cotangents:
    # The product of the others; with two zeros in one the second derivative is lost.
    is_zero = xp.equal(x, 0)
    nonzero = xp.where(is_zero, 1.0, x)
    zeros = xp.count_nonzero(is_zero, axis=axis, keepdims=keepdims)
    products = xp.where(xp.equal(zeros, 1), xp.prod(nonzero, axis=axis, keepdims=keepdims), 0.0)
    at_zero = spread(xp, ct * products, x, axis, keepdims)
    return (xp.where(is_zero, at_zero, spread(xp, ct * y, x, axis, keepdims) / nonzero),)


@widened
def count_nonzero(x: Array, *, axis: Axis, keepdims: bool) -> Array:
    return np.sum(x != 0, axis=over(x, axis), keepdims=keepdims).astype(x.dtype)


PROD = reduction(
    "prod",
    widened(over_axes(np.prod)),
    prod_vjp,
    "The product; 1 if there are no elements.",
    integer=INT64,
)
COUNT_NONZERO = reduction(
    "count_nonzero", count_nonzero, zero, "How many elements are not 0, as a float of x's dtype."
)


def mean_square(xp: Any, x: Any, *, axis: Axis, keepdims: bool, correction: float) -> Any:
    centered = x - xp.mean(x, axis=axis, keepdims=True)
    total = xp.sum(centered * centered, axis=axis, keepdims=keepdims)
    # A scalar counts as one element, along any axis.
    all_axes = tuple(range(x.ndim))
    count = count_over(xp, x, all_axes if axis is None or not all_axes else axis)
    if not hasattr(count, "dtype"):
        # Not negative: with more correction than elements the result is inf or NaN, as in torch.
        return total / max(count - correction, 0)
    return total / xp.maximum(xp.astype(count, dtype=x.dtype) - correction, 0.0)


def var_vjp(
    xp: Any, ct: Any, y: Any, x: Any, *, axis: Any, keepdims: bool, correction: float
) -> Cotangents:
    centered = x - xp.mean(x, axis=axis, keepdims=True)
    degrees = count_over(xp, x, axis) - correction
    return (2.0 * centered * spread(xp, ct, x, axis, keepdims) / degrees,)


def root_of_var(xp: Any, x: Any, **attrs: Any) -> Any:
    return xp.sqrt(xp.var(x, **attrs))


def std_vjp(xp: Any, ct: Any, y: Any, x: Any, **attrs: Any) -> Cotangents:
    # Zero where the deviation is zero, as in torch.
    return var_vjp(xp, ct * 0.5 / xp.where(xp.equal(y, 0), 1.0, y), y, x, **attrs)


CORRECTION = number(0, 1, 0.5, taken="")
VAR = reduction(
    "var",
    Composed(mean_square),
    var_vjp,
    "Variance; divides by n - correction.",
    correction=CORRECTION,
)
STD = reduction(
    "std",
    Composed(root_of_var),
    std_vjp,
    "Standard deviation; divides as var does.",
    correction=CORRECTION,
)
