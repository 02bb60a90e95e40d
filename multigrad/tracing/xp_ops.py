"""The dialect `xg.xp`: the functions that record one op each; see `xp_all.py`.

Written from the op table by `python -m multigrad.cli.xp_functions`; change a row instead.
"""

from __future__ import annotations

from typing import Any

from .. import ops
from .axes import Axis, axes_of, one_axis
from .trace import apply

Tensor = Any

__all__ = [
    "abs", "acos", "acosh", "add", "all", "any", "argmax", "argmax_mask", "argmin", "argmin_mask",
    "argsort", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_left_shift",
    "bitwise_right_shift", "cbrt", "ceil", "celu", "cholesky", "copysign", "cos", "cosh",
    "count_nonzero", "cummax", "cummin", "cumprod", "cumsum", "deg2rad", "det", "digamma", "divide",
    "elu", "equal", "erf", "erfc", "erfinv", "exp", "exp2", "expand_dims", "expm1", "flip", "floor",
    "floor_divide", "fmax", "fmin", "fmod", "frac", "gelu", "glu", "greater", "greater_equal",
    "hard_shrink", "hard_sigmoid", "hard_silu", "hard_tanh", "heaviside", "hypot", "i0e", "i1e",
    "inv", "isfinite", "isinf", "isnan", "leaky_relu", "lerp", "less", "less_equal", "lgamma",
    "log", "log1p", "log2", "log10", "log_ndtr", "log_sigmoid", "log_softmax", "logabsdet",
    "logaddexp", "logcumsumexp", "logical_and", "logical_not", "logical_or", "logical_xor", "logit",
    "logsumexp", "matmul", "max", "maximum", "mean", "median", "min", "minimum", "mish", "moveaxis",
    "multiply", "ndtr", "ndtri", "negative", "nextafter", "not_equal", "pinv", "prod", "rad2deg",
    "reciprocal", "relu", "relu6", "remainder", "reshape_like", "round", "rsqrt", "selu", "sigmoid",
    "sign", "signbit", "signdet", "silu", "sin", "sinc", "sinh", "soft_shrink", "soft_sign",
    "softmax", "softplus", "sort", "sparse_plus", "sparse_sigmoid", "sqrt", "square", "squareplus",
    "squeeze", "std", "stop_gradient", "subtract", "sum", "sum_to", "swapaxes", "tan", "tanh",
    "tanh_shrink", "threshold", "trunc", "var", "where", "xlog1py", "xlogy",
]  # fmt: skip


def add(a: Tensor, b: Tensor) -> Tensor:
    """a + b."""
    return apply(ops.ADD, a, b)


def subtract(a: Tensor, b: Tensor) -> Tensor:
    """a - b."""
    return apply(ops.SUB, a, b)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """a * b."""
    return apply(ops.MUL, a, b)


def divide(a: Tensor, b: Tensor) -> Tensor:
    """a / b."""
    return apply(ops.DIV, a, b)


def negative(x: Tensor) -> Tensor:
    """-x."""
    return apply(ops.NEG, x)


def square(x: Tensor) -> Tensor:
    """x times x."""
    return apply(ops.SQUARE, x)


def sqrt(x: Tensor) -> Tensor:
    """The square root; NaN below zero."""
    return apply(ops.SQRT, x)


def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x)."""
    return apply(ops.RSQRT, x)


def reciprocal(x: Tensor) -> Tensor:
    """1 / x."""
    return apply(ops.RECIPROCAL, x)


def cbrt(x: Tensor) -> Tensor:
    """The cube root."""
    return apply(ops.CBRT, x)


def maximum(a: Tensor, b: Tensor) -> Tensor:
    """The larger; NaN propagates."""
    return apply(ops.MAXIMUM, a, b)


def minimum(a: Tensor, b: Tensor) -> Tensor:
    """The smaller; NaN propagates."""
    return apply(ops.MINIMUM, a, b)


def fmax(a: Tensor, b: Tensor) -> Tensor:
    """The larger; a number rather than NaN."""
    return apply(ops.FMAX, a, b)


def fmin(a: Tensor, b: Tensor) -> Tensor:
    """The smaller; a number rather than NaN."""
    return apply(ops.FMIN, a, b)


def abs(x: Tensor) -> Tensor:
    """|x|."""
    return apply(ops.ABS, x)


def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1; NaN stays NaN."""
    return apply(ops.SIGN, x)


