"""TensorFlow's elementwise functions, activations and fake quantization, in ops; see `table.py`.

A handler takes TensorFlow's own parameters in TensorFlow's order, without `name`; `table.py` fills
in the defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import tensorflow as tf

from multigrad.core.ir.op import T, is_float
from multigrad.core.lowering.derivatives import accumulate_all
from multigrad.core.trace.trace import NeedsConcrete, Value, cast, is_symbolic_tensor
from multigrad.core.trace.trace import constant as number
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture import symbols
from multigrad.engine.capture.meanings import composites, layers
from multigrad.engine.capture.meanings.places import first_of, is_differentiated
from multigrad.engine.capture.symbols import SymbolicDType

from .arrays import TENSORFLOW

Tensor = Any
Handler = Callable[..., Any]


def identity(x: Tensor) -> Tensor:
    return xp.stack(x, 0) if isinstance(x, list | tuple) else x


def cast_to(x: Any, dtype: Any) -> Any:
    """Return a value in a dtype; a number stays weak, but a float to an integer is truncated."""
    dtype = tf.as_dtype(dtype) if isinstance(dtype, str) else dtype
    if isinstance(x, int | float):
        trace = dtype.trace if isinstance(dtype, SymbolicDType) else None
        return x if trace is None else trace.value(number(x))  # with all its digits
    if not isinstance(x, Value):
        raise NeedsConcrete("dtype")  # a constant tensor is cast by TensorFlow itself
    if x.node.type.kind == "scalar":
        is_cut = is_float(x.node.type) and getattr(dtype, "is_integer", False)
        return xp.trunc(x) if is_cut else x
    return cast(x, dtype)


def convert(value: Any, dtype: Any) -> Any:
    if isinstance(value, list | tuple) and any(isinstance(item, Value) for item in value):
        value = xp.stack(value, 0)
    # a number stays weak even if a dtype is named
    return value if dtype is None else cast_to(value, dtype)


def constant(value: Any, dtype: Any, shape: Any) -> Any:
    if shape is None:
        return convert(value, dtype)
    if isinstance(value, Value):
        raise TypeError("a constant of a given shape made of a symbolic value; use tf.fill")
    raise NeedsConcrete("dtype")


def add_n(inputs: Sequence[Tensor]) -> Tensor:
    return reduce(xp.add, inputs)


def multiply_no_nan(x: Any, y: Any) -> Tensor:
    # only where x is not finite: the gradient of y is x at y = 0 too
    is_lost = xp.logical_and(xp.equal(y, 0), xp.logical_not(xp.isfinite(x)))
    return xp.where(is_lost, 0.0, xp.multiply(x, y))


def xdivy(x: Any, y: Any) -> Tensor:
    is_zero = xp.equal(x, 0)
    return xp.where(is_zero, 0.0, xp.divide(x, xp.where(is_zero, 1.0, y)))


def xlog1py(x: Any, y: Any) -> Tensor:
    value = xp.xlog1py(x, y)
    if not is_differentiated(x, y):
        return value
    # TensorFlow's slopes at x = 0 are 0
    is_zero = xp.logical_and(xp.equal(x, 0), xp.isfinite(y))
    return xp.where(is_zero, 0.0, value)


def maximum(x: Any, y: Any) -> Tensor:
    """Return the larger; of equal values x gets the whole gradient, as in TensorFlow."""
    return first_of(xp.maximum, xp.less, x, y, missing=y)


def minimum(x: Any, y: Any) -> Tensor:
    return first_of(xp.minimum, xp.greater, x, y, missing=y)


def selu(features: Tensor) -> Tensor:
    value = xp.selu(features)
    if not is_differentiated(features):
        return value
    # TensorFlow's slope at 0 is that from above
    return xp.where(xp.equal(features, 0), features * SELU, value)


SELU = 1.0507009873554805  # Klambauer et al. 2017, arXiv:1706.02515, eq. 2


def floordiv(x: Any, y: Any) -> Tensor:
    """Return the quotient; of floats its floor, infinite too, unlike `//` in a rule."""
    if any(isinstance(v, Value) and is_float(v.node.type) for v in (x, y)):
        return xp.floor(xp.divide(x, y))
    return xp.floor_divide(x, y)


def truncatediv(x: Any, y: Any) -> Tensor:
    return xp.trunc(xp.divide(x, y))


def polygamma(a: Any, x: Tensor) -> Tensor:
    if isinstance(a, Value) or int(a) != a:
        raise TypeError("polygamma of a static integer order only")
    # NaN at the poles of an even order, as in TensorFlow.
    return composites.polygamma(a, x, math.nan)


def polyval(coeffs: Any, x: Tensor) -> Tensor:
    """Horner's scheme, the highest power first."""
    if not isinstance(coeffs, list):
        raise TypeError(f"polyval takes a list of coefficients, not a {type(coeffs).__name__}")
    if not coeffs:
        return xp.zeros_like(x)
    total = coeffs[0]
    for each in coeffs[1:]:
        total = xp.add(each, xp.multiply(total, x))
    return total


def where(condition: Tensor, x: Any, y: Any) -> Tensor:
    if x is None or y is None:
        raise TypeError("where without x and y gives indices; use tf.where(condition, x, y)")
    return xp.where(condition, x, y)


def clip_by_value(t: Tensor, clip_value_min: Any, clip_value_max: Any) -> Tensor:
    ends = (clip_value_min, clip_value_max)
    if all(isinstance(end, int | float) for end in ends) and clip_value_min <= clip_value_max:
        return xp.clip(t, *ends)
    # of crossed limits TensorFlow gives the lower one, and `clip` the upper
    return maximum(minimum(t, clip_value_max), clip_value_min)


