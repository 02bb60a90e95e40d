"""Keras's dialect, functions over whole arrays; see `dialect.py`."""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from multigrad.capture import arrays
from multigrad.capture.extremes import Extremes
from multigrad.capture.names import spelled
from multigrad.ir.types import T
from multigrad.tracing import xp_all as xp
from multigrad.tracing.trace import cast

from .dialect_elementwise import as_bool, taking

Tensor = Any
Handler = Callable[..., Any]


# --- reductions -----------------------------------------------------------------------------------
def max_(x: Tensor, axis: Any = None, keepdims: bool = False, initial: Any = None) -> Tensor:
    largest = xp.max(x, axis, keepdims)
    return largest if initial is None else xp.maximum(largest, initial)


def min_(x: Tensor, axis: Any = None, keepdims: bool = False, initial: Any = None) -> Tensor:
    smallest = xp.min(x, axis, keepdims)
    return smallest if initial is None else xp.minimum(smallest, initial)


def all_(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return xp.all(as_bool(x), axis, keepdims)


def any_(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return xp.any(as_bool(x), axis, keepdims)


def prod(x: Tensor, axis: Any = None, keepdims: bool = False, dtype: Any = None) -> Tensor:
    return arrays.prod(x, axis, keepdims, dtype=dtype)


def ptp(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The largest less the smallest."""
    return xp.subtract(xp.max(x, axis, keepdims), xp.min(x, axis, keepdims))


def std(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return xp.std(x, axis, keepdims=keepdims)


def var(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return xp.var(x, axis, keepdims=keepdims)


def quantile(
    x: Tensor, q: float, axis: Any = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    return arrays.np_quantile(x, q, axis, method=method, keepdims=keepdims)


def percentile(
    x: Tensor, q: float, axis: Any = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    return arrays.np_percentile(x, q, axis, method=method, keepdims=keepdims)


def average(x: Tensor, axis: Any = None, weights: Any = None) -> Tensor:
    if weights is None:
        return xp.mean(x, axis)
    weighted = xp.sum(xp.multiply(x, weights), axis)
    return xp.divide(weighted, xp.sum(weights, axis))


def moments(x: Tensor, axes: Any, keepdims: bool = False, synchronized: bool = False) -> Any:
    """The mean and the variance."""
    if synchronized:
        raise TypeError("moments with synchronized=True")
    return xp.mean(x, axes, keepdims), xp.var(x, axes, keepdims=keepdims)


# --- reductions that leave NaN out ----------------------------------------------------------------
def _without_nan(x: Tensor, value: float) -> Tensor:
    return xp.where(xp.isnan(x), value, x)


def _count(x: Tensor, axis: Any, keepdims: bool) -> Tensor:
    """How many elements are no NaN."""
    present = cast(xp.logical_not(xp.isnan(x)), T)
    return xp.sum(present, axis, keepdims)


def nansum(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return xp.sum(_without_nan(x, 0.0), axis, keepdims)


def nanprod(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return xp.prod(_without_nan(x, 1.0), axis, keepdims)


def nanmean(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return xp.divide(nansum(x, axis, keepdims), _count(x, axis, keepdims))


def nanvar(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    off = xp.square(xp.subtract(x, nanmean(x, axis, True)))
    return nanmean(off, axis, keepdims)


def nanstd(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return xp.sqrt(nanvar(x, axis, keepdims))


def nanmax(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    largest = xp.max(_without_nan(x, -np.inf), axis, keepdims)
    return xp.where(xp.equal(_count(x, axis, keepdims), 0), np.nan, largest)


def nanmin(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    smallest = xp.min(_without_nan(x, np.inf), axis, keepdims)
    return xp.where(xp.equal(_count(x, axis, keepdims), 0), np.nan, smallest)


def nancumsum(x: Tensor, axis: Any = None, dtype: Any = None) -> Tensor:
    return arrays.np_cumsum(_without_nan(x, 0.0), axis, dtype)


def nancumprod(x: Tensor, axis: Any = None, dtype: Any = None) -> Tensor:
    return arrays.np_cumprod(_without_nan(x, 1.0), axis, dtype)


# --- normalization --------------------------------------------------------------------------------
def normalize(x: Tensor, axis: Any = -1, order: int = 2, epsilon: float | None = None) -> Tensor:
    """x over its norm, or over epsilon where that is larger."""
    least = keras.config.epsilon() if epsilon is None else epsilon
    return xp.divide(x, xp.maximum(xp.norm(x, axis, True, order), least))


def rms_normalization(
    x: Tensor, scale: Any = None, axis: Any = -1, epsilon: float | None = None
) -> Tensor:
    added = keras.config.epsilon() if epsilon is None else epsilon
    mean = xp.mean(xp.square(x), axis, keepdims=True)
    result = xp.multiply(x, xp.rsqrt(xp.add(mean, added)))
    return result if scale is None else xp.multiply(result, scale)


def layer_normalization(
    x: Tensor,
    gamma: Any = None,
    beta: Any = None,
    axis: Any = -1,
    epsilon: float | None = None,
    rms_scaling: bool = False,  # of Keras's own layer
) -> Tensor:
    if rms_scaling:
        raise TypeError("layer_normalization with rms_scaling; use rms_normalization")
    if axis not in (-1, [-1], (-1,)) and not (gamma is None and beta is None):
        raise TypeError("layer_normalization with gamma or beta along other axes than the last")
    added = keras.config.epsilon() if epsilon is None else epsilon
    result = xp.standardize(x, axis, added)
    result = result if gamma is None else xp.multiply(result, gamma)
    return result if beta is None else xp.add(result, beta)


# --- shapes ---------------------------------------------------------------------------------------
def expand_dims(x: Tensor, axis: Any) -> Tensor:
    if isinstance(axis, int):
        return xp.expand_dims(x, axis)
    if any(i < 0 for i in axis):
        raise TypeError("expand_dims of several axes counted from the end; name one at a time")
    for i in sorted(axis):
        x = xp.expand_dims(x, i)
    return x


def flipud(x: Tensor) -> Tensor:
    return xp.flip(x, 0)


def fliplr(x: Tensor) -> Tensor:
    return xp.flip(x, 1)


def pad(x: Tensor, pad_width: Any, mode: str = "constant", constant_values: Any = None) -> Tensor:
    value = 0 if constant_values is None else constant_values
    return arrays.np_pad(x, pad_width, mode, constant_values=value)


def append(x1: Tensor, x2: Tensor, axis: int | None = None) -> Tensor:
    return xp.concatenate((x1, x2), axis)


def hstack(xs: Sequence[Tensor]) -> Tensor:
    return xp.concatenate(xs, 0 if xs[0].ndim < 2 else 1)


def vstack(xs: Sequence[Tensor]) -> Tensor:
    rows = [xp.expand_dims(x, 0) if x.ndim < 2 else x for x in xs]
    return xp.concatenate(rows, 0)


def split(x: Tensor, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    length = operator.index(xp.dim(x, axis))
    if isinstance(indices_or_sections, int):
        step, rest = divmod(length, indices_or_sections)
        if rest:
            raise TypeError(f"split of {length} into {indices_or_sections} equal parts")
        marks = list(range(step, length, step))
    else:
        marks = [operator.index(mark) for mark in indices_or_sections]
    return [
        arrays.cut(x, axis, start, stop)
        for start, stop in zip([0, *marks], [*marks, length], strict=True)
    ]


def unstack(x: Tensor, num: int | None = None, axis: int = 0) -> list[Tensor]:
    length = operator.index(xp.dim(x, axis)) if num is None else num
    return [xp.take(x, i, axis) for i in range(length)]


def slice_(inputs: Tensor, start_indices: Any, shape: Any) -> Tensor:
    pairs = zip(start_indices, shape, strict=True)
    return xp.getitem(inputs, tuple(slice(start, start + n) for start, n in pairs))


def get_item(x: Tensor, key: Any) -> Tensor:
    return x[key]


def diff(a: Tensor, n: int = 1, axis: int = -1) -> Tensor:
    """Each element less the one before it, n times."""
    for _ in range(n):
        later: Any = arrays.cut(a, axis, 1, None)  # type: ignore[arg-type]
        earlier: Any = arrays.cut(a, axis, 0, -1)
        a = xp.subtract(later, earlier)
    return a


def one_hot(
    x: Tensor, num_classes: int, axis: int = -1, dtype: Any = None, sparse: bool = False
) -> Tensor:
    """1 at the index that x holds, along a new last axis."""
    if sparse or axis != -1:
        raise TypeError("one_hot along another axis than a new last one, or sparse")
    hot = xp.equal(xp.expand_dims(x, -1), np.arange(num_classes))
    return cast(hot, T if dtype is None else dtype)


def top_k(x: Tensor, k: int, sorted: bool = True) -> Extremes:
    return Extremes(arrays.cut(xp.sort(x, -1, descending=True), -1, 0, k))


# --- products -------------------------------------------------------------------------------------
def vdot(x1: Tensor, x2: Tensor) -> Tensor:
    """The sum of the products of all elements."""
    return xp.vecdot(xp.reshape(x1, -1), xp.reshape(x2, -1))


def einsum(subscripts: str, *operands: Tensor, **options: Any) -> Tensor:
    return xp.einsum(subscripts, *operands)


REDUCTIONS: dict[str, Handler] = {
    **spelled("sum; mean; max: amax; min: amin; count_nonzero; logsumexp; median"),
    "all": all_, "any": any_, "average": average, "cumprod": arrays.np_cumprod,
    "cumsum": arrays.np_cumsum, "max": max_, "min": min_, "moments": moments,
    "nancumprod": nancumprod, "nancumsum": nancumsum, "nanmax": nanmax, "nanmean": nanmean,
    "nanmin": nanmin, "nanprod": nanprod, "nanstd": nanstd, "nansum": nansum, "nanvar": nanvar,
    "norm": arrays.np_norm, "percentile": percentile, "prod": prod, "ptp": ptp,
    "quantile": quantile, "std": std, "var": var, "layer_normalization": layer_normalization,
    "normalize": normalize, "rms_normalization": rms_normalization,
}  # fmt: skip

SHAPES: dict[str, Handler] = {
    **spelled("swapaxes; moveaxis; flip; roll; tril; triu; repeat"),
    "append": append, "broadcast_to": arrays.np_broadcast_to, "diff": diff,
    "expand_dims": expand_dims, "fliplr": fliplr, "flipud": flipud, "get_item": get_item,
    "hstack": hstack, "one_hot": one_hot, "pad": pad, "ravel": arrays.np_ravel, "slice": slice_,
    "sort": arrays.np_sort, "split": split, "squeeze": arrays.np_squeeze, "take": arrays.np_take,
    "top_k": top_k, "transpose": arrays.np_transpose, "unstack": unstack, "vstack": vstack,
    **taking("xs axis", {"concatenate": xp.concatenate}),
    **taking("x axis", {"stack": xp.stack}),
    **taking("x newshape", {"reshape": arrays.np_reshape}),
    **taking("x repeats", {"tile": xp.tile}),
}  # fmt: skip

PRODUCTS: dict[str, Handler] = {
    "einsum": einsum,
    "vdot": vdot,
    **taking("x1 x2 axes", {"tensordot": xp.tensordot}),
    **taking("x1 x2", {"dot": arrays.np_dot, "matmul": xp.matmul, "outer": arrays.np_outer}),
}

OPS: dict[str, Handler] = {**REDUCTIONS, **SHAPES, **PRODUCTS}