def copysign(a: Tensor, b: Tensor) -> Tensor:
    """|a| with the sign of b."""
    return apply(ops.COPYSIGN, a, b)


def nextafter(a: Tensor, b: Tensor) -> Tensor:
    """The next number of a's dtype after a towards b; its slope in a is 1."""
    return apply(ops.NEXTAFTER, a, b)


def floor(x: Tensor) -> Tensor:
    """The largest integer not above x."""
    return apply(ops.FLOOR, x)


def ceil(x: Tensor) -> Tensor:
    """The smallest integer not below x."""
    return apply(ops.CEIL, x)


def round(x: Tensor) -> Tensor:
    """The nearest integer, ties to even."""
    return apply(ops.ROUND, x)


def trunc(x: Tensor) -> Tensor:
    """The integer part."""
    return apply(ops.TRUNC, x)


def frac(x: Tensor) -> Tensor:
    """x - trunc(x)."""
    return apply(ops.FRAC, x)


def floor_divide(a: Tensor, b: Tensor) -> Tensor:
    """The largest integer not above a / b."""
    return apply(ops.FLOOR_DIVIDE, a, b)


def remainder(a: Tensor, b: Tensor) -> Tensor:
    """a - b floor(a / b), with the sign of b."""
    return apply(ops.REMAINDER, a, b)


def fmod(a: Tensor, b: Tensor) -> Tensor:
    """a - b trunc(a / b), with the sign of a."""
    return apply(ops.FMOD, a, b)


def hypot(a: Tensor, b: Tensor) -> Tensor:
    """sqrt(a^2 + b^2), without overflow."""
    return apply(ops.HYPOT, a, b)


def atan2(a: Tensor, b: Tensor) -> Tensor:
    """The angle of the point (b, a), in radians."""
    return apply(ops.ATAN2, a, b)