def as_number(value: Any) -> Any:
    return value if isinstance(value, Value | int | float) else float(value)


def leaky_relu(features: Tensor, alpha: Any) -> Tensor:
    slope = as_number(alpha)
    if isinstance(slope, Value):
        return xp.where(features > 0, features, slope * features)
    return xp.leaky_relu(features, slope)


def silu(features: Tensor, beta: Any) -> Tensor:
    if isinstance(beta, int | float) and beta == 1:
        return xp.silu(features)
    return xp.multiply(features, xp.sigmoid(xp.multiply(beta, features)))


def dropout(x: Tensor, rate: Any) -> Tensor:
    scale = 1.0 / (1.0 - as_number(rate))
    return xp.where(xp.rand_like(x) >= rate, x * scale, 0.0)


# --- fake quantization: rounding to integers of a few bits between two limits ---------------------
# Both limits are nudged so that zero is an exact value. Inputs between the nudged limits get their
# gradient; a limit gets the gradient of inputs beyond it. The nudging itself has no derivative.
def fake_quantize(inputs: Tensor, min: Any, max: Any, num_bits: int, narrow_range: bool) -> Tensor:
    ends = _as_tensor(inputs, min), _as_tensor(inputs, max)
    low, high, scale, inverse = map(xp.stop_gradient, _nudge(*ends, num_bits, narrow_range))
    x = xp.stop_gradient(inputs)
    steps = (xp.maximum(xp.minimum(x, high), low) - low) * inverse
    zero = xp.floor(-low * inverse + 0.5)
    quantized = xp.floor(steps - zero + 0.5) * scale
    # `path` has the gradient; only its difference from itself, which is zero, goes into the value.
    lower, upper = (
        value + (end - xp.stop_gradient(end)) for value, end in zip((low, high), ends, strict=True)
    )
    is_inside = xp.logical_and(xp.greater_equal(x, low), xp.less_equal(x, high))
    # Where the limits cross, both get the gradient of inputs between them.
    path = xp.where(is_inside, inputs, 0.0)
    path = path + xp.where(xp.less(x, low), lower, 0.0)
    path = path + xp.where(xp.greater(x, high), upper, 0.0)
    result = quantized + (path - xp.stop_gradient(path))
    are_both_zero = xp.equal(ends[0], 0) & xp.equal(ends[1], 0)
    # with both limits zero the result is 0 and the gradient passes, as in TensorFlow
    return xp.where(are_both_zero, inputs - x, result)


def fake_quantize_gradients(
    gradients: Tensor, inputs: Tensor, min: Any, max: Any, num_bits: int, narrow_range: bool
) -> list[Tensor]:
    """Return the gradients of the inputs and both limits, without derivatives, as in TensorFlow."""
    x, low, high = (xp.stop_gradient(_as_tensor(inputs, each)) for each in (inputs, min, max))
    result = fake_quantize(x, low, high, num_bits, narrow_range)
    seeds = [(result.node, xp.stop_gradient(gradients))]
    return accumulate_all(x.trace, seeds, [each.node for each in (x, low, high)])


def fake_quantize_input_gradient(
    gradients: Tensor, inputs: Tensor, min: Any, max: Any, num_bits: int, narrow_range: bool
) -> Tensor:
    options = {"num_bits": num_bits, "narrow_range": narrow_range}
    return fake_quantize_gradients(gradients, inputs, min, max, **options)[0]


def _as_tensor(inputs: Tensor, end: Any) -> Any:
    if isinstance(inputs, list | tuple):
        raise TypeError("its inputs are a list, which TensorFlow turns into float32: stack them")
    if is_symbolic_tensor(end):
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
    integer = xp.trunc(zero)
    nearest = integer + xp.where(zero - integer >= 0.5, 1.0, 0.0)  # ties away from zero
    zero = xp.where(zero < first, first, xp.where(zero > last, last, nearest))
    return (first - zero) * scale, (last - zero) * scale, scale, inverse


ALIASES: dict[Any, Handler] = TENSORFLOW.called(
    {
        composites: """
            digamma: math.digamma raw_ops.Digamma;
            divide_no_nan: math.divide_no_nan raw_ops.DivNoNan
        """,
        __name__: """
            add_n; cast_to: cast; clip_by_value; constant; convert: convert_to_tensor(dtype_hint=);
            identity: math.conj identity math.real raw_ops.Identity; floordiv: math.floordiv
            raw_ops.FloorDiv; multiply_no_nan: math.multiply_no_nan raw_ops.MulNoNan;
            math.polygamma; math.polyval; truncatediv; where: where raw_ops.SelectV2;
            xdivy: math.xdivy raw_ops.Xdivy;
            xlog1py: math.xlog1py raw_ops.Xlog1py; maximum: maximum raw_ops.Maximum;
            minimum: minimum raw_ops.Minimum; selu: nn.selu raw_ops.Selu;
            nn.dropout; leaky_relu: nn.leaky_relu raw_ops.LeakyRelu; nn.silu;
            fake_quantize: quantization.fake_quant_with_min_max_args
            quantization.fake_quant_with_min_max_vars
            quantization.fake_quant_with_min_max_vars_per_channel;
            fake_quantize_input_gradient: quantization.fake_quant_with_min_max_args_gradient;
            fake_quantize_gradients: quantization.fake_quant_with_min_max_vars_gradient
            quantization.fake_quant_with_min_max_vars_per_channel_gradient
        """,
        layers: "squared_error: math.squared_difference raw_ops.SquaredDifference",
        symbols: "is_tensor",
        xp: """
            zeros_like: zeros_like math.imag; ones_like; gelu: nn.gelu; elu: nn.elu
            raw_ops.Elu
        """,
    }
)
