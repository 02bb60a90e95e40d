"""Keras's functions in ops: elementwise, activations, cross-entropies, normalization, shapes,
pooling, linear algebra; see `table.py`.

Rows are keyed by the public name in `keras.ops` or `keras.activations`, or by the function; names
that the installed Keras lacks are left out.
"""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import functools
from typing import Any

import keras

from multigrad.core import ops
from multigrad.core.ir.op import BOOL, FLOATS, FLOATS_OF_16_BITS, INT64, WHOLE, T
from multigrad.core.trace.trace import Value, cast, copy_of
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.dialects import numpy as numpy_dialect
from multigrad.engine.capture.meanings import (
    arrays,
    composites,
    layers,
    matrices,
    parts,
    places,
    reductions,
)
from multigrad.engine.capture.meanings.composites import is_whole
from multigrad.engine.capture.meanings.layers import channels_first, channels_last, per_axis
from multigrad.engine.capture.name_tables import (
    COMMON,
    Handler,
    Library,
    handlers_by_name,
    ops_by_name,
)
from multigrad.engine.capture.symbols import own_dtype
from multigrad.engine.capture.values import methods

from .backend import (
    answer,
    floors_quotients,
    limits_logarithms,
    remembers_logits,
    takes_lower_limit,
)

Tensor = Any
KERAS = Library(keras.ops)


def as_bool(x: Any) -> Any:
    # Keras's logic takes numbers too: all but 0 are true
    return cast(x, BOOL) if isinstance(x, Value) else x


def of_bools(function: Handler) -> Handler:
    """Return a function of two bools, which takes numbers too."""

    @functools.wraps(function)
    def record(x1: Tensor, x2: Tensor) -> Tensor:
        return function(as_bool(x1), as_bool(x2))

    return record


def logical_not(x: Tensor) -> Tensor:
    return xp.logical_not(as_bool(x))


def copy(x: Any) -> Tensor:
    # a list is stacked, as Keras converts it
    return xp.stack(x, 0) if isinstance(x, list | tuple) else copy_of(x)


def of_floats(product: Handler) -> Handler:
    """Return a product that refuses integers, which Keras multiplies in floats."""

    @functools.wraps(product)
    def record(x1: Any, x2: Any, *args: Any) -> Tensor:
        if {own_dtype(x1), own_dtype(x2)} & {*WHOLE}:
            raise TypeError("integers, which Keras multiplies in floats: cast them first")
        return product(x1, x2, *args)

    return record


def together(function: Handler) -> Handler:
    """Return a function that casts two integers first: Keras casts int64 with others to int32."""

    @functools.wraps(function)
    def record(x1: Any, x2: Any) -> Tensor:
        dtype = expected(x1, x2)
        if dtype and all(own_dtype(x) in WHOLE or isinstance(x, int) for x in (x1, x2)):
            x1, x2 = cast(x1, dtype), cast(x2, dtype)
        return function(x1, x2)

    return record


def expected(*operands: Any) -> str:
    """Return the dtype that Keras gives the recorded call; int64 if unknown."""
    trace = next(x.trace for x in operands if isinstance(x, Value))
    return "" if trace.types is None else trace.types.expected or INT64


def floor_divide(x1: Any, x2: Any) -> Tensor:
    dtype = expected(x1, x2)
    if dtype in (T, *FLOATS) and answer(floors_quotients):
        quotient = xp.floor(xp.divide(x1, x2))
    else:
        quotient = xp.floor_divide(x1, x2)
    # Keras casts the quotient of floats, not the operands
    return cast(quotient, dtype) if dtype in (T, *FLOATS) else quotient


def full_like(x: Tensor, fill_value: Any, dtype: Any = None) -> Tensor:
    if isinstance(fill_value, list | tuple):
        raise TypeError("full_like of several values; use broadcast_to")
    return xp.full_like(x, fill_value, dtype)


def clip(x: Tensor, x_min: Any, x_max: Any) -> Tensor:
    if answer(takes_lower_limit) and (isinstance(x_min, Value) or isinstance(x_max, Value)):
        # limits may cross: TensorFlow gives the lower one, others the upper
        return xp.maximum(xp.minimum(x, x_max), x_min)
    return xp.clip(x, x_min, x_max)


