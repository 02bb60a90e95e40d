"""JAX's dialect, elementwise functions and activations; see `capture.py`."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy import special

from multigrad.capture import numpy as np_dialect
from multigrad.ir import neutral
from multigrad.ir.record import Value
from multigrad.ir.types import BOOL

Tensor = Any


def as_condition(condition: Any) -> Any:
    """jax takes any number for a condition."""
    if isinstance(condition, Value) and condition.node.type.dtype != BOOL:
        return condition != 0
    return condition


def where(condition: Any, x: Any = None, y: Any = None) -> Tensor:
    if x is None or y is None:
        raise TypeError("where with a condition alone gives indices; give both values")
    return neutral.where(as_condition(condition), x, y)


def clip(arr: Tensor, min: Any = None, max: Any = None) -> Tensor:
    return neutral.clip(arr, min, max)


def piecewise(x: Tensor, condlist: Any, funclist: Any) -> Tensor:
    """The value or the function of the last condition that holds; 0, or one more value, where none does."""
    conditions = list(condlist) if isinstance(condlist, list | tuple) else [condlist]
    values = [f(x) if callable(f) else f for f in funclist]
    result: Any = 0.0
    if len(values) == len(conditions) + 1:
        result = values.pop()
    for condition, value in zip(conditions, values, strict=True):
        result = neutral.where(condition, value, result)
    return result if isinstance(result, Value) else neutral.full_like(x, result)


def isposinf(x: Tensor) -> Tensor:
    return neutral.equal(x, math.inf)


def isneginf(x: Tensor) -> Tensor:
    return neutral.equal(x, -math.inf)


def divmod_(x1: Any, x2: Any) -> tuple[Tensor, Tensor]:
    return neutral.floor_divide(x1, x2), neutral.remainder(x1, x2)


def round_(a: Tensor, decimals: int = 0) -> Tensor:
    return np_dialect.round_(a, decimals)


def identity(x: Tensor) -> Tensor:
    return x


def signbit(x: Tensor) -> Tensor:
    return neutral.signbit(x)


def nan_to_num(x: Tensor, copy: bool = True, nan: Any = 0.0, posinf: Any = None,
               neginf: Any = None) -> Tensor:  # fmt: skip
    return neutral.nan_to_num(x, nan, posinf, neginf)


# --- jax.nn ------------------------------------------------------------------------------------------------
def leaky_relu(x: Tensor, negative_slope: Any = 0.01) -> Tensor:
    if isinstance(negative_slope, Value):
        return neutral.where(x >= 0, x, negative_slope * x)
    return neutral.leaky_relu(x, negative_slope)


def elu(x: Tensor, alpha: Any = 1.0) -> Tensor:
    if isinstance(alpha, Value):
        return neutral.where(x > 0, x, alpha * neutral.expm1(neutral.where(x > 0, 0.0, x)))
    return neutral.elu(x, alpha)


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return neutral.celu(x, alpha)


def gelu(x: Tensor, approximate: bool = True) -> Tensor:
    return neutral.gelu(x, approximate)


def squareplus(x: Tensor, b: float = 4) -> Tensor:
    return neutral.squareplus(x, b)


def hard_tanh(x: Tensor) -> Tensor:
    return neutral.hard_tanh(x)


# --- jax.scipy.special -------------------------------------------------------------------------------------
def log_ndtr(x: Tensor, series_order: int = 3) -> Tensor:
    return neutral.log_ndtr(x)


def entr(x: Tensor) -> Tensor:
    """-x log(x), zero at zero, -inf below."""
    return neutral.where(neutral.less(x, 0), -math.inf, -neutral.xlogy(x, x))


UNARY: dict[Any, Any] = {
    jnp.abs: neutral.abs, jnp.absolute: neutral.abs, jnp.fabs: neutral.abs, jnp.acos: neutral.acos,
    jnp.arccos: neutral.acos, jnp.acosh: neutral.acosh, jnp.arccosh: neutral.acosh,
    jnp.asin: neutral.asin, jnp.arcsin: neutral.asin, jnp.asinh: neutral.asinh,
    jnp.arcsinh: neutral.asinh, jnp.atan: neutral.atan, jnp.arctan: neutral.atan,
    jnp.atanh: neutral.atanh, jnp.arctanh: neutral.atanh, jnp.cbrt: neutral.cbrt,
    jnp.ceil: neutral.ceil, jnp.cos: neutral.cos, jnp.cosh: neutral.cosh, jnp.deg2rad: neutral.deg2rad,
    jnp.radians: neutral.deg2rad, jnp.rad2deg: neutral.rad2deg, jnp.degrees: neutral.rad2deg,
    jnp.exp: neutral.exp, jnp.exp2: neutral.exp2, jnp.expm1: neutral.expm1, jnp.floor: neutral.floor,
    jnp.isfinite: neutral.isfinite, jnp.isinf: neutral.isinf, jnp.isnan: neutral.isnan,
    jnp.isposinf: isposinf, jnp.isneginf: isneginf, jnp.log: neutral.log, jnp.log10: neutral.log10,
    jnp.log1p: neutral.log1p, jnp.log2: neutral.log2, jnp.logical_not: neutral.logical_not,
    jnp.negative: neutral.negative, jnp.positive: identity, jnp.conj: identity,
    jnp.conjugate: identity, jnp.real: identity, jnp.reciprocal: neutral.reciprocal,
    jnp.rint: neutral.round, jnp.round: round_, jnp.around: round_, jnp.sign: neutral.sign,
    jnp.signbit: signbit, jnp.sin: neutral.sin, jnp.sinc: neutral.sinc, jnp.sinh: neutral.sinh,
    jnp.sqrt: neutral.sqrt, jnp.square: neutral.square, jnp.tan: neutral.tan, jnp.tanh: neutral.tanh,
    jnp.trunc: neutral.trunc, jnp.bitwise_not: neutral.bitwise_invert,
    jnp.bitwise_invert: neutral.bitwise_invert, jnp.invert: neutral.bitwise_invert,
    jnp.nan_to_num: nan_to_num,
}  # fmt: skip

BINARY: dict[Any, Any] = {
    jnp.add: neutral.add, jnp.subtract: neutral.subtract, jnp.multiply: neutral.multiply,
    jnp.divide: neutral.divide, jnp.true_divide: neutral.divide, jnp.power: neutral.pow,
    jnp.pow: neutral.pow, jnp.float_power: neutral.pow, jnp.maximum: neutral.maximum,
    jnp.minimum: neutral.minimum, jnp.fmax: neutral.fmax, jnp.fmin: neutral.fmin,
    jnp.floor_divide: neutral.floor_divide, jnp.remainder: neutral.remainder,
    jnp.mod: neutral.remainder, jnp.fmod: neutral.fmod, jnp.divmod: divmod_,
    jnp.copysign: neutral.copysign, jnp.hypot: neutral.hypot, jnp.arctan2: neutral.atan2,
    jnp.atan2: neutral.atan2, jnp.logaddexp: neutral.logaddexp, jnp.less: neutral.less,
    jnp.less_equal: neutral.less_equal, jnp.greater: neutral.greater,
    jnp.greater_equal: neutral.greater_equal, jnp.equal: neutral.equal,
    jnp.not_equal: neutral.not_equal, jnp.logical_and: neutral.logical_and,
    jnp.logical_or: neutral.logical_or, jnp.logical_xor: neutral.logical_xor,
    jnp.bitwise_and: neutral.bitwise_and, jnp.bitwise_or: neutral.bitwise_or,
    jnp.bitwise_xor: neutral.bitwise_xor, jnp.left_shift: neutral.bitwise_left_shift,
    jnp.right_shift: neutral.bitwise_right_shift,
    jnp.bitwise_left_shift: neutral.bitwise_left_shift,
    jnp.bitwise_right_shift: neutral.bitwise_right_shift, jnp.heaviside: np_dialect.heaviside,
    jnp.where: where, jnp.clip: clip, jnp.select: np_dialect.select, jnp.piecewise: piecewise,
}  # fmt: skip

ACTIVATIONS: dict[Any, Any] = {
    jax.nn.celu: celu, jax.nn.elu: elu, jax.nn.gelu: gelu, jax.nn.hard_sigmoid: neutral.hard_sigmoid,
    jax.nn.hard_silu: neutral.hard_silu, jax.nn.hard_swish: neutral.hard_silu,
    jax.nn.hard_tanh: hard_tanh, jax.nn.identity: identity, jax.nn.leaky_relu: leaky_relu,
    jax.nn.log_sigmoid: neutral.log_sigmoid, jax.nn.mish: neutral.mish, jax.nn.relu: neutral.relu,
    jax.nn.relu6: neutral.relu6, jax.nn.selu: neutral.selu, jax.nn.sigmoid: neutral.sigmoid,
    jax.nn.silu: neutral.silu, jax.nn.swish: neutral.silu, jax.nn.soft_sign: neutral.soft_sign,
    jax.nn.softplus: neutral.softplus, jax.nn.sparse_plus: neutral.sparse_plus,
    jax.nn.sparse_sigmoid: neutral.sparse_sigmoid, jax.nn.squareplus: squareplus,
    jax.nn.tanh: neutral.tanh,
}  # fmt: skip

SPECIAL: dict[Any, Any] = {
    special.digamma: neutral.digamma, special.entr: entr, special.erf: neutral.erf,
    special.erfc: neutral.erfc, special.erfinv: neutral.erfinv, special.expit: neutral.sigmoid,
    special.gammaln: neutral.lgamma, special.log_ndtr: log_ndtr, special.logit: neutral.logit,
    special.ndtr: neutral.ndtr, special.ndtri: neutral.ndtri, special.polygamma: neutral.polygamma,
    special.xlog1py: neutral.xlog1py, special.xlogy: neutral.xlogy,
}  # fmt: skip

ALIASES: dict[Any, Any] = {**UNARY, **BINARY, **ACTIVATIONS, **SPECIAL}
