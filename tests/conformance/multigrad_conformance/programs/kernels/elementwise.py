"""What elementwise ops mean, in float64: written from mathematics, not from the library's own NumPy
meaning.

A row gives the function, how many eps a kernel may be off, and what these are eps of where it is
not the result: the largest value that any formula for it meets on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy import special

from ...differences import DESIGNED, allowed, unsettled
from ..bounded import Bounded, Function, elementwise

Array = Any
FAR = 100.0  # the reduction of larger angles has its own rounding


@dataclass(frozen=True)
class Kernel:
    """A function of floats, elementwise."""

    function: Function
    ulps: float = 4
    scale: Function | None = None
    breaks: Function | None = None
    zero_sign: bool = False
    unknown: Function | None = None  # where no bound is given


# --- functions ------------------------------------------------------------------------------------


def sinc(x: Array) -> Array:
    return np.where(x == 0, 1.0, np.sin(np.pi * x) / np.where(x == 0, 1.0, np.pi * x))


def lgamma(x: Array) -> Array:
    return np.where(np.isinf(x), np.inf, special.gammaln(x))  # SciPy: -inf at -inf


def lgamma_scale(x: Array, y: Array) -> Array:
    # Below zero by reflection, which cancels.
    reflected = special.gammaln(1 - np.minimum(x, 0).astype(np.float64))
    return np.abs(y) + 8 + np.where(np.isfinite(reflected), reflected, 0)


def digamma(x: Array) -> Array:
    """SciPy 1.17 loses every digit of psi near -1."""
    left = special.psi(1 - x) - np.pi / np.tan(np.pi * (x - np.rint(x)))
    return np.where(x < 0, np.where(x == np.floor(x), np.nan, left), special.psi(x))


def pole(x: Array) -> Array:
    """Between which two poles of the gamma function x lies."""
    return np.where(x > 0, 1.0, np.floor(x) + 0.5 * (x == np.floor(x)))


def ends_of_tan(x: Array) -> Array:
    return np.floor(x / np.pi + 0.5)


def log_sigmoid(x: Array) -> Array:
    return np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))


def gelu(x: Array, approximate: bool) -> Array:
    if approximate:
        return x * special.expit(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    return x * special.ndtr(x)


def elu(x: Array, alpha: float) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def celu(x: Array, alpha: float) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / alpha))


def selu(x: Array) -> Array:
    return 1.0507009873554805 * elu(x, 1.6732632423543772)


def mish(x: Array) -> Array:
    return x * np.tanh(np.logaddexp(x, 0))


def squareplus(x: Array, b: float) -> Array:
    root = np.hypot(x, np.sqrt(b))
    return np.where(
        x > 0, x / 2 + root / 2, b / 2 / (root - x) if b else np.where(np.isnan(x), x, 0)
    )


def sparse_plus(x: Array) -> Array:
    return np.where(x >= 1, x, np.square(np.clip(x, -1, 1) + 1) / 4)


def soft_shrink(x: Array, lambd: float) -> Array:
    return np.where(np.abs(x) <= lambd, 0, x - np.copysign(lambd, x))


def polygamma(x: Array, n: int) -> Array:
    beyond = np.where(x == 0, (-1.0) ** (n + 1) * np.inf, np.nan)
    values = (-1) ** (n + 1) * special.factorial(n) * special.zeta(n + 1, np.where(x > 0, x, 1.0))
    return np.where(x > 0, values, beyond)


def xlogy(a: Array, b: Array) -> Array:
    return np.where((a == 0) & ~np.isnan(b), 0, a * np.log(b))


def xlog1py(a: Array, b: Array) -> Array:
    return np.where((a == 0) & ~np.isnan(b), 0, a * np.log1p(b))


def clip(x: Array, low: Array, high: Array) -> Array:
    return np.minimum(np.maximum(x, low), high)


def sigmoid_tail(x: Array, y: Array) -> Array:
    return np.ones_like(x)


def tail(x: Array, y: Array) -> Array:
    return np.abs(y) * (1 + x * x)  # the square in the exponent


def of_x(x: Array, y: Array) -> Array:
    return np.abs(x)


def plus(size: float) -> Callable[..., Array]:
    def scale(*arrays: Array) -> Array:
        return np.abs(arrays[-1]) + size

    return scale


def x_plus_one(x: Array, y: Array) -> Array:
    return np.abs(x) + 1


def beyond(size: float) -> Function:
    def far(*operands: Array) -> Array:
        return np.isfinite(operands[0]) & (np.abs(operands[0]) > size)

    return far


def is_unsigned(a: Array, b: Array) -> Array:
    return np.isnan(b)  # a NaN may have either sign


def whole_quotient(a: Array, b: Array) -> Array:
    return np.floor(a / b)


def cut_quotient(a: Array, b: Array) -> Array:
    return np.trunc(a / b)


def at_zero_of(logarithm: Function) -> Function:
    """Whether a is zero, where the product with a logarithm that is not finite jumps to 0."""

    def side(a: Array, b: Array) -> Array:
        log = logarithm(b)
        return np.where(np.isfinite(log) | np.isnan(b), 0.0, np.sign(a))

    return side


def sign_of_second(a: Array, b: Array) -> Array:
    return np.sign(b)


def sign_of(x: Array, **attrs: float) -> Array:
    return np.sign(x)


def side_of_power(a: Array, b: Array) -> Array:
    """The sign of the base, and below zero also between which integers the exponent lies, or that
    it is one.
    """
    return np.sign(a) + 3 * np.where(a < 0, np.floor(b) + 0.5 * (b == np.floor(b)), 0.0)


KERNELS: dict[str, Kernel] = {
    # arithmetic
    "add": Kernel(np.add, 1), "sub": Kernel(np.subtract, 1), "mul": Kernel(np.multiply, 1),
    "div": Kernel(np.true_divide, 2, breaks=sign_of_second, zero_sign=True),
    "pow": Kernel(np.power, 4, breaks=side_of_power, zero_sign=True),
    "maximum": Kernel(np.maximum, 0), "minimum": Kernel(np.minimum, 0),
    "fmax": Kernel(np.fmax, 0), "fmin": Kernel(np.fmin, 0),
    "neg": Kernel(np.negative, 0), "abs": Kernel(np.abs, 0), "sign": Kernel(np.sign, 0),
    "square": Kernel(np.square, 1), "sqrt": Kernel(np.sqrt, 2),
    "rsqrt": Kernel(lambda x: 1 / np.sqrt(x), 4, zero_sign=True),
    "reciprocal": Kernel(lambda x: 1 / x, 2, breaks=sign_of, zero_sign=True),
    "floor": Kernel(np.floor, 0), "ceil": Kernel(np.ceil, 0), "round": Kernel(np.rint, 0),
    "trunc": Kernel(np.trunc, 0), "frac": Kernel(lambda x: x - np.trunc(x), 0, breaks=np.trunc),
    "cbrt": Kernel(np.cbrt), "hypot": Kernel(np.hypot),
    "nextafter": Kernel(np.nextafter),
    "copysign": Kernel(np.copysign, 0, zero_sign=True, unknown=is_unsigned),
    "floor_divide": Kernel(np.floor_divide, 1, breaks=sign_of_second, zero_sign=True),
    "remainder": Kernel(np.remainder, 1, lambda a, b, y: np.fmax(np.abs(b), np.abs(y)),
        whole_quotient),
    "fmod": Kernel(np.fmod, 1, None, cut_quotient),
    "atan2": Kernel(np.arctan2, zero_sign=True),
    # exponential and trigonometric
    "exp": Kernel(np.exp), "expm1": Kernel(np.expm1), "log": Kernel(np.log),
    "log1p": Kernel(np.log1p),
    "exp2": Kernel(np.exp2), "log2": Kernel(np.log2), "log10": Kernel(np.log10),
    "logaddexp": Kernel(np.logaddexp, scale=plus(1)),
    "xlogy": Kernel(xlogy, breaks=at_zero_of(np.log)),
    "xlog1py": Kernel(xlog1py, breaks=at_zero_of(np.log1p)),
    "sin": Kernel(np.sin, unknown=beyond(FAR)), "cos": Kernel(np.cos, unknown=beyond(FAR)),
    "tan": Kernel(np.tan, breaks=ends_of_tan, unknown=beyond(FAR)),
    "sinc": Kernel(sinc, scale=sigmoid_tail, unknown=beyond(FAR / 4)),
    "asin": Kernel(np.arcsin), "acos": Kernel(np.arccos), "atan": Kernel(np.arctan),
    "sinh": Kernel(np.sinh), "cosh": Kernel(np.cosh), "tanh": Kernel(np.tanh),
    "asinh": Kernel(np.arcsinh), "acosh": Kernel(np.arccosh), "atanh": Kernel(np.arctanh),
    "deg2rad": Kernel(np.deg2rad), "rad2deg": Kernel(np.rad2deg),
    # error and gamma functions
    "erf": Kernel(special.erf), "erfc": Kernel(special.erfc, scale=tail),
    "erfinv": Kernel(special.erfinv),
    "ndtr": Kernel(special.ndtr, scale=tail), "ndtri": Kernel(special.ndtri),
    "log_ndtr": Kernel(special.log_ndtr, scale=tail),
    "i0e": Kernel(special.i0e), "i1e": Kernel(special.i1e, scale=lambda x, y: 3 * np.abs(y)),
    "lgamma": Kernel(lgamma, scale=lgamma_scale, breaks=pole),
    "digamma": Kernel(digamma, scale=plus(2.5), breaks=pole, zero_sign=True),
    "polygamma": Kernel(polygamma, breaks=sign_of, zero_sign=True, unknown=beyond(1e10)),
    # activations
    "sigmoid": Kernel(special.expit, scale=sigmoid_tail), "log_sigmoid": Kernel(log_sigmoid),
    "logit": Kernel(lambda x: np.log(x) - np.log1p(-x), scale=plus(1)),
    "relu": Kernel(lambda x: np.maximum(x, 0), 0), "relu6": Kernel(lambda x: np.clip(x, 0, 6), 0),
    "leaky_relu": Kernel(lambda x, slope: np.where(x > 0, x, slope * x), 2),
    "elu": Kernel(elu, scale=lambda x, y: np.abs(y) + 1), "celu": Kernel(celu),
    "selu": Kernel(selu),
    "gelu": Kernel(gelu, scale=of_x), "silu": Kernel(lambda x: x * special.expit(x), scale=of_x),
    "mish": Kernel(mish, scale=of_x),
    "softplus": Kernel(lambda x: np.logaddexp(x, 0), scale=x_plus_one),
    "squareplus": Kernel(squareplus), "sparse_plus": Kernel(sparse_plus),
    "sparse_sigmoid": Kernel(lambda x: np.clip((x + 1) / 2, 0, 1)),
    "soft_sign": Kernel(lambda x: x / (1 + np.abs(x))),
    "tanh_shrink": Kernel(lambda x: x - np.tanh(x), scale=of_x),
    "soft_shrink": Kernel(soft_shrink, 2),
    "hard_shrink": Kernel(lambda x, lambd: np.where(np.abs(x) <= lambd, 0, x), 0),
    "threshold": Kernel(lambda x, threshold, default: np.where(x <= threshold, default, x), 0,
        breaks=lambda x, threshold, default: 1.0 * (x > threshold)),
    "hard_tanh": Kernel(lambda x, min, max: np.clip(x, min, max), 0),
    "hard_sigmoid": Kernel(lambda x: np.clip(x + 3, 0, 6) / 6, scale=sigmoid_tail),
    "hard_silu": Kernel(lambda x: x * (np.clip(x + 3, 0, 6) / 6), scale=of_x),
    "heaviside": Kernel(lambda x: np.where(x > 0, 1.0, 0.0), 0),
    "clip": Kernel(clip, 0),
}  # fmt: skip
# Their numbers are rounded to the dtype before they meet a tensor.
ROUNDED_ATTRS = ("slope", "lambd", "threshold", "default", "min", "max")


def evaluate(
    name: str,
    operands: tuple[Bounded, ...],
    attrs: dict[str, Any],
    dtype: Any,
    backend: str = "",
) -> Bounded:
    """Evaluate a kernel on floats, as good as it is on a backend (by name; "": as all are)."""
    row, ulps = KERNELS[name], KERNELS[name].ulps
    if backend and ulps:
        ulps = max(ulps, allowed(backend, name, "value", dtype) if ulps >= DESIGNED else 0.0)
    numbers = {
        key: float(np.asarray(value, dtype)) if key in ROUNDED_ATTRS else value
        for key, value in attrs.items()
    }

    result = elementwise(
        partial(row.function, **numbers),
        *operands,
        ulps=ulps,
        scale=row.scale,
        breaks=row.breaks and partial(row.breaks, **numbers),
        zero_sign=row.zero_sign,
        dtype=dtype,
    )
    far = np.asarray(False)
    if backend:  # where it declares that it promises nothing
        far = unsettled(backend, name, np.asarray(operands[0].value, dtype))
    if row.unknown is not None:
        far = far | row.unknown(*(x.value for x in operands))
    return Bounded(result.value, np.where(far, np.inf, result.error), dtype, result.signed)
