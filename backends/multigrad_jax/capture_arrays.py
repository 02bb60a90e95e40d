"""JAX's dialect, array family of `jax.numpy` and `jax.nn`; see `capture.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy import special

from multigrad.capture import arrays, methods
from multigrad.capture import numpy as np_dialect
from multigrad.ir import neutral
from multigrad.ir.record import cast

Tensor = Any


def converted(x: Tensor, dtype: Any) -> Tensor:
    return x if dtype is None else cast(x, dtype)


def chosen(x: Tensor, where: Any, otherwise: Any) -> Tensor:
    """Return x with what a reduction leaves out replaced by what does not change its result."""
    return x if where is None else neutral.where(where, x, otherwise)


def sum_(a: Tensor, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False,
         initial: Any = None, where: Any = None, promote_integers: bool = True) -> Tensor:  # fmt: skip
    result = neutral.sum(chosen(a, where, 0.0), axis, keepdims)
    return converted(result if initial is None else result + initial, dtype)


def prod(a: Tensor, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False,
         initial: Any = None, where: Any = None, promote_integers: bool = True) -> Tensor:  # fmt: skip
    result = neutral.prod(chosen(a, where, 1.0), axis, keepdims)
    return converted(result if initial is None else result * initial, dtype)


def mean(a: Tensor, axis: Any = None, dtype: Any = None, out: None = None,
         keepdims: bool = False, *, where: Any = None) -> Tensor:  # fmt: skip
    if where is None:
        return converted(neutral.mean(a, axis, keepdims), dtype)
    mask = neutral.cast_like(neutral.broadcast_to(where, a), a)
    total = neutral.sum(neutral.where(where, a, 0.0), axis, keepdims)
    return converted(total / neutral.sum(mask, axis, keepdims), dtype)


def max_(a: Tensor, axis: Any = None, out: None = None, keepdims: bool = False,
         initial: Any = None, where: Any = None) -> Tensor:  # fmt: skip
    if where is not None and initial is None:
        raise TypeError("max with where and without initial")
    result = neutral.max(chosen(a, where, initial), axis, keepdims)
    return result if initial is None else neutral.maximum(result, initial)


def min_(a: Tensor, axis: Any = None, out: None = None, keepdims: bool = False,
         initial: Any = None, where: Any = None) -> Tensor:  # fmt: skip
    if where is not None and initial is None:
        raise TypeError("min with where and without initial")
    result = neutral.min(chosen(a, where, initial), axis, keepdims)
    return result if initial is None else neutral.minimum(result, initial)


def ptp(a: Tensor, axis: Any = None, out: None = None, keepdims: bool = False) -> Tensor:
    return neutral.max(a, axis, keepdims) - neutral.min(a, axis, keepdims)


def any_(a: Tensor, axis: Any = None, out: None = None, keepdims: bool = False, *,
         where: Any = None) -> Tensor:  # fmt: skip
    return neutral.any(chosen(a, where, False), axis, keepdims)


def all_(a: Tensor, axis: Any = None, out: None = None, keepdims: bool = False, *,
         where: Any = None) -> Tensor:  # fmt: skip
    return neutral.all(chosen(a, where, True), axis, keepdims)


def var(a: Tensor, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0,
        keepdims: bool = False, *, correction: float | None = None) -> Tensor:  # fmt: skip
    n = ddof if correction is None else correction
    return converted(neutral.var(a, axis, n, keepdims), dtype)


def std(a: Tensor, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0,
        keepdims: bool = False, *, correction: float | None = None) -> Tensor:  # fmt: skip
    n = ddof if correction is None else correction
    return converted(neutral.std(a, axis, n, keepdims), dtype)


def average(a: Tensor, axis: Any = None, weights: Any = None, *, keepdims: bool = False) -> Tensor:
    if weights is None:
        return neutral.mean(a, axis, keepdims)
    whole = neutral.broadcast_to(weights, a)
    return neutral.sum(a * whole, axis, keepdims) / neutral.sum(whole, axis, keepdims)


def count_nonzero(a: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return neutral.count_nonzero(a, axis, keepdims)


def median(a: Tensor, axis: Any = None, *, keepdims: bool = False) -> Tensor:
    return neutral.median(a, axis, keepdims)


def nansum(a: Tensor, axis: Any = None, *, keepdims: bool = False) -> Tensor:
    return neutral.sum(neutral.where(neutral.isnan(a), 0.0, a), axis, keepdims)


def nanmean(a: Tensor, axis: Any = None, *, keepdims: bool = False) -> Tensor:
    there = neutral.cast_like(neutral.logical_not(neutral.isnan(a)), a)
    return nansum(a, axis, keepdims=keepdims) / neutral.sum(there, axis, keepdims)


def norm(x: Tensor, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Tensor:
    return arrays.np_norm(x, ord, axis, keepdims)


def vector_norm(x: Tensor, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Tensor:
    return neutral.norm(x, axis, keepdims, ord)


def logsumexp(a: Tensor, axis: Any = None, b: Any = None, keepdims: bool = False) -> Tensor:
    if b is not None:
        raise TypeError("logsumexp with b; write jnp.log(jnp.sum(b * jnp.exp(a)))")
    return neutral.logsumexp(a, axis, keepdims)


def softmax(x: Tensor, /, axis: Any = -1) -> Tensor:
    return neutral.softmax(x, axis)


def log_softmax(x: Tensor, /, axis: Any = -1) -> Tensor:
    return neutral.log_softmax(x, axis)


def special_softmax(x: Tensor, /, *, axis: Any = None) -> Tensor:
    return neutral.softmax(x, axis)


def special_log_softmax(x: Tensor, /, *, axis: Any = None) -> Tensor:
    return neutral.log_softmax(x, axis)


def standardize(x: Tensor, axis: Any = -1, mean: Any = None, variance: Any = None,
                epsilon: Any = 1e-5, *, algorithm: str = "fast") -> Tensor:  # fmt: skip
    if mean is None and variance is None and not hasattr(epsilon, "node"):
        return neutral.standardize(x, axis, epsilon)
    center = neutral.mean(x, axis, keepdims=True) if mean is None else mean
    spread = neutral.var(x, axis, keepdims=True) if variance is None else variance
    return (x - center) * neutral.rsqrt(spread + epsilon)


def glu(x: Tensor, axis: int = -1) -> Tensor:
    return neutral.glu(x, axis)


# --- shapes --------------------------------------------------------------------------------------------------
def reshape(a: Tensor, shape: Any, order: str = "C") -> Tensor:
    if order != "C":
        raise TypeError(f"reshape in the order {order!r}; 'C' is known")
    return arrays.reshape(a, shape)


def ravel(a: Tensor, order: str = "C") -> Tensor:
    return reshape(a, -1, order)


def broadcast_to(array: Tensor, shape: Any) -> Tensor:
    return arrays.expand(array, shape)


def broadcast_arrays(*args: Tensor) -> list[Tensor]:
    total = sum((neutral.zeros_like(each) for each in args[1:]), neutral.zeros_like(args[0]))
    return [neutral.broadcast_to(each, total) for each in args]


def expand_dims(a: Tensor, axis: Any) -> Tensor:
    for each in sorted(axis) if isinstance(axis, tuple | list) else [axis]:
        a = neutral.expand_dims(a, each)
    return a


def transpose(a: Tensor, axes: Any = None) -> Tensor:
    return neutral.permute_dims(a, axes)


def squeeze(a: Tensor, axis: Any = None) -> Tensor:
    return neutral.squeeze(a, axis)


def concatenate(arrays: Sequence[Tensor], axis: int | None = 0, dtype: Any = None) -> Tensor:
    return converted(neutral.concatenate(arrays, axis), dtype)


def stack(arrays: Sequence[Tensor], axis: int = 0, out: None = None, dtype: Any = None) -> Tensor:
    return converted(neutral.stack(arrays, axis), dtype)


def fliplr(m: Tensor) -> Tensor:
    return neutral.flip(m, 1)


def flipud(m: Tensor) -> Tensor:
    return neutral.flip(m, 0)


def tile(A: Tensor, reps: Any) -> Tensor:
    return neutral.tile(A, reps)


def repeat(a: Tensor, repeats: int, axis: int | None = None) -> Tensor:
    return neutral.repeat(a, repeats, axis)


def take(a: Tensor, indices: Any, axis: int | None = None) -> Tensor:
    return neutral.take(a, indices, axis)


def diff(a: Tensor, n: int = 1, axis: int = -1) -> Tensor:
    for _ in range(n):
        whole: Any = slice(None)
        after = whole if axis < 0 else axis
        later, earlier = slice(1, None), slice(None, -1)
        if axis < 0:
            rest = (whole,) * (-axis - 1)
            a = neutral.getitem(a, (..., later, *rest)) - neutral.getitem(a, (..., earlier, *rest))
        else:
            first = (whole,) * after
            a = neutral.getitem(a, (*first, later)) - neutral.getitem(a, (*first, earlier))
    return a


def sort(a: Tensor, axis: int | None = -1, *, stable: bool = True, descending: bool = False) -> Any:
    if axis is None:
        return neutral.sort(neutral.reshape(a, -1), 0, descending)
    return neutral.sort(a, axis, descending)


def quantile(a: Tensor, q: float, axis: Any = None, *, method: str = "linear",
             keepdims: bool = False) -> Tensor:  # fmt: skip
    return arrays.np_quantile(a, q, axis, method=method, keepdims=keepdims)


def percentile(a: Tensor, q: float, axis: Any = None, *, method: str = "linear",
               keepdims: bool = False) -> Tensor:  # fmt: skip
    return arrays.np_percentile(a, q, axis, method=method, keepdims=keepdims)


def pad(array: Tensor, pad_width: Any, mode: str = "constant", *,
        constant_values: Any = 0) -> Tensor:  # fmt: skip
    return arrays.np_pad(array, pad_width, mode, constant_values=constant_values)


def copy(a: Tensor, order: Any = None) -> Tensor:
    return methods.clone(a)


def astype(x: Tensor, dtype: Any, /, *, copy: bool = False, device: Any = None) -> Tensor:
    return cast(x, dtype)


# --- products ------------------------------------------------------------------------------------------------
def matmul(
    a: Tensor, b: Tensor, *, precision: Any = None, preferred_element_type: Any = None
) -> Any:
    return converted(neutral.matmul(a, b), preferred_element_type)


def dot(a: Tensor, b: Tensor, *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    return converted(arrays.np_dot(a, b), preferred_element_type)


def vdot(a: Tensor, b: Tensor, *, precision: Any = None) -> Tensor:
    return neutral.vecdot(ravel(a), ravel(b))


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1, precision: Any = None) -> Tensor:
    return neutral.vecdot(x1, x2, axis)


def einsum(
    subscripts: str, /, *operands: Tensor, optimize: Any = "auto", precision: Any = None
) -> Any:
    return neutral.einsum(subscripts, *operands)


def tensordot(a: Tensor, b: Tensor, axes: Any = 2, *, precision: Any = None) -> Tensor:
    return neutral.tensordot(a, b, axes)


def outer(a: Tensor, b: Tensor) -> Tensor:
    return neutral.outer(ravel(a), ravel(b))


# --- made like another -----------------------------------------------------------------------------------------
def zeros_like(a: Tensor, dtype: Any = None, *, device: Any = None) -> Tensor:
    return neutral.zeros_like(a, dtype)


def ones_like(a: Tensor, dtype: Any = None, *, device: Any = None) -> Tensor:
    return neutral.ones_like(a, dtype)


def full_like(a: Tensor, fill_value: Any, dtype: Any = None, *, device: Any = None) -> Tensor:
    return neutral.full_like(a, fill_value, dtype)


REDUCTIONS: dict[Any, Any] = {
    jnp.sum: sum_, jnp.prod: prod, jnp.mean: mean, jnp.max: max_, jnp.amax: max_, jnp.min: min_,
    jnp.amin: min_, jnp.ptp: ptp, jnp.any: any_, jnp.all: all_, jnp.var: var, jnp.std: std,
    jnp.average: average, jnp.count_nonzero: count_nonzero, jnp.median: median,
    jnp.nansum: nansum, jnp.nanmean: nanmean, jnp.quantile: quantile, jnp.percentile: percentile,
    jnp.linalg.norm: norm, jnp.linalg.vector_norm: vector_norm, jnp.cumsum: arrays.np_cumsum,
    jnp.cumprod: arrays.np_cumprod, jnp.sort: sort, jax.nn.logsumexp: logsumexp,
    special.logsumexp: logsumexp, jax.nn.softmax: softmax, jax.nn.log_softmax: log_softmax,
    special.softmax: special_softmax, special.log_softmax: special_log_softmax,
    jax.nn.standardize: standardize, jax.nn.glu: glu,
}  # fmt: skip

SHAPES: dict[Any, Any] = {
    jnp.reshape: reshape, jnp.ravel: ravel, jnp.broadcast_to: broadcast_to,
    jnp.broadcast_arrays: broadcast_arrays, jnp.expand_dims: expand_dims,
    jnp.transpose: transpose, jnp.permute_dims: transpose, jnp.squeeze: squeeze,
    jnp.concatenate: concatenate, jnp.concat: concatenate, jnp.stack: stack,
    jnp.swapaxes: neutral.swapaxes, jnp.moveaxis: neutral.moveaxis,
    jnp.matrix_transpose: neutral.matrix_transpose, jnp.flip: neutral.flip, jnp.fliplr: fliplr,
    jnp.flipud: flipud, jnp.roll: neutral.roll, jnp.tile: tile, jnp.repeat: repeat, jnp.take: take,
    jnp.tril: neutral.tril, jnp.triu: neutral.triu, jnp.pad: pad, jnp.diff: diff, jnp.copy: copy,
    jnp.astype: astype, jnp.size: np_dialect.size, jnp.shape: np_dialect.shape,
    jnp.ndim: np_dialect.ndim, jnp.zeros_like: zeros_like, jnp.ones_like: ones_like,
    jnp.full_like: full_like, jnp.empty_like: zeros_like,
}  # fmt: skip

PRODUCTS: dict[Any, Any] = {
    jnp.matmul: matmul, jnp.linalg.matmul: matmul, jnp.dot: dot, jnp.vdot: vdot,
    jnp.vecdot: vecdot, jnp.linalg.vecdot: vecdot, jnp.einsum: einsum, jnp.tensordot: tensordot,
    jnp.outer: outer,
}  # fmt: skip

ALIASES: dict[Any, Any] = {**REDUCTIONS, **SHAPES, **PRODUCTS}
