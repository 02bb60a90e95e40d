"""The rows of TensorFlow's kernel table that rules of the library and activations need not: other
elementary functions and reductions, special functions, indices, products, matrices, orders, and
what shards exchange.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from multigrad.core import ops
from multigrad.core.backend.rows import rows_of
from multigrad.core.ir.op import Op
from multigrad.engine import random
from multigrad.engine.backend.array_rows import compositions
from multigrad.engine.ops.families import IN_FLOAT32
from multigrad.engine.ops.special_functions import digamma_by_reflection, polygamma_by_zeta

from .. import distributed
from ..core.kernels import elementwise
from ..core.kernels import ops as core
from ..core.kernels.ops import Axis, over, over_axes
from . import arrays, shapes
from . import random as random_kernels
from .random import NAMESPACE

Tensor: TypeAlias = tf.Tensor
TINY = {tf.float32: 2.0**-126, tf.float64: 2.0**-1022}
INTEGERS = {2: tf.int16, 4: tf.int32, 8: tf.int64}


# --- elementary functions, reductions and shapes --------------------------------------------------
def signbit(x: Tensor) -> Tensor:
    return tf.bitcast(x, INTEGERS[x.dtype.size]) < 0


def fmod(a: Tensor, b: Tensor) -> Tensor:
    return tf.raw_ops.Mod(x=a, y=b)


def atan2(a: Tensor, b: Tensor) -> Tensor:
    # tensorflow 2.21: pi / 4 for a subnormal number over zero.
    a, b = (tf.where(tf.abs(x) < TINY[x.dtype], 0.0 * x, x) for x in (a, b))
    return tf.atan2(a, b)


def exp2(x: Tensor) -> Tensor:
    return tf.pow(tf.constant(2.0, x.dtype), x)


def log2(x: Tensor) -> Tensor:
    return tf.math.log(x) * (1 / math.log(2))


def log10(x: Tensor) -> Tensor:
    return tf.math.log(x) * (1 / math.log(10))


def nan_to_num(x: Tensor, *, nan: float, posinf: float | None, neginf: float | None) -> Tensor:
    high = x.dtype.max if posinf is None else tf.constant(posinf, x.dtype)
    low = x.dtype.min if neginf is None else tf.constant(neginf, x.dtype)
    numbers = tf.where(x == math.inf, high, tf.where(x == -math.inf, low, x))
    return tf.where(tf.math.is_nan(x), tf.constant(nan, x.dtype), numbers)


def nextafter(a: Any, b: Any) -> Tensor:
    """Return the next number of the dtype towards b; TensorFlow (2.21) has no 16-bit kernel."""
    dtype = next(value.dtype for value in (a, b) if tf.is_tensor(value))
    a, b = (tf.convert_to_tensor(x, dtype) for x in (a, b))
    if dtype.size != 2:
        return tf.math.nextafter(a, b)
    a, b = a + tf.zeros_like(b), b + tf.zeros_like(a)
    # floats of one sign are ordered like their bits
    bits = tf.bitcast(a, tf.int16)
    next_bits = tf.where((a < b) == (a > 0), bits + 1, bits - 1)
    # as int16, -32767 is the sign's bit and 1
    smallest_bits = tf.where(b > 0, tf.ones_like(bits), tf.constant(-32767, tf.int16))
    result = tf.bitcast(tf.where(a == 0, smallest_bits, next_bits), dtype)
    result = tf.where(a == b, b, result)
    return tf.where(tf.math.is_nan(a) | tf.math.is_nan(b), a + b, result)


def bitwise_left_shift(a: Any, b: Any) -> Tensor:
    # The kernel clips the amount to the last bit, where the result must be 0.
    a, b, last_bit = as_integers(a, b)
    result = tf.bitwise.left_shift(a, b)
    return tf.where((b < 0) | (b > last_bit), tf.zeros_like(result), result)


def bitwise_right_shift(a: Any, b: Any) -> Tensor:
    a, b, last_bit = as_integers(a, b)
    return tf.bitwise.right_shift(a, tf.where((b < 0) | (b > last_bit), last_bit, b))


def as_integers(a: Any, b: Any) -> tuple[Tensor, Tensor, Tensor]:
    is_wide = any(tf.is_tensor(x) and x.dtype == tf.int64 for x in (a, b))
    dtype = tf.int64 if is_wide else tf.int32
    return tf.cast(a, dtype), tf.cast(b, dtype), tf.constant(8 * dtype.size - 1, dtype)


def count_nonzero(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    ones = tf.cast(tf.not_equal(x, tf.zeros([], x.dtype)), tf.int64)
    return tf.cast(tf.reduce_sum(ones, over(x, axis), keepdims), x.dtype)


def softmax(x: Tensor, *, axis: Axis) -> Tensor:
    axis = over(x, axis)
    # not tf.nn.softmax, which takes no tuple of axes and is off by 1.8 eps in float16
    powers = tf.exp(x - tf.reduce_max(x, axis, True))
    return powers / tf.reduce_sum(powers, axis, True)


def log_softmax(x: Tensor, *, axis: Axis) -> Tensor:
    axis = over(x, axis)
    shifted = x - tf.reduce_max(x, axis, True)
    return shifted - tf.math.log(tf.reduce_sum(tf.exp(shifted), axis, True))


def reshape_like(x: Tensor, like: Tensor) -> Tensor:
    return tf.ensure_shape(tf.reshape(x, tf.shape(like)), like.shape)


# The functions of `tf` that have the names of their ops.
SAME = "acos acosh asin asinh atanh reshape squeeze tan"
ELEMENTARY: dict[Op, Callable[..., Any]] = {
    **rows_of(vars()),
    **rows_of({name: getattr(tf, name) for name in SAME.split()}),
    ops.PROD: over_axes(tf.reduce_prod),
    ops.LOGSUMEXP: over_axes(tf.reduce_logsumexp),
    ops.LOG_SIGMOID: tf.math.log_sigmoid,
}


# --- special functions ----------------------------------------------------------------------------


def erfinv(x: Tensor) -> Tensor:
    # tensorflow 2.21: tf.math.erfinv is ndtri of (x + 1) / 2, and is off by 6e6 eps near zero.
    values = tf.cast(x, tf.float64)
    # 1 - 2^-53 is the largest number below 1
    inverse = random.erfinv(
        elementwise.clip(values, -1.0 + 2.0**-53, 1.0 - 2.0**-53), NAMESPACE, True
    )
    # Constants: a derivative of the branch that is not taken would be NaN.
    inf, nan = tf.constant(math.inf, values.dtype), tf.constant(math.nan, values.dtype)
    limits = tf.where(values == 1.0, inf, tf.where(values == -1.0, -inf, nan))
    return tf.cast(tf.where(tf.abs(values) < 1.0, inverse, limits), x.dtype)


def digamma(x: Tensor) -> Tensor:
    # TensorFlow (2.21) gives NaN at 0; the where within keeps gradients finite elsewhere
    pole, elsewhere = -1.0 / tf.where(x == 0, x, 1.0), tf.where(x == 0, 1.0, x)
    return tf.where(x == 0, pole, digamma_by_reflection(tf, tf.math.digamma, elsewhere))


def polygamma(x: Tensor, *, n: int) -> Tensor:
    return polygamma_by_zeta(tf, tf.math.zeta, x, n)


SPECIAL: dict[Op, Callable[..., Any]] = {
    ops.ERFINV: erfinv,
    ops.NDTRI: tf.math.ndtri,
    ops.LGAMMA: tf.math.lgamma,
    ops.DIGAMMA: digamma,
    ops.POLYGAMMA: polygamma,
    ops.I0E: tf.math.special.bessel_i0e,
    ops.I1E: tf.math.special.bessel_i1e,
}
OWN: dict[Op, Callable[..., Any]] = {
    **ELEMENTARY,
    **SPECIAL,
    **arrays.OPS,
    **distributed.OPS,
    **core.OWN,
}
OWN |= random_kernels.OPS
WIDE = (
    *(*IN_FLOAT32, ops.CUMSUM, ops.CUMPROD, ops.CONV, ops.EINSUM, ops.MATMUL, ops.LGAMMA),
    *(ops.ATAN2, ops.FMOD, ops.EXP2, ops.LOG2, ops.LOG10, ops.LOGADDEXP, ops.LOG_SIGMOID),
    *(ops.PROD, ops.LOGSUMEXP, ops.SOFTMAX, ops.LOG_SOFTMAX),
)
OWN |= {op: elementwise.widened(OWN[op]) for op in WIDE}
OPS = {**compositions(OWN, elementwise.widened, shapes.positions), **OWN}
