"""The rows of TensorFlow's kernel table that elementwise rules and reductions need not: special
functions, indices, products, matrices, orders, and what shards exchange.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from multigrad.core import ops
from multigrad.core.ir.op import Op
from multigrad.engine import random
from multigrad.engine.backend.array_rows import compositions
from multigrad.engine.ops.families import IN_FLOAT32
from multigrad.engine.ops.special_functions import digamma_by_reflection, polygamma_by_zeta

from .. import distributed
from ..core.kernels import elementwise
from ..core.kernels import ops as core
from . import arrays, shapes
from . import random as random_kernels
from .random import NAMESPACE

Tensor: TypeAlias = tf.Tensor


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
OWN: dict[Op, Callable[..., Any]] = {**SPECIAL, **arrays.OPS, **distributed.OPS, **core.OWN}
OWN |= random_kernels.OPS
WIDE = (*IN_FLOAT32, ops.CUMSUM, ops.CUMPROD, ops.CONV, ops.EINSUM, ops.MATMUL, ops.LGAMMA)
OWN |= {op: elementwise.widened(OWN[op]) for op in WIDE}
OPS = {**compositions(OWN, elementwise.widened, shapes.positions), **OWN}
