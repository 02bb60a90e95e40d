"""Keras's dialect, functions over whole arrays, linear algebra among them; see `table.py`."""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras

from multigrad.capture.code.names import handlers, spelled
from multigrad.capture.dialects import numpy_parts
from multigrad.capture.meanings import arrays, extremes, index_tensors, parts, places, reductions
from multigrad.capture.meanings.matrices import factors, linalg, norms
from multigrad.capture.values.elementwise import is_whole
from multigrad.graph.ir.types import INT64, T
from multigrad.trace.trace import cast
from multigrad.trace.xp import all as xp

from .asked import limits_infinity, limits_moments, multiplies_in_floats, truncates_indices
from .elementwise import KERAS, of_floats

Tensor = Any
Handler = Callable[..., Any]
LARGEST = 65504.0  # of float16, at which Keras ends moments


# --- reductions -----------------------------------------------------------------------------------
def moments(x: Tensor, axes: Any, keepdims: bool = False, synchronized: bool = False) -> Any:
    """The mean and the variance."""
    if synchronized:
        raise TypeError("moments with synchronized=True")
    found = xp.mean(x, axes, keepdims), xp.var(x, axes, keepdims=keepdims)
    if x.trace.is_in("float16") or (x.trace.is_in("bfloat16") and limits_moments()):
        found = tuple(xp.clip(each, -LARGEST, LARGEST) for each in found)
    return found


def nancumsum(x: Tensor, axis: Any = None, dtype: Any = None) -> Tensor:
    return reductions.nancumsum(limited(x), axis, dtype)


def nancumprod(x: Tensor, axis: Any = None, dtype: Any = None) -> Tensor:
    return reductions.nancumprod(limited(x), axis, dtype)


def limited(x: Tensor) -> Tensor:
    return xp.nan_to_num(x, math.nan) if limits_infinity() else x


# --- normalization --------------------------------------------------------------------------------
def normalize(x: Tensor, axis: Any = -1, order: int = 2, epsilon: float | None = None) -> Tensor:
    """x over its norm, or over epsilon where that is larger; of order 2 times what Keras takes for
    one over it, which is 0 where the sum of the squares overflows.
    """
    least = keras.config.epsilon() if epsilon is None else epsilon
    if order == 2:
        inverse = xp.rsqrt(xp.sum(xp.square(x), axis, keepdims=True))
        return xp.multiply(x, xp.minimum(inverse, 1.0 / least))
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
    if not is_whole(x) and truncates_indices():
        x = cast(x, INT64)
    hot = xp.one_hot(x, num_classes, axis)
    return cast(hot, T if dtype is None else dtype)


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
@of_floats
def vdot(x1: Tensor, x2: Tensor) -> Tensor:
    """The sum of the products of all elements."""
    return xp.vecdot(xp.reshape(x1, -1), xp.reshape(x2, -1))


# --- linear algebra -------------------------------------------------------------------------------
def solve(a: Tensor, b: Tensor) -> Tensor:
    return linalg.solve(a, b, linalg.has_vectors(a, b))


def solve_triangular(a: Tensor, b: Tensor, lower: bool = False) -> Tensor:
    return linalg.solve_triangular(a, b, lower=lower, vectors=linalg.has_vectors(a, b))


def svd(x: Tensor, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    return factors.svd(x, full_matrices) if compute_uv else factors.svdvals(x)


def eigh(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of symmetric matrices; which triangle is read is its backend's."""
    return factors.eigh(linalg.symmetric(x))


def qr(x: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    if mode not in ("reduced", "complete"):
        raise TypeError(f"qr with mode={mode!r}")
    return factors.qr(x, mode == "complete")


OPS: dict[str, Handler] = {
    **spelled("swapaxes; moveaxis; flip; roll; tril; triu; repeat"),
    "vdot": vdot,
    **handlers(
        {
            arrays: "np_ravel: ravel; np_sort: sort",
            parts: "fliplr; flipud",
            places: "argmax; argmin; count_nonzero",
            __name__: """
                get_item; layer_normalization; moments; normalize; one_hot; pad;
                rms_normalization; scatter_update; segment_sum; slice_: slice; solve;
                solve_triangular; svd; eigh; qr
            """,
            xp: "logsumexp; median",
        }
    ),
}
dot = of_floats(arrays.np_dot)


def matmul(x1: Tensor, x2: Tensor) -> Tensor:
    multiply = of_floats(xp.matmul) if multiplies_in_floats() else xp.matmul
    return multiply(x1, x2)


NAMED = KERAS.called(
    {
        arrays: """
            cumprod; cumsum; expand: broadcast_to; np_outer: outer; np_percentile: percentile;
            np_quantile: quantile; np_reshape: reshape
        """,
        extremes: "topk: top_k",
        linalg: "cholesky; cholesky_inverse",
        norms: "norm",
        places: "argsort; take_along_axis",
        reductions: """
            all; any; max: max amax; mean; min: min amin; nanmax; nanmean;
            nanmin; nanprod; nanstd; nansum; nanvar; prod; std; sum; var
        """,
        __name__: "dot; matmul; nancumprod; nancumsum",
        xp: """
            concatenate; einsum(kwargs=); permute_dims: transpose; squeeze; stack; take;
            tile; det; inv; logabsdet: logdet; slogdet
        """,
    }
)
