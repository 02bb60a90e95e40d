"""TensorFlow's fake quantization, in ops: rounding to integers of a few bits between two limits.

Both limits are nudged so that zero is an exact value. The gradient passes between them; a limit
gets that from beyond it. Neither depends on the nudging.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from multigrad.capture.dialect import Handler
from multigrad.graph.ir.types import T
from multigrad.trace.derived.derivatives import accumulate_all
from multigrad.trace.trace import Value, cast
from multigrad.trace.xp import all as xp

Tensor = Any


def by_vars(
    inputs: Tensor,
    min: Any,
    max: Any,
    num_bits: int = 8,
    narrow_range: bool = False,
    name: Any = None,
) -> Tensor:
    ends = _as_tensor(inputs, min), _as_tensor(inputs, max)
    low, high, scale, inverse = map(xp.stop_gradient, _nudge(*ends, num_bits, narrow_range))
    x = xp.stop_gradient(inputs)
    steps = (xp.maximum(xp.minimum(x, high), low) - low) * inverse
    zero = xp.floor(-low * inverse + 0.5)
    quantized = xp.floor(steps - zero + 0.5) * scale
    # The terms below add zero to the value, and give it the gradient.
    lower, upper = (
        value + (end - xp.stop_gradient(end)) for value, end in zip((low, high), ends, strict=True)
    )
    is_inside = xp.logical_and(xp.greater_equal(x, low), xp.less_equal(x, high))
    # Where the limits cross, both get the gradient of values between them.
    passing = xp.where(is_inside, inputs, 0.0)
    passing = passing + xp.where(xp.less(x, low), lower, 0.0)
    passing = passing + xp.where(xp.greater(x, high), upper, 0.0)
    result = quantized + (passing - xp.stop_gradient(passing))
    is_nothing = _is_nothing(*ends)
    # with both limits zero the result is 0 and the gradient passes, as in TensorFlow
    return xp.where(is_nothing, inputs - x, result)


def gradients_by(
    gradients: Tensor,
    inputs: Tensor,
    min: Any = -6.0,
    max: Any = 6.0,
    num_bits: int = 8,
    narrow_range: bool = False,
    name: Any = None,
) -> list[Tensor]:
    """Return the gradients of the inputs and both limits, without derivatives, as in TensorFlow."""
    x, low, high = (xp.stop_gradient(_as_tensor(inputs, each)) for each in (inputs, min, max))
    result = by_vars(x, low, high, num_bits, narrow_range)
    seeds = [(result.node, xp.stop_gradient(gradients))]
    return accumulate_all(x.trace, seeds, [each.node for each in (x, low, high)])


def gradient_by_args(*args: Any, **options: Any) -> Tensor:
    return gradients_by(*args, **options)[0]


def _as_tensor(inputs: Tensor, end: Any) -> Any:
    if isinstance(inputs, list | tuple):
        raise TypeError("its inputs are a list, which TensorFlow turns into float32: stack them")
    if isinstance(end, Value) and end.node.type.kind == "tensor":
        return cast(end, T)
    if not isinstance(end, Value) and np.ndim(end):
        return xp.zeros_like(inputs) + np.asarray(end)
    # a tensor, so that the limit is nudged in the dtype of the inputs
    return xp.full_like(xp.sum(xp.zeros_like(xp.stop_gradient(inputs))), end)


def _nudge(low: Any, high: Any, num_bits: int, narrow_range: bool) -> tuple[Any, ...]:
    first, last = float(narrow_range), float(2**num_bits - 1)
    span = xp.where(xp.equal(high - low, 0), last - first, high - low)
    # Each rounded once, as in TensorFlow.
    scale, inverse = (
        span / (last - first),
        (last - first) / span,
    )
    zero = first - low / scale
    whole = xp.trunc(zero)
    nearest = whole + xp.where(zero - whole >= 0.5, 1.0, 0.0)  # ties away from zero
    zero = xp.where(zero < first, first, xp.where(zero > last, last, nearest))
    return (first - zero) * scale, (last - zero) * scale, scale, inverse


def _is_nothing(low: Any, high: Any) -> Any:
    return xp.equal(low, 0) & xp.equal(high, 0)


ALIASES: dict[Any, Handler] = {
    tf.quantization.fake_quant_with_min_max_args: by_vars,
    tf.quantization.fake_quant_with_min_max_vars: by_vars,
    tf.quantization.fake_quant_with_min_max_vars_per_channel: by_vars,
    tf.quantization.fake_quant_with_min_max_args_gradient: gradient_by_args,
    tf.quantization.fake_quant_with_min_max_vars_gradient: gradients_by,
    tf.quantization.fake_quant_with_min_max_vars_per_channel_gradient: gradients_by,
}
