"""Keras's dialect, functions over whole arrays; see `dialect.py`."""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from multigrad.capture import arrays, extremes, index_tensors, nans, numpy_parts, parts, places
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


def moments(x: Tensor, axes: Any, keepdims: bool = False, synchronized: bool = False) -> Any:
    """The mean and the variance."""
    if synchronized:
        raise TypeError("moments with synchronized=True")
    return xp.mean(x, axes, keepdims), xp.var(x, axes, keepdims=keepdims)


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
def pad(x: Tensor, pad_width: Any, mode: str = "constant", constant_values: Any = None) -> Tensor:
    value = 0 if constant_values is None else constant_values
    return numpy_parts.pad(x, pad_width, mode, constant_values=value)


def slice_(inputs: Tensor, start_indices: Any, shape: Any) -> Tensor:
    pairs = zip(start_indices, shape, strict=True)
    return xp.getitem(inputs, tuple(slice(start, start + n) for start, n in pairs))


def get_item(x: Tensor, key: Any) -> Tensor:
    return x[key]


def one_hot(
    x: Tensor, num_classes: int, axis: int = -1, dtype: Any = None, sparse: bool = False
) -> Tensor:
    """1 at the index that x holds, along a new axis."""
    if sparse:
        raise TypeError("one_hot as a sparse tensor")
    hot = xp.one_hot(x, num_classes, axis)
    return cast(hot, T if dtype is None else dtype)


def top_k(x: Tensor, k: int, sorted: bool = True) -> extremes.Extremes:
    return extremes.topk(x, k)


def segment_sum(
    data: Tensor, segment_ids: Any, num_segments: Any = None, sorted: bool = False
) -> Tensor:
    if num_segments is None:
        raise TypeError("segment_sum without num_segments, which depend on the values")
    return places.segment_sum(data, segment_ids, num_segments)


def scatter_update(inputs: Tensor, indices: Any, updates: Any, reduction: Any = None) -> Tensor:
    if reduction not in (None, "add"):
        raise TypeError(f"scatter_update with the reduction {reduction!r}")
    write = index_tensors.put if reduction is None else index_tensors.added
    return write(inputs, places.columns(inputs, indices), updates)


# --- products -------------------------------------------------------------------------------------
def vdot(x1: Tensor, x2: Tensor) -> Tensor:
    """The sum of the products of all elements."""
    return xp.vecdot(xp.reshape(x1, -1), xp.reshape(x2, -1))


def einsum(subscripts: str, *operands: Tensor, **options: Any) -> Tensor:
    return xp.einsum(subscripts, *operands)


REDUCTIONS: dict[str, Handler] = {
    **spelled("sum; mean; max: amax; min: amin; logsumexp; median"),
    "all": all_, "any": any_, "cumprod": arrays.np_cumprod,
    "cumsum": arrays.np_cumsum, "max": max_, "min": min_, "moments": moments,
    "nancumprod": nans.nancumprod, "nancumsum": nans.nancumsum, "nanmax": nans.nanmax,
    "nanmean": nans.nanmean, "nanmin": nans.nanmin, "nanprod": nans.nanprod,
    "nanstd": nans.nanstd, "nansum": nans.nansum, "nanvar": nans.nanvar,
    "percentile": percentile, "prod": prod,
    "quantile": quantile, "std": std, "var": var, "layer_normalization": layer_normalization,
    "normalize": normalize, "rms_normalization": rms_normalization,
}  # fmt: skip

SHAPES: dict[str, Handler] = {
    "count_nonzero": places.count_nonzero,
    **spelled("swapaxes; moveaxis; flip; roll; tril; triu; repeat"),
    "broadcast_to": arrays.np_broadcast_to,
    "fliplr": parts.fliplr, "flipud": parts.flipud, "get_item": get_item,
    "one_hot": one_hot, "pad": pad, "ravel": arrays.np_ravel, "slice": slice_,
    "argmax": places.argmax, "argmin": places.argmin, "argsort": places.np_argsort,
    "scatter_update": scatter_update, "segment_sum": segment_sum,
    "take_along_axis": places.np_take_along_axis,
    "sort": arrays.np_sort, "squeeze": arrays.np_squeeze, "take": arrays.np_take,
    "top_k": top_k, "transpose": arrays.np_transpose,
    **taking("xs axis", {"concatenate": xp.concatenate}),
    **taking("x axis", {"stack": xp.stack}),
    **taking("x newshape", {"reshape": arrays.np_reshape}),
    **taking("x repeats", {"tile": xp.tile}),
}  # fmt: skip

PRODUCTS: dict[str, Handler] = {
    "einsum": einsum,
    "vdot": vdot,
    **taking("x1 x2", {"dot": arrays.np_dot, "matmul": xp.matmul, "outer": arrays.np_outer}),
}

OPS: dict[str, Handler] = {**REDUCTIONS, **SHAPES, **PRODUCTS}
