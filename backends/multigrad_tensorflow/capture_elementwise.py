"""TensorFlow's dialect, elementwise functions and activations; see `capture.py`.

A handler takes TensorFlow's own parameters in TensorFlow's order, without `name`; `capture.py` fills in its defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import tensorflow as tf

from multigrad.ir import neutral
from multigrad.ir.record import NeedFact, Value, cast
from multigrad.ir.types import is_float

Tensor = Any
Handler = Callable[..., Any]


def identity(x: Tensor, *ignored: Any) -> Tensor:
    return x


def cast_to(x: Any, dtype: Any) -> Any:
    """A number stays weak, but a float one that becomes an integer is truncated."""
    dtype = tf.as_dtype(dtype) if isinstance(dtype, str) else dtype
    if isinstance(x, int | float):
        return x
    if not isinstance(x, Value):
        raise NeedFact("dtype")  # of a constant tensor: TensorFlow's own does it
    if x.node.type.kind == "scalar":
        cuts = is_float(x.node.type) and getattr(dtype, "is_integer", False)
        return neutral.trunc(x) if cuts else x
    return cast(x, dtype)


def convert(value: Any, dtype: Any, *ignored: Any) -> Any:
    """A tensor as it is, a list of tensors as one; a number stays weak, though a dtype is named."""
    if isinstance(value, list | tuple) and any(isinstance(item, Value) for item in value):
        value = neutral.stack(value, 0)
    return value if dtype is None else cast_to(value, dtype)


def constant(value: Any, dtype: Any, shape: Any) -> Any:
    if shape is None:
        return convert(value, dtype)
    if isinstance(value, Value):
        raise TypeError("a constant of a given shape made of a symbolic value; use tf.fill")
    raise NeedFact("dtype")


def add_n(inputs: Sequence[Tensor], *ignored: Any) -> Tensor:
    return reduce(neutral.add, inputs)


def divide_no_nan(x: Any, y: Any) -> Tensor:
    return neutral.where(neutral.equal(y, 0), 0.0, neutral.divide(x, y))


def multiply_no_nan(x: Any, y: Any) -> Tensor:
    return neutral.where(neutral.equal(y, 0), 0.0, neutral.multiply(x, y))


def reciprocal_no_nan(x: Tensor) -> Tensor:
    return neutral.where(neutral.equal(x, 0), 0.0, neutral.reciprocal(x))


def xdivy(x: Any, y: Any) -> Tensor:
    return neutral.where(neutral.equal(x, 0), 0.0, neutral.divide(x, y))


def floordiv(x: Any, y: Any) -> Tensor:
    """Of floats, TensorFlow rounds the quotient down, infinite ones too; `//` in a rule is Python's."""
    if any(isinstance(v, Value) and is_float(v.node.type) for v in (x, y)):
        return neutral.floor(neutral.divide(x, y))
    return neutral.floor_divide(x, y)


def truncatediv(x: Any, y: Any) -> Tensor:
    return neutral.trunc(neutral.divide(x, y))


def squared_difference(x: Any, y: Any) -> Tensor:
    return neutral.square(neutral.subtract(x, y))


def erfcinv(x: Tensor) -> Tensor:
    return neutral.multiply(neutral.ndtri(neutral.multiply(x, 0.5)), -math.sqrt(0.5))


def polygamma(a: Any, x: Tensor) -> Tensor:
    if isinstance(a, Value) or int(a) != a:
        raise TypeError("polygamma of a static integer order only")
    return neutral.polygamma(int(a), x)


def polyval(coeffs: Any, x: Tensor) -> Tensor:
    """Horner's scheme, the highest power first."""
    if not isinstance(coeffs, list):
        raise TypeError(f"polyval takes a list of coefficients, not a {type(coeffs).__name__}")
    if not coeffs:
        return neutral.zeros_like(x)
    total = coeffs[0]
    for each in coeffs[1:]:
        total = neutral.add(each, neutral.multiply(total, x))
    return total