def lerp(start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    """start + weight (end - start)."""
    return apply(ops.LERP, start, end, weight)


def exp(x: Tensor) -> Tensor:
    """e to the power x."""
    return apply(ops.EXP, x)


def expm1(x: Tensor) -> Tensor:
    """exp(x) - 1, accurate near zero."""
    return apply(ops.EXPM1, x)


def exp2(x: Tensor) -> Tensor:
    """2 to the power x."""
    return apply(ops.EXP2, x)


def log(x: Tensor) -> Tensor:
    """The natural logarithm."""
    return apply(ops.LOG, x)


def log1p(x: Tensor) -> Tensor:
    """log(1 + x), accurate near zero."""
    return apply(ops.LOG1P, x)


def log2(x: Tensor) -> Tensor:
    """The logarithm to base 2."""
    return apply(ops.LOG2, x)


def log10(x: Tensor) -> Tensor:
    """The logarithm to base 10."""
    return apply(ops.LOG10, x)


def logaddexp(a: Tensor, b: Tensor) -> Tensor:
    """log(exp(a) + exp(b)), without overflow."""
    return apply(ops.LOGADDEXP, a, b)


def xlogy(a: Tensor, b: Tensor) -> Tensor:
    """a log(b); zero where a is zero."""
    return apply(ops.XLOGY, a, b)


def xlog1py(a: Tensor, b: Tensor) -> Tensor:
    """a log(1 + b); zero where a is zero."""
    return apply(ops.XLOG1PY, a, b)


def sin(x: Tensor) -> Tensor:
    """The sine; x in radians."""
    return apply(ops.SIN, x)


def cos(x: Tensor) -> Tensor:
    """The cosine; x in radians."""
    return apply(ops.COS, x)


def tan(x: Tensor) -> Tensor:
    """The tangent; x in radians."""
    return apply(ops.TAN, x)


def asin(x: Tensor) -> Tensor:
    """The inverse sine, in radians."""
    return apply(ops.ASIN, x)


def acos(x: Tensor) -> Tensor:
    """The inverse cosine, in radians."""
    return apply(ops.ACOS, x)


def atan(x: Tensor) -> Tensor:
    """The inverse tangent, in radians."""
    return apply(ops.ATAN, x)


def deg2rad(x: Tensor) -> Tensor:
    """Degrees in radians."""
    return apply(ops.DEG2RAD, x)


def rad2deg(x: Tensor) -> Tensor:
    """Radians in degrees."""
    return apply(ops.RAD2DEG, x)


def sinh(x: Tensor) -> Tensor:
    """The hyperbolic sine."""
    return apply(ops.SINH, x)


def cosh(x: Tensor) -> Tensor:
    """The hyperbolic cosine."""
    return apply(ops.COSH, x)


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return apply(ops.TANH, x)


def asinh(x: Tensor) -> Tensor:
    """The inverse hyperbolic sine."""
    return apply(ops.ASINH, x)


def acosh(x: Tensor) -> Tensor:
    """The inverse hyperbolic cosine."""
    return apply(ops.ACOSH, x)


def atanh(x: Tensor) -> Tensor:
    """The inverse hyperbolic tangent."""
    return apply(ops.ATANH, x)


def erf(x: Tensor) -> Tensor:
    """The error function."""
    return apply(ops.ERF, x)


def erfc(x: Tensor) -> Tensor:
    """1 - erf(x), accurate where that is small."""
    return apply(ops.ERFC, x)


def erfinv(x: Tensor) -> Tensor:
    """The inverse of erf."""
    return apply(ops.ERFINV, x)


def ndtr(x: Tensor) -> Tensor:
    """The normal distribution function Phi."""
    return apply(ops.NDTR, x)


def ndtri(x: Tensor) -> Tensor:
    """The inverse of ndtr."""
    return apply(ops.NDTRI, x)


def log_ndtr(x: Tensor) -> Tensor:
    """log(ndtr(x))."""
    return apply(ops.LOG_NDTR, x)


def lgamma(x: Tensor) -> Tensor:
    """log |gamma(x)|."""
    return apply(ops.LGAMMA, x)


def digamma(x: Tensor) -> Tensor:
    """The derivative of lgamma; NaN at its poles but zero."""
    return apply(ops.DIGAMMA, x)


def i0e(x: Tensor) -> Tensor:
    """exp(-|x|) I0(x), the Bessel function scaled."""
    return apply(ops.I0E, x)


def i1e(x: Tensor) -> Tensor:
    """exp(-|x|) I1(x), the Bessel function scaled."""
    return apply(ops.I1E, x)


def sinc(x: Tensor) -> Tensor:
    """sin(pi x) / (pi x), and 1 at zero."""
    return apply(ops.SINC, x)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return apply(ops.SIGMOID, x)


def log_sigmoid(x: Tensor) -> Tensor:
    """log(sigmoid(x))."""
    return apply(ops.LOG_SIGMOID, x)


def logit(x: Tensor) -> Tensor:
    """log(x / (1 - x))."""
    return apply(ops.LOGIT, x)


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x)."""
    return apply(ops.SILU, x)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x))."""
    return apply(ops.SOFTPLUS, x)


def mish(x: Tensor) -> Tensor:
    """x tanh(softplus(x))."""
    return apply(ops.MISH, x)


def relu(x: Tensor) -> Tensor:
    """max(x, 0)."""
    return apply(ops.RELU, x)


def relu6(x: Tensor) -> Tensor:
    """min(max(x, 0), 6)."""
    return apply(ops.RELU6, x)


def leaky_relu(x: Tensor, slope: float = 0.01) -> Tensor:
    """x above zero, else slope x."""
    return apply(ops.LEAKY_RELU, x, slope=float(slope))


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x above zero, else alpha (exp(x) - 1)."""
    return apply(ops.ELU, x, alpha=float(alpha))


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x above zero, else alpha (exp(x / alpha) - 1)."""
    return apply(ops.CELU, x, alpha=float(alpha))


