"""Keras's functions over whole arrays, in ops: normalization, shapes, pooling, linear algebra."""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

import keras

from multigrad.capture.dialects import numpy
from multigrad.capture.meanings import arrays, layers, matrices, parts, places, reductions
from multigrad.capture.meanings.composites import is_whole
from multigrad.capture.meanings.layers import channels_first, channels_last, per_axis
from multigrad.capture.name_tables import Handler, handlers_by_name, ops_by_name
from multigrad.graph.ir.types import FLOATS_OF_16_BITS, T
from multigrad.trace.trace import cast
from multigrad.trace.xp import all as xp

from .elementwise import KERAS, of_floats

Tensor = Any


# --- normalization --------------------------------------------------------------------------------
def moments(x: Tensor, axes: Any, keepdims: bool = False, synchronized: bool = False) -> Any:
    # Keras clips the moments of float16 to its range
    if synchronized or x.trace.facts.has_dtype(*FLOATS_OF_16_BITS):
        raise TypeError("moments that are synchronized, or limited to those of float16")
    return xp.mean(x, axes, keepdims), xp.var(x, axes, keepdims=keepdims)


def normalize(x: Tensor, axis: Any = -1, order: int = 2, epsilon: float | None = None) -> Tensor:
    least = keras.config.epsilon() if epsilon is None else epsilon
    if order == 2:
        # as Keras computes it: 0 where the sum of squares overflows
        inverse = xp.rsqrt(xp.sum(xp.square(x), axis, keepdims=True))
        return xp.multiply(x, xp.minimum(inverse, 1.0 / least))
    return xp.divide(x, xp.maximum(xp.norm(x, axis, True, order), least))


def rms_normalization(
    x: Tensor, scale: Any = None, axis: Any = -1, epsilon: float | None = None
) -> Tensor:
    added = keras.config.epsilon() if epsilon is None else epsilon
    mean = xp.mean(xp.square(x), axis, keepdims=True)
    return layers.scaled_and_shifted(xp.multiply(x, xp.rsqrt(xp.add(mean, added))), scale, None)


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
    return layers.scaled_and_shifted(xp.standardize(x, axis, added), gamma, beta)


# --- shapes ---------------------------------------------------------------------------------------
def pad(x: Tensor, pad_width: Any, mode: str = "constant", constant_values: Any = None) -> Tensor:
    value = 0 if constant_values is None else constant_values
    return numpy.pad(x, pad_width, mode, constant_values=value)


def get_item(x: Tensor, key: Any) -> Tensor:
    return x[key]


def one_hot(
    x: Tensor, num_classes: int, axis: int = -1, dtype: Any = None, sparse: bool = False
) -> Tensor:
    if sparse or not is_whole(x):
        raise TypeError("one_hot as a sparse tensor, or of numbers that are no integers")
    hot = xp.one_hot(x, num_classes, axis)
    return cast(hot, T if dtype is None else dtype)


def segment_sum(
    data: Tensor, segment_ids: Any, num_segments: Any = None, sorted: bool = False
) -> Tensor:
    if num_segments is None:
        raise TypeError("segment_sum without num_segments, which depend on the values")
    return places.segment_sum(data, segment_ids, num_segments)


def solve(a: Tensor, b: Tensor) -> Tensor:
    return matrices.solve(a, b, matrices.has_vectors(a, b))


# --- pooling, as TensorFlow's trace refuses a batch of unknown length -----------------------------
def pool(reduce: Handler, name: str) -> Handler:
    """Return the handler of a pooling of images by a reduction of windows."""

    def record(
        inputs: Tensor,
        pool_size: Any,
        strides: Any = None,
        padding: str = "valid",
        data_format: str | None = None,
    ) -> Tensor:
        last = (data_format or keras.config.image_data_format()) == "channels_last"
        x, axes = channels_first(inputs) if last else inputs, parts.rank(inputs) - 2
        sizes, ones = per_axis(pool_size, axes), (1,) * axes
        steps = sizes if strides is None else per_axis(strides, axes)
        border = layers.same_border(x, sizes, steps, ones) if padding == "same" else ()
        result = reduce(x, sizes, steps, border)
        return channels_last(result) if last else result

    record.__name__ = record.__qualname__ = name
    return record


def largest(x: Tensor, sizes: Any, steps: Any, border: Any) -> Tensor:
    return layers.max_pool(x, sizes, steps, border, (1,) * len(sizes))


def mean(x: Tensor, sizes: Any, steps: Any, border: Any) -> Tensor:
    # torch repeats the last elements there, others count no border
    if any(before != after for before, after in border):
        raise TypeError("average_pool with a border that is wider at one end")
    return layers.mean_pool(x, sizes, steps, border, counted=False)


max_pool, average_pool = pool(largest, "max_pool"), pool(mean, "average_pool")
OPS: dict[str, Handler] = {
    **ops_by_name("swapaxes; moveaxis; flip; roll; tril; triu; repeat"),
    **handlers_by_name(
        {
            arrays: "ravel; np_sort: sort",
            places: "argmax; argmin; count_nonzero",
            __name__: """
                average_pool; get_item; layer_normalization; max_pool; moments; normalize; one_hot;
                pad; rms_normalization; segment_sum; solve
            """,
            xp: "logsumexp; median",
        }
    ),
}
dot, matmul = of_floats(arrays.np_dot), of_floats(xp.matmul)
inner, tensordot = of_floats(matrices.inner), of_floats(matrices.tensordot)
NAMED = KERAS.called(
    {
        arrays: """
            cumprod; cumsum; expand: broadcast_to; np_outer: outer; np_percentile: percentile;
            np_quantile: quantile; np_reshape: reshape
        """,
        matrices: "diag; diagonal; kron; trace; cholesky; cholesky_inverse; norm",
        places: "topk: top_k; argsort; take_along_axis",
        layers: "batch_norm: batch_normalization(offset=shift)",
        numpy: "split",
        parts: "expand_dims",
        reductions: """
            all; any; max: max amax; mean; min: min amin; nanmax; nanmean;
            nanmin; nanprod; nanstd; nansum; nanvar; prod; std; sum; var
        """,
        __name__: "dot; inner; matmul; tensordot",
        xp: """
            concatenate; einsum(kwargs=); permute_dims: transpose; squeeze; stack; take;
            tile; det; inv; logabsdet: logdet; slogdet
        """,
    }
)