def where(condition: Tensor, x: Any, y: Any) -> Tensor:
    if x is None or y is None:
        raise TypeError("where without x and y gives indices; use tf.where(condition, x, y)")
    return neutral.where(condition, x, y)


def clip_by_value(t: Tensor, clip_value_min: Any, clip_value_max: Any) -> Tensor:
    """TensorFlow gives the lower end where the ends are exchanged, `clip` the upper."""
    ends = (clip_value_min, clip_value_max)
    if all(isinstance(end, int | float) for end in ends) and clip_value_min <= clip_value_max:
        return neutral.clip(t, *ends)
    return neutral.maximum(neutral.minimum(t, clip_value_max), clip_value_min)


def zeros_like(input: Tensor, dtype: Any) -> Tensor:
    return neutral.zeros_like(input, dtype)


def ones_like(input: Tensor, dtype: Any) -> Tensor:
    return neutral.ones_like(input, dtype)


def is_tensor(x: Any) -> bool:
    return x.node.type.kind == "tensor"


def as_number(value: Any) -> Any:
    """Return a static number of TensorFlow's as Python's; a symbolic one as it is."""
    return value if isinstance(value, Value | int | float) else float(value)


def leaky_relu(features: Tensor, alpha: Any) -> Tensor:
    slope = as_number(alpha)
    if isinstance(slope, Value):
        return neutral.where(features > 0, features, slope * features)
    return neutral.leaky_relu(features, slope)


def gelu(features: Tensor, approximate: bool) -> Tensor:
    return neutral.gelu(features, approximate)


def silu(features: Tensor, beta: Any) -> Tensor:
    """x sigmoid(beta x); also known as swish."""
    if isinstance(beta, int | float) and beta == 1:
        return neutral.silu(features)
    return neutral.multiply(features, neutral.sigmoid(neutral.multiply(beta, features)))


def elu(features: Tensor) -> Tensor:
    return neutral.elu(features)


def dropout(x: Tensor, rate: Any, noise_shape: Any, seed: Any) -> Tensor:
    """TensorFlow's scales the whole by 1 / (1 - rate) and keeps what it does not drop."""
    if noise_shape is not None or seed is not None:
        raise TypeError("dropout with noise_shape or seed; draws follow xg.use(..., key=...)")
    scale = 1.0 / (1.0 - as_number(rate))
    return neutral.where(neutral.rand_like(x) >= rate, x * scale, 0.0)


def sigmoid_cross_entropy(labels: Any, logits: Any) -> Tensor:
    """max(z, 0) - z labels + log(1 + exp(-|z|)), z being the logits."""
    tail = neutral.log1p(neutral.exp(-neutral.abs(logits)))
    return neutral.relu(logits) - neutral.multiply(logits, labels) + tail


def saturate_cast(value: Tensor, dtype: Any) -> Tensor:
    """To an integer dtype every cast of ours saturates; to a narrower float one it is not captured."""
    if not tf.as_dtype(dtype).is_integer:
        raise TypeError("saturate_cast to a float dtype; use tf.cast")
    return cast_to(value, dtype)