def binary_crossentropy(target: Any, output: Tensor, from_logits: bool = False) -> Tensor:
    need_floats(output)
    output, from_logits = behind(output, from_logits)
    if from_logits:
        positive, negative = xp.log_sigmoid(output), xp.log_sigmoid(xp.negative(output))
    else:
        p = within(output)
        if answer(limits_logarithms):
            return layers.binary_cross_entropy(p, target)
        positive, negative = xp.log(p), xp.log(xp.subtract(1.0, p))
    other_term = xp.multiply(xp.subtract(1.0, target), negative)
    return xp.negative(xp.add(xp.multiply(target, positive), other_term))


def categorical_crossentropy(
    target: Any, output: Tensor, from_logits: bool = False, axis: int = -1
) -> Tensor:
    need_floats(output)
    output, from_logits = behind(output, from_logits)
    if from_logits:
        return layers.softmax_cross_entropy(output, target, axis)
    p = xp.divide(output, xp.sum(output, axis, keepdims=True))
    return xp.negative(xp.sum(xp.multiply(target, xp.log(within(p))), axis))


def behind(output: Any, from_logits: bool) -> tuple[Any, bool]:
    """Return the logits that probabilities were made of, if Keras goes back to them."""
    # `_get_logits` of Keras on TensorFlow: probabilities of 0 and 1 would hide the logits
    node = output.node if isinstance(output, Value) else None
    if node is not None and node.op in (ops.SIGMOID, ops.SOFTMAX) and answer(remembers_logits):
        return output.trace.value(node.operands[0]), True
    return output, from_logits


def within(p: Tensor) -> Tensor:
    epsilon = keras.config.epsilon()
    return xp.clip(p, epsilon, 1.0 - epsilon)


def need_floats(x: Any) -> None:
    if is_whole(x):
        raise TypeError("predictions of integers, in which Keras computes: cast to a float first")


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    if alpha == 0:
        raise TypeError("celu with alpha=0, which each backend of Keras divides by in its own way")
    return xp.celu(x, alpha)


def relu(x: Tensor, negative_slope: Any, max_value: Any, threshold: Any) -> Tensor:
    if any(type(n) not in (int, float) or n != 0 for n in (negative_slope, threshold)):
        raise TypeError("relu with a slope or a threshold")
    if max_value == 6:  # as Keras does, which decides on the gradient at both ends
        return xp.relu6(x)
    return xp.relu(x) if max_value is None else xp.clip(xp.relu(x), 0.0, max_value)


maximum, minimum = together(xp.maximum), together(xp.minimum)
fmax, fmin = together(xp.fmax), together(xp.fmin)
logical_and, logical_or = of_bools(xp.logical_and), of_bools(xp.logical_or)
logical_xor = of_bools(xp.logical_xor)
COMMON_NAMES = ops_by_name(f"{COMMON}; log_sigmoid; elu; softmax; log_softmax; glu")
SHARED: dict[Any, str] = {
    __name__: "celu",
    composites: "hard_shrink(threshold=lambd)",
    xp: """
        gelu; hard_tanh; leaky_relu(negative_slope=slope); soft_shrink(threshold=lambd); threshold
    """,
}
ACTIVATIONS: dict[str, Handler] = {
    **COMMON_NAMES,
    **ops_by_name("exp: exponential"),
    **handlers_by_name({methods: "identity: linear"}),
}


def moments(x: Tensor, axes: Any, keepdims: bool) -> Any:
    if x.trace.facts.has_dtype(*FLOATS_OF_16_BITS):
        raise TypeError("moments in 16 bits, which Keras limits to the range of float16")
    return xp.mean(x, axes, keepdims), xp.var(x, axes, keepdims=keepdims)


def normalize(x: Tensor, axis: Any = -1, order: int = 2, epsilon: float | None = None) -> Tensor:
    floor = keras.config.epsilon() if epsilon is None else epsilon
    if order == 2:
        # as Keras computes it: 0 where the sum of squares overflows
        inverse = xp.rsqrt(xp.sum(xp.square(x), axis, keepdims=True))
        return xp.multiply(x, xp.minimum(inverse, 1.0 / floor))
    return xp.divide(x, xp.maximum(xp.norm(x, axis, True, order), floor))


def rms_normalization(
    x: Tensor, scale: Any = None, axis: Any = -1, epsilon: float | None = None
) -> Tensor:
    eps = keras.config.epsilon() if epsilon is None else epsilon
    return layers.rms_norm(x, axis, scale, eps)