def selu(x: Tensor) -> Tensor:
    """1.0507 times elu with alpha = 1.67326."""
    return apply(ops.SELU, x)


def gelu(x: Tensor, approximate: bool = False) -> Tensor:
    """x Phi(x); approximate: the tanh form."""
    return apply(ops.GELU, x, approximate=bool(approximate))


def squareplus(x: Tensor, b: float = 4.0) -> Tensor:
    """(x + sqrt(x^2 + b)) / 2; the square is not formed."""
    return apply(ops.SQUAREPLUS, x, b=float(b))


def sparse_plus(x: Tensor) -> Tensor:
    """0 below -1, (x + 1)^2 / 4 up to 1, then x."""
    return apply(ops.SPARSE_PLUS, x)


def sparse_sigmoid(x: Tensor) -> Tensor:
    """(x + 1) / 2 limited to [0, 1]."""
    return apply(ops.SPARSE_SIGMOID, x)


def soft_sign(x: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    return apply(ops.SOFT_SIGN, x)


def tanh_shrink(x: Tensor) -> Tensor:
    """x - tanh(x)."""
    return apply(ops.TANH_SHRINK, x)


def soft_shrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved by lambd towards zero, zero within lambd of it."""
    return apply(ops.SOFT_SHRINK, x, lambd=float(lambd))


def hard_shrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x, but zero within lambd of zero."""
    return apply(ops.HARD_SHRINK, x, lambd=float(lambd))


def threshold(x: Tensor, threshold: float, default: float) -> Tensor:
    """x above the threshold, else the default; NaN stays."""
    return apply(ops.THRESHOLD, x, threshold=float(threshold), default=float(default))


def hard_tanh(x: Tensor, min: float = -1.0, max: float = 1.0) -> Tensor:
    """x limited to [min, max]; the slope is zero at both."""
    return apply(ops.HARD_TANH, x, min=float(min), max=float(max))


def hard_sigmoid(x: Tensor) -> Tensor:
    """relu6(x + 3) / 6."""
    return apply(ops.HARD_SIGMOID, x)


def hard_silu(x: Tensor) -> Tensor:
    """x hard_sigmoid(x)."""
    return apply(ops.HARD_SILU, x)


def heaviside(x: Tensor) -> Tensor:
    """1 above zero, else 0."""
    return apply(ops.HEAVISIDE, x)


def less(a: Tensor, b: Tensor) -> Tensor:
    """a < b."""
    return apply(ops.LT, a, b)


def less_equal(a: Tensor, b: Tensor) -> Tensor:
    """a <= b."""
    return apply(ops.LE, a, b)


def greater(a: Tensor, b: Tensor) -> Tensor:
    """a > b."""
    return apply(ops.GT, a, b)


def greater_equal(a: Tensor, b: Tensor) -> Tensor:
    """a >= b."""
    return apply(ops.GE, a, b)


def equal(a: Tensor, b: Tensor) -> Tensor:
    """a equals b; 0 equals -0."""
    return apply(ops.EQ, a, b)


def not_equal(a: Tensor, b: Tensor) -> Tensor:
    """a differs from b; NaN differs from all."""
    return apply(ops.NE, a, b)


def logical_and(a: Tensor, b: Tensor) -> Tensor:
    """Both."""
    return apply(ops.AND, a, b)


def logical_or(a: Tensor, b: Tensor) -> Tensor:
    """At least one."""
    return apply(ops.OR, a, b)


def logical_xor(a: Tensor, b: Tensor) -> Tensor:
    """Exactly one."""
    return apply(ops.XOR, a, b)


def logical_not(x: Tensor) -> Tensor:
    """The contrary."""
    return apply(ops.NOT, x)


def isnan(x: Tensor) -> Tensor:
    """x is NaN."""
    return apply(ops.ISNAN, x)


def isinf(x: Tensor) -> Tensor:
    """x is infinite."""
    return apply(ops.ISINF, x)


def isfinite(x: Tensor) -> Tensor:
    """Not NaN, not inf."""
    return apply(ops.ISFINITE, x)


def signbit(x: Tensor) -> Tensor:
    """The sign bit is set: x is below zero, or -0."""
    return apply(ops.SIGNBIT, x)


def bitwise_left_shift(a: Tensor, b: Tensor) -> Tensor:
    """a times 2 to the b, without what overflows."""
    return apply(ops.BITWISE_LEFT_SHIFT, a, b)


def bitwise_right_shift(a: Tensor, b: Tensor) -> Tensor:
    """a over 2 to the b, rounded down."""
    return apply(ops.BITWISE_RIGHT_SHIFT, a, b)


def where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """a where the condition holds, else b."""
    return apply(ops.WHERE, condition, a, b)


def stop_gradient(x: Tensor) -> Tensor:
    """x, with derivative zero."""
    return apply(ops.STOP_GRADIENT, x)


def any(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """At least one."""
    return apply(ops.ANY, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def all(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Every one."""
    return apply(ops.ALL, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def sum(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The sum; 0 where there is nothing."""
    return apply(ops.SUM, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def mean(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The mean; NaN where there is nothing."""
    return apply(ops.MEAN, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def max(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The largest; NaN propagates."""
    return apply(ops.MAX, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def min(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The smallest; NaN propagates."""
    return apply(ops.MIN, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def prod(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The product; 1 where there is nothing."""
    return apply(ops.PROD, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def count_nonzero(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """How many elements are not 0, as a float of x's dtype."""
    return apply(ops.COUNT_NONZERO, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def var(x: Tensor, axis: Axis = None, correction: float = 0, keepdims: bool = False) -> Tensor:
    """Variance; divides by n - correction."""
    return apply(ops.VAR, x, axis=axes_of(x, axis), correction=correction, keepdims=bool(keepdims))


def std(x: Tensor, axis: Axis = None, correction: float = 0, keepdims: bool = False) -> Tensor:
    """Standard deviation, as var."""
    return apply(ops.STD, x, axis=axes_of(x, axis), correction=correction, keepdims=bool(keepdims))


def logsumexp(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The log of the sum of exponentials."""
    return apply(ops.LOGSUMEXP, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def softmax(x: Tensor, axis: Axis = -1) -> Tensor:
    """Exponentials divided by their sum."""
    return apply(ops.SOFTMAX, x, axis=axes_of(x, axis))


def log_softmax(x: Tensor, axis: Axis = -1) -> Tensor:
    """The log of softmax."""
    return apply(ops.LOG_SOFTMAX, x, axis=axes_of(x, axis))


def glu(x: Tensor, axis: int = -1) -> Tensor:
    """The first half along an axis times the sigmoid of the second."""
    return apply(ops.GLU, x, axis=one_axis(x, axis))


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The product of matrices in the last two axes; a vector is taken as a row or a column."""
    return apply(ops.MATMUL, a, b)


def cholesky(x: Tensor) -> Tensor:
    """The lower triangular factor of symmetric positive definite matrices; it reads that half."""
    return apply(ops.CHOLESKY, x)


def inv(x: Tensor) -> Tensor:
    """The inverses of matrices."""
    return apply(ops.INV, x)


def pinv(x: Tensor, rtol: float = 0.0, epsilons: float = 1.0) -> Tensor:
    """Pseudo-inverses; singular values up to rtol, or that many eps a row, are left out."""
    return apply(ops.PINV, x, rtol=float(rtol), epsilons=float(epsilons))


def det(x: Tensor) -> Tensor:
    """Determinants."""
    return apply(ops.DET, x)


def logabsdet(x: Tensor) -> Tensor:
    """The logarithms of the absolute values of determinants."""
    return apply(ops.LOGABSDET, x)


def signdet(x: Tensor) -> Tensor:
    """Signs of determinants."""
    return apply(ops.SIGNDET, x)


def sum_to(x: Tensor, like: Tensor) -> Tensor:
    """x summed to the shape of `like`: undoes broadcasting."""
    return apply(ops.SUM_TO, x, like)


def reshape_like(x: Tensor, like: Tensor) -> Tensor:
    """The same elements in the shape of `like`."""
    return apply(ops.RESHAPE_LIKE, x, like)


def squeeze(x: Tensor, axis: Axis = None) -> Tensor:
    """x without axes of length 1 (None: without all of them)."""
    return apply(ops.SQUEEZE, x, axis=axes_of(x, axis))


def expand_dims(x: Tensor, axis: int = 0) -> Tensor:
    """A new axis of length 1."""
    return apply(ops.EXPAND_DIMS, x, axis=axis)


def swapaxes(x: Tensor, axis1: int, axis2: int) -> Tensor:
    """Two axes exchanged."""
    return apply(ops.SWAPAXES, x, axis1=one_axis(x, axis1), axis2=one_axis(x, axis2))


def moveaxis(x: Tensor, source: Any, destination: Any) -> Tensor:
    """Axes moved to other places; the others keep their order."""
    return apply(ops.MOVEAXIS, x, source=axes_of(x, source), destination=axes_of(x, destination))


def flip(x: Tensor, axis: Axis = None) -> Tensor:
    """x reversed along axes (None: all)."""
    return apply(ops.FLIP, x, axis=axes_of(x, axis))


def cumsum(x: Tensor, axis: int = -1, reverse: bool = False) -> Tensor:
    """The sum of each element and those before it along an axis (`reverse`: after it)."""
    return apply(ops.CUMSUM, x, axis=one_axis(x, axis), reverse=bool(reverse))


def cumprod(x: Tensor, axis: int = -1) -> Tensor:
    """The product of each element and those before it along an axis."""
    return apply(ops.CUMPROD, x, axis=one_axis(x, axis))


def cummax(x: Tensor, axis: int = -1) -> Tensor:
    """The largest so far, NaN from the first on; the latest of equal ones takes the gradient."""
    return apply(ops.CUMMAX, x, axis=one_axis(x, axis))


def cummin(x: Tensor, axis: int = -1) -> Tensor:
    """The smallest so far, NaN from the first on; the latest of equal ones takes the gradient."""
    return apply(ops.CUMMIN, x, axis=one_axis(x, axis))


def logcumsumexp(x: Tensor, axis: int = -1, reverse: bool = False) -> Tensor:
    """The log of the sum of exponentials so far along an axis (`reverse`: from its end)."""
    return apply(ops.LOGCUMSUMEXP, x, axis=one_axis(x, axis), reverse=bool(reverse))


def sort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """x sorted along an axis, stable; NaN is larger than every number."""
    return apply(ops.SORT, x, axis=one_axis(x, axis), descending=bool(descending))


def argmax_mask(x: Tensor, axis: int | None = None) -> Tensor:
    """True at the first of the largest, along an axis or of all; NaN is larger."""
    return apply(ops.ARGMAX_MASK, x, axis=None if axis is None else one_axis(x, axis))


def argmin_mask(x: Tensor, axis: int | None = None) -> Tensor:
    """True at the first of the smallest, along an axis or of all; NaN is smaller."""
    return apply(ops.ARGMIN_MASK, x, axis=None if axis is None else one_axis(x, axis))


def argmax(x: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The place of the first of the largest; NaN is larger."""
    return apply(
        ops.ARGMAX, x, axis=None if axis is None else one_axis(x, axis), keepdims=bool(keepdims)
    )


def argmin(x: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The place of the first of the smallest; NaN is smaller."""
    return apply(
        ops.ARGMIN, x, axis=None if axis is None else one_axis(x, axis), keepdims=bool(keepdims)
    )


def argsort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """The places that sort x along an axis, stable; NaN is larger than every number."""
    return apply(ops.ARGSORT, x, axis=one_axis(x, axis), descending=bool(descending))


def median(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The middle value, the mean of the two middle ones of an even number; NaN propagates."""
    return apply(ops.MEDIAN, x, axis=axes_of(x, axis), keepdims=bool(keepdims))