ALIASES: dict[Any, Handler] = {
    tf.abs: neutral.abs, tf.acos: neutral.acos, tf.acosh: neutral.acosh, tf.add: neutral.add,
    tf.add_n: add_n, tf.math.accumulate_n: add_n, tf.asin: neutral.asin, tf.asinh: neutral.asinh,
    tf.atan: neutral.atan, tf.atan2: neutral.atan2, tf.atanh: neutral.atanh, tf.cast: cast_to,
    tf.math.ceil: neutral.ceil, tf.clip_by_value: clip_by_value, tf.constant: constant,
    tf.convert_to_tensor: convert, tf.math.conj: identity, tf.cos: neutral.cos, tf.cosh: neutral.cosh,
    tf.math.digamma: neutral.digamma, tf.divide: neutral.divide,
    tf.math.divide_no_nan: divide_no_nan, tf.equal: neutral.equal, tf.math.erf: neutral.erf,
    tf.math.erfc: neutral.erfc, tf.math.erfcinv: erfcinv, tf.math.erfinv: neutral.erfinv,
    tf.exp: neutral.exp, tf.math.expm1: neutral.expm1, tf.floor: neutral.floor,
    tf.math.floordiv: floordiv, tf.math.floormod: neutral.remainder,
    tf.greater: neutral.greater, tf.greater_equal: neutral.greater_equal, tf.identity: identity,
    tf.identity_n: identity, tf.is_tensor: is_tensor, tf.less: neutral.less,
    tf.less_equal: neutral.less_equal,
    tf.math.lgamma: neutral.lgamma, tf.math.log: neutral.log, tf.math.log1p: neutral.log1p,
    tf.math.log_sigmoid: neutral.log_sigmoid, tf.logical_and: neutral.logical_and,
    tf.logical_not: neutral.logical_not, tf.logical_or: neutral.logical_or,
    tf.math.logical_xor: neutral.logical_xor, tf.maximum: neutral.maximum,
    tf.minimum: neutral.minimum, tf.multiply: neutral.multiply,
    tf.math.multiply_no_nan: multiply_no_nan, tf.math.ndtri: neutral.ndtri,
    tf.negative: neutral.negative, tf.not_equal: neutral.not_equal, tf.ones_like: ones_like,
    tf.math.is_finite: neutral.isfinite, tf.math.is_inf: neutral.isinf,
    tf.math.is_nan: neutral.isnan, tf.math.polygamma: polygamma, tf.math.polyval: polyval,
    tf.pow: neutral.pow, tf.math.real: identity, tf.realdiv: neutral.divide,
    tf.math.reciprocal: neutral.reciprocal, tf.math.reciprocal_no_nan: reciprocal_no_nan,
    tf.math.rint: neutral.round, tf.round: neutral.round, tf.math.rsqrt: neutral.rsqrt,
    tf.saturate_cast: saturate_cast, tf.scalar_mul: neutral.multiply, tf.sigmoid: neutral.sigmoid,
    tf.sign: neutral.sign, tf.sin: neutral.sin, tf.sinh: neutral.sinh, tf.sqrt: neutral.sqrt,
    tf.square: neutral.square, tf.math.squared_difference: squared_difference,
    tf.stop_gradient: neutral.stop_gradient, tf.subtract: neutral.subtract, tf.tan: neutral.tan,
    tf.tanh: neutral.tanh, tf.truediv: neutral.divide, tf.truncatediv: truncatediv,
    tf.truncatemod: neutral.fmod, tf.where: where, tf.math.xdivy: xdivy,
    tf.math.xlog1py: neutral.xlog1py, tf.math.xlogy: neutral.xlogy, tf.zeros_like: zeros_like,
    tf.nn.dropout: dropout, tf.nn.elu: elu, tf.nn.gelu: gelu, tf.nn.leaky_relu: leaky_relu,
    tf.nn.relu: neutral.relu, tf.nn.relu6: neutral.relu6, tf.nn.selu: neutral.selu,
    tf.nn.sigmoid_cross_entropy_with_logits: sigmoid_cross_entropy, tf.nn.silu: silu,
    tf.nn.softplus: neutral.softplus, tf.nn.softsign: neutral.soft_sign,
    tf.bitwise.bitwise_and: neutral.bitwise_and, tf.bitwise.bitwise_or: neutral.bitwise_or,
    tf.bitwise.bitwise_xor: neutral.bitwise_xor, tf.bitwise.invert: neutral.bitwise_invert,
    tf.bitwise.left_shift: neutral.bitwise_left_shift,
    tf.bitwise.right_shift: neutral.bitwise_right_shift,
}  # fmt: skip
