"""Rules as Keras users write them: every way to reach `keras.ops`, and what is Keras's own.

Each is run on every backend and compared with itself on Keras's tensors. Names that begin with "_"
are helpers.
"""

from __future__ import annotations

import functools
from typing import Any

import keras
import keras.ops as K
import numpy as np
from keras import activations, backend, ops, random
from keras.ops import cast, relu
from keras.ops import where as choose

Tensor = Any
WIDTH = 1.5
TABLE = {"soft": ops.softplus, "hard": ops.hard_sigmoid}
_half = functools.partial(ops.multiply, 0.5)


def _window(x: Tensor, low: float, high: float) -> Tensor:
    inside = ops.logical_and(x >= low, x <= high)
    return ops.cast(inside, x.dtype)


def _surrogate(function: Any) -> Any:
    def slope(x: Tensor) -> Tensor:
        y = function(x)
        return y * (1.0 - y)

    return slope


def _applied(x: Tensor, function: Any = ops.erf) -> Tensor:
    return function(x)


_sigmoid_slope = _surrogate(ops.sigmoid)


class _Clipper:
    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.clip = ops.clip

    def __call__(self, x: Tensor) -> Tensor:
        return self.clip(x, -self.limit, self.limit)


_clipper = _Clipper(0.75)


def by_package(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * keras.ops.exp(-keras.ops.abs(tin))


def by_alias_of_the_module(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * K.maximum(1.0 - K.abs(tin) / WIDTH, 0.0)


def by_submodule(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * keras.ops.nn.sigmoid(tin) * ops.numpy.square(tin)


def by_names_imported(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return choose(tin > 0, relu(grad_out), cast(tin < -1, grad_out.dtype))


def by_import_inside(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    from keras.ops import tanh as squash

    return grad_out * (1.0 - squash(tin) ** 2)


def by_partial(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return _half(grad_out) + _half(ops.sin(tin))


def by_helper(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * _window(tin, -1.0, 1.0)


def by_closure(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * _sigmoid_slope(4.0 * tin)


def by_object(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return _clipper(grad_out) * _clipper(tin)


def by_table(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * TABLE["soft"](tin) - TABLE["hard"](tin)


def by_default(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out - _applied(tin) * grad_out


def activation_functions(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * (activations.gelu(tin) + keras.activations.relu(tin, 0.1, 1.0, 0.25))


def tanh_gelu_by_default(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * ops.gelu(tin)


def slope_of_a_fifth(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return ops.leaky_relu(tin) * ops.sign(grad_out)


def masked_by_dtype(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    mask = ops.cast(ops.abs(tin) < 1, backend.standardize_dtype(tin.dtype))
    return grad_out * mask if backend.is_float_dtype(tin.dtype) else grad_out


def with_keras_epsilon(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out / (ops.norm(grad_out) + keras.config.epsilon())


def clipped_by_norm(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    norm = ops.sqrt(ops.sum(ops.square(grad_out), axis=-1, keepdims=True))
    return grad_out * ops.minimum(1.0, 0.5 / ops.maximum(norm, 1e-12))


def standardized(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    mean, variance = ops.moments(grad_out, axes=[-1], keepdims=True)
    return (grad_out - mean) * ops.rsqrt(variance + 1e-3)


def normalized_layer(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return ops.layer_normalization(grad_out, epsilon=1e-3) + ops.rms_normalization(
        tin, epsilon=1e-3
    )


def unit_rows(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return ops.normalize(grad_out, axis=-1, order=2)


def largest_of_a_row(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    values, _ = ops.top_k(tin, 2)
    return ops.where(tin >= ops.min(values, axis=-1, keepdims=True), grad_out, 0.0)


def made_from_a_shape(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    ones, zeros = ops.ones(ops.shape(tin)), ops.zeros(tin.shape, dtype="bool")
    return grad_out * ones + ops.cast(zeros, grad_out.dtype)


def made_from_numbers(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    steps = ops.arange(4, dtype="float32") / ops.convert_to_tensor([1.0, 2.0, 4.0, 8.0])
    return grad_out * steps + ops.linspace(0.0, 1.0, 4)


def weighted_by_numpy(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return ops.matmul(grad_out * tin, np.eye(4, dtype="float32")) * np.float32(0.5)


def rounded_to_steps(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    step = ops.round(tin / 0.5)
    return ops.select([step < -4, step > 3], [0.0 * grad_out, 0.0 * grad_out], grad_out)


def split_and_joined(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    left, right = ops.split(grad_out, 2, axis=-1)
    return ops.concatenate([right, left], axis=-1) * ops.flip(tin, axis=-1)


def running_sums(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return ops.cumsum(grad_out, axis=-1) * ops.roll(tin, 1, axis=-1)


def per_column(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return ops.stack([2.0 * column for column in ops.unstack(grad_out, axis=-1)], axis=-1)


def stopped(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    scale = ops.stop_gradient(ops.max(ops.abs(tin), axis=0, keepdims=True))
    return ops.divide_no_nan(grad_out, scale)


# Draws: no two runs are equal, so these are compared in another way.
def _noisy(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out + 0.1 * random.normal(ops.shape(grad_out))


def _jammed(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return random.uniform(ops.shape(grad_out), minval=-1.0, maxval=3.0)


def _dropped(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return keras.random.dropout(grad_out, 0.25)