def layer_normalization(
    x: Tensor,
    gamma: Any = None,
    beta: Any = None,
    axis: Any = -1,
    epsilon: float | None = None,
) -> Tensor:
    if axis not in (-1, [-1], (-1,)) and not (gamma is None and beta is None):
        raise TypeError("layer_normalization with gamma or beta along other axes than the last")
    eps = keras.config.epsilon() if epsilon is None else epsilon
    return layers.layer_norm(x, axis, gamma, beta, eps)


def pad(x: Tensor, pad_width: Any, mode: str = "constant", constant_values: Any = None) -> Tensor:
    value = 0 if constant_values is None else constant_values
    return numpy_dialect.pad(x, pad_width, mode, constant_values=value)


def get_item(x: Tensor, key: Any) -> Tensor:
    return x[key]


def one_hot(x: Tensor, num_classes: int, axis: int = -1, dtype: Any = None) -> Tensor:
    if not is_whole(x):
        raise TypeError("one_hot of numbers that are no integers")
    hot = xp.one_hot(x, num_classes, axis)
    return cast(hot, T if dtype is None else dtype)


def segment_sum(data: Tensor, segment_ids: Any, num_segments: Any) -> Tensor:
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
        is_last = (data_format or keras.config.image_data_format()) == "channels_last"
        x, axes = channels_first(inputs) if is_last else inputs, parts.rank(inputs) - 2
        sizes, ones = per_axis(pool_size, axes), (1,) * axes
        steps = sizes if strides is None else per_axis(strides, axes)
        border = layers.same_border(x, sizes, steps, ones) if padding == "same" else ()
        result = reduce(x, sizes, steps, border)
        return channels_last(result) if is_last else result

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
    **COMMON_NAMES,
    **ops_by_name("nan_to_num; repeat"),
    **{f.__name__: f for f in (binary_crossentropy, categorical_crossentropy)},
    **handlers_by_name(
        {
            arrays: "ravel; np_sort: sort",
            places: "argmax; argmin; count_nonzero",
            __name__: """
                average_pool; copy: copy real conj conjugate; get_item; logical_not; max_pool;
                normalize; pad; rms_normalization; solve
            """,
            xp: "logsumexp; median",
        }
    ),
}
dot, matmul = of_floats(arrays.np_dot), of_floats(xp.matmul)
inner, tensordot = of_floats(matrices.inner), of_floats(matrices.tensordot)
NAMED: dict[Any, Handler] = {
    **KERAS.called(SHARED),
    **Library(keras.activations).called({**SHARED, __name__: "celu; relu"}),
    **KERAS.called(
        {
            composites: "divide_no_nan; where(x1=x, x2=y)",
            arrays: """
                cumprod; cumsum; expand: broadcast_to; np_outer: outer; np_percentile: percentile;
                np_quantile: quantile; np_reshape: reshape
            """,
            matrices: "diag; diagonal; kron; trace; cholesky; cholesky_inverse; norm",
            numpy_dialect: "round_: round",
            places: "topk: top_k; argsort; take_along_axis",
            layers: "batch_norm: batch_normalization(offset=shift)",
            parts: "expand_dims; split",
            reductions: """
                all; any; max: max amax; mean; min: min amin; nanmax; nanmean; nanmin; nanprod;
                nanstd; nansum; nanvar; prod; std; sum; var
            """,
            __name__: """
                clip; dot; floor_divide; fmax; fmin; inner; layer_normalization; logical_and;
                logical_or; logical_xor; matmul; maximum; minimum; moments; one_hot;
                segment_sum(sorted=); tensordot
            """,
            xp: """
                add; bitwise_and; bitwise_left_shift: bitwise_left_shift left_shift; bitwise_or;
                bitwise_right_shift: bitwise_right_shift right_shift; bitwise_xor; concatenate; det;
                divide: divide true_divide; einsum(kwargs=); equal; fmod; greater; greater_equal;
                hypot; atan2: arctan2; inv; less; less_equal; logabsdet: logdet; logaddexp;
                multiply; nextafter; not_equal; permute_dims: transpose; pow: power; remainder: mod;
                slogdet; squeeze; stack; stop_gradient; subtract; take; tile
            """,
        }
    ),
}
