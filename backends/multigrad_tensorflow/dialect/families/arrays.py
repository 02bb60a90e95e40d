"""TensorFlow's dialect, array family: reductions, products and ordering; see `table.py`.

A handler takes TensorFlow's own parameters in TensorFlow's order, without `name`; `table.py`
fills in its defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import index
from typing import Any

import numpy as np

from multigrad.capture.meanings import places
from multigrad.capture.symbols.dtypes import is_of_16_bits, own_dtype
from multigrad.capture.symbols.symbols import SymbolicShape
from multigrad.trace.trace import Value, cast
from multigrad.trace.xp import all as xp

from .shapes import TENSORFLOW

Tensor = Any
Handler = Callable[..., Any]


# --- reductions -----------------------------------------------------------------------------------
def reduce_prod(input_tensor: Any, axis: Any, keepdims: bool) -> Tensor:
    """Of a shape, it is the number of elements."""
    if isinstance(input_tensor, SymbolicShape):
        return input_tensor.numel()
    return xp.prod(input_tensor, axis, keepdims)


def count_nonzero(input: Tensor, axis: Any, keepdims: Any, dtype: Any) -> Tensor:
    return cast(places.count_nonzero(input, axis, keepdims), dtype)


def moments(x: Tensor, axes: Any, shift: Any, keepdims: bool) -> tuple[Tensor, Tensor]:
    """The mean and the variance; `shift` is of no meaning any more, in TensorFlow too."""
    return xp.mean(x, axes, keepdims), xp.var(x, axes, 0, keepdims)


def l2_loss(t: Tensor) -> Tensor:
    return xp.sum(xp.square(t)) / 2


def norm(tensor: Tensor, ord: Any, axis: Any, keepdims: Any) -> Tensor:
    """Of vectors: two axes make a norm of matrices, which TensorFlow's own trace is left to."""
    if isinstance(axis, tuple | list) and len(axis) == 2:
        raise TypeError(f"norm of order {ord!r} over two axes, a matrix norm")
    return xp.norm(tensor, axis, keepdims, 2 if ord == "euclidean" else float(ord))


def l2_normalize(x: Tensor, axis: Any, epsilon: Any) -> Tensor:
    total = xp.sum(xp.square(x), axis, keepdims=True)
    return x * xp.rsqrt(xp.maximum(total, epsilon))


def clip_by_norm(t: Tensor, clip_norm: Any, axes: Any) -> Tensor:
    """t where its norm is at most the limit, else t scaled to that norm; a negative one is 0."""
    clip_norm = xp.maximum(clip_norm, 0.0)
    total = xp.sum(xp.square(t), axes, keepdims=True)
    is_some = xp.greater(total, 0)  # sqrt has no slope at 0
    length = xp.where(is_some, xp.sqrt(xp.where(is_some, total, 1.0)), total)
    return t * clip_norm / xp.maximum(length, clip_norm)


def softmax(logits: Tensor, axis: Any) -> Tensor:
    return xp.softmax(logits, -1 if axis is None else axis)


def log_softmax(logits: Tensor, axis: Any) -> Tensor:
    return xp.log_softmax(logits, -1 if axis is None else axis)


def softmax_cross_entropy(labels: Any, logits: Any, axis: int) -> Tensor:
    """Of logits in 16 bits TensorFlow computes it in float32, and casts the labels likewise."""
    own = own_dtype(logits)
    logits = cast(logits, "float32") if is_of_16_bits(logits) else logits
    labels = cast(labels, own_dtype(logits)) if own_dtype(labels) else labels
    loss = -xp.sum(xp.multiply(labels, xp.log_softmax(logits, axis)), axis)
    return cast(loss, own) if own else loss


def batch_normalization(
    x: Tensor, mean: Any, variance: Any, offset: Any, scale: Any, variance_epsilon: Any
) -> Tensor:
    inverse = xp.rsqrt(xp.add(variance, variance_epsilon))
    inverse = inverse if scale is None else inverse * scale
    return x * inverse + (-mean * inverse if offset is None else offset - mean * inverse)


# --- running along an axis ------------------------------------------------------------------------
def cumsum(x: Tensor, axis: Any, exclusive: bool, reverse: bool) -> Tensor:
    axis = index(axis)
    return xp.cumsum(moved(x, axis, reverse, 0.0) if exclusive else x, axis, reverse)


def cumulative_logsumexp(x: Tensor, axis: Any, exclusive: bool, reverse: bool) -> Tensor:
    axis = index(axis)
    start = moved(x, axis, reverse, -math.inf) if exclusive else x
    return xp.logcumsumexp(start, axis, reverse)


def cumprod(x: Tensor, axis: Any, exclusive: bool, reverse: bool) -> Tensor:
    axis = index(axis)
    start = moved(x, axis, reverse, 1.0) if exclusive else x
    if not reverse:
        return xp.cumprod(start, axis)
    return xp.flip(xp.cumprod(xp.flip(start, axis), axis), axis)


def moved(x: Tensor, axis: int, reverse: bool, fill: float) -> Tensor:
    """Return x moved one place along an axis, away from where the running starts."""
    last = xp.swapaxes(x, axis, -1)
    wider = xp.pad(last, ((0, 1) if reverse else (1, 0),), fill)
    kept = wider[..., 1:] if reverse else wider[..., :-1]
    return xp.swapaxes(kept, axis, -1)


def sort(values: Tensor, axis: Any, direction: str) -> Tensor:
    return xp.sort(values, index(axis), direction == "DESCENDING")


# --- products -------------------------------------------------------------------------------------
def matmul(
    a: Any,
    b: Any,
    transpose_a: bool,
    transpose_b: bool,
    adjoint_a: bool,
    adjoint_b: bool,
    a_is_sparse: bool,
    b_is_sparse: bool,
    output_type: Any,
    *ignored: Any,
) -> Tensor:
    left = flipped(a) if transpose_a or adjoint_a else a
    right = flipped(b) if transpose_b or adjoint_b else b
    product = xp.matmul(left, right)
    return product if output_type is None else cast(product, output_type)


def flipped(x: Any) -> Any:
    """Return a matrix transposed, a constant one too."""
    return xp.matrix_transpose(x) if isinstance(x, Value) else np.swapaxes(np.asarray(x), -2, -1)


# These take the shape of a tensor without knowing it; for others, it is fixed in the capture.
TAKES_SHAPES = (reduce_prod,)
NAMED = TENSORFLOW.called(
    {
        xp: """
            all: reduce_all; any: reduce_any; logsumexp: reduce_logsumexp; max: reduce_max; mean:
            reduce_mean; min: reduce_min; sum: reduce_sum; norm: math.reduce_euclidean_norm; std:
            math.reduce_std; var: math.reduce_variance; einsum(kwargs=)
        """
    }
)
ALIASES: dict[Any, Handler] = {
    **TENSORFLOW.taking_the_same(
        {
            __name__: """
                reduce_prod; math.count_nonzero; nn.moments; nn.l2_loss; norm; nn.l2_normalize;
                clip_by_norm; nn.softmax; nn.log_softmax; softmax_cross_entropy:
                nn.softmax_cross_entropy_with_logits; nn.batch_normalization; cumsum; math.cumprod;
                math.cumulative_logsumexp; sort; matmul
            """,
        }
    ),
}
