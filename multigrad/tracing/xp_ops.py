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
    """a + b.

    Examples:
        >>> xp.add(np.array([-1.5, 0.5, 2.0]), np.array([2.0, -0.5, 1.0]))
        array([0.5, 0. , 3. ])
    """
    return apply(ops.ADD, a, b)


def subtract(a: Tensor, b: Tensor) -> Tensor:
    """a - b.

    Examples:
        >>> xp.subtract(np.array([-1.5, 0.5, 2.0]), np.array([2.0, -0.5, 1.0]))
        array([-3.5,  1. ,  1. ])
    """
    return apply(ops.SUB, a, b)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """a * b.

    Examples:
        >>> xp.multiply(np.array([-1.5, 0.5, 2.0]), np.array([2.0, -0.5, 1.0]))
        array([-3.  , -0.25,  2.  ])
    """
    return apply(ops.MUL, a, b)


def divide(a: Tensor, b: Tensor) -> Tensor:
    """a / b.

    Examples:
        >>> xp.divide(np.array([-1.5, 0.5, 2.0]), np.array([0.5, 1.0, 4.0]))
        array([-3. ,  0.5,  0.5])
    """
    return apply(ops.DIV, a, b)


def negative(x: Tensor) -> Tensor:
    """-x.

    Examples:
        >>> xp.negative(np.array([-1.5, 0.5, 2.0]))
        array([ 1.5, -0.5, -2. ])
    """
    return apply(ops.NEG, x)


def square(x: Tensor) -> Tensor:
    """x times x.

    Examples:
        >>> xp.square(np.array([-1.5, 0.5, 2.0]))
        array([2.25, 0.25, 4.  ])
    """
    return apply(ops.SQUARE, x)


def sqrt(x: Tensor) -> Tensor:
    """The square root; NaN below zero.

    Examples:
        >>> np.round(xp.sqrt(np.array([0.5, 1.0, 4.0])), 4)
        array([0.7071, 1.    , 2.    ])
    """
    return apply(ops.SQRT, x)


def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x).

    Examples:
        >>> np.round(xp.rsqrt(np.array([0.5, 1.0, 4.0])), 4)
        array([1.4142, 1.    , 0.5   ])
    """
    return apply(ops.RSQRT, x)


def reciprocal(x: Tensor) -> Tensor:
    """1 / x.

    Examples:
        >>> xp.reciprocal(np.array([0.5, 1.0, 4.0]))
        array([2.  , 1.  , 0.25])
    """
    return apply(ops.RECIPROCAL, x)


def cbrt(x: Tensor) -> Tensor:
    """The cube root.

    Examples:
        >>> np.round(xp.cbrt(np.array([0.5, 1.0, 4.0])), 4)
        array([0.7937, 1.    , 1.5874])
    """
    return apply(ops.CBRT, x)


def maximum(a: Tensor, b: Tensor) -> Tensor:
    """The larger; NaN propagates.

    Examples:
        >>> xp.maximum(np.array([-1.5, 0.5, 2.0]), np.array([2.0, -0.5, 1.0]))
        array([2. , 0.5, 2. ])
    """
    return apply(ops.MAXIMUM, a, b)


def minimum(a: Tensor, b: Tensor) -> Tensor:
    """The smaller; NaN propagates.

    Examples:
        >>> xp.minimum(np.array([-1.5, 0.5, 2.0]), np.array([2.0, -0.5, 1.0]))
        array([-1.5, -0.5,  1. ])
    """
    return apply(ops.MINIMUM, a, b)


def fmax(a: Tensor, b: Tensor) -> Tensor:
    """The larger; a number rather than NaN.

    Examples:
        >>> xp.fmax(np.array([1.0, np.nan]), np.array([2.0, 3.0]))
        array([2., 3.])
    """
    return apply(ops.FMAX, a, b)


def fmin(a: Tensor, b: Tensor) -> Tensor:
    """The smaller; a number rather than NaN.

    Examples:
        >>> xp.fmin(np.array([1.0, np.nan]), np.array([2.0, 3.0]))
        array([1., 3.])
    """
    return apply(ops.FMIN, a, b)


def abs(x: Tensor) -> Tensor:
    """|x|.

    Examples:
        >>> xp.abs(np.array([-1.5, 0.5, 2.0]))
        array([1.5, 0.5, 2. ])
    """
    return apply(ops.ABS, x)


def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1; NaN stays NaN.

    Examples:
        >>> xp.sign(np.array([-1.5, 0.5, 2.0]))
        array([-1.,  1.,  1.])
    """
    return apply(ops.SIGN, x)


def copysign(a: Tensor, b: Tensor) -> Tensor:
    """|a| with the sign of b.

    Examples:
        >>> xp.copysign(np.array([-1.5, 0.5, 2.0]), np.array([2.0, -0.5, 1.0]))
        array([ 1.5, -0.5,  2. ])
    """
    return apply(ops.COPYSIGN, a, b)


def nextafter(a: Tensor, b: Tensor) -> Tensor:
    """The next number of a's dtype after a towards b; its slope in a is 1.

    Examples:
        >>> xp.nextafter(np.array([1.0]), np.array([2.0])) - 1.0
        array([2.22044605e-16])
    """
    return apply(ops.NEXTAFTER, a, b)


def floor(x: Tensor) -> Tensor:
    """The largest integer not above x.

    Examples:
        >>> xp.floor(np.array([-1.5, 0.5, 2.0]))
        array([-2.,  0.,  2.])
    """
    return apply(ops.FLOOR, x)


def ceil(x: Tensor) -> Tensor:
    """The smallest integer not below x.

    Examples:
        >>> xp.ceil(np.array([-1.5, 0.5, 2.0]))
        array([-1.,  1.,  2.])
    """
    return apply(ops.CEIL, x)


def round(x: Tensor) -> Tensor:
    """The nearest integer, ties to even.

    Examples:
        >>> xp.round(np.array([-1.5, 0.5, 2.0]))
        array([-2.,  0.,  2.])
    """
    return apply(ops.ROUND, x)


def trunc(x: Tensor) -> Tensor:
    """The integer part.

    Examples:
        >>> xp.trunc(np.array([-1.5, 0.5, 2.0]))
        array([-1.,  0.,  2.])
    """
    return apply(ops.TRUNC, x)


def frac(x: Tensor) -> Tensor:
    """x - trunc(x).

    Examples:
        >>> xp.frac(np.array([-1.5, 0.5, 2.0]))
        array([-0.5,  0.5,  0. ])
    """
    return apply(ops.FRAC, x)


def floor_divide(a: Tensor, b: Tensor) -> Tensor:
    """The largest integer not above a / b.

    Examples:
        >>> xp.floor_divide(np.array([-1.5, 0.5, 2.0]), np.array([2.0, -0.5, 1.0]))
        array([-1., -1.,  2.])
    """
    return apply(ops.FLOOR_DIVIDE, a, b)


def remainder(a: Tensor, b: Tensor) -> Tensor:
    """a - b floor(a / b), with the sign of b.

    Examples:
        >>> xp.remainder(np.array([-1.5, 0.5, 2.0]), np.array([2.0, -0.5, 1.0]))
        array([ 0.5, -0. ,  0. ])
    """
    return apply(ops.REMAINDER, a, b)


def fmod(a: Tensor, b: Tensor) -> Tensor:
    """a - b trunc(a / b), with the sign of a.

    Examples:
        >>> xp.fmod(np.array([-1.5, 0.5, 2.0]), np.array([2.0, -0.5, 1.0]))
        array([-1.5,  0. ,  0. ])
    """
    return apply(ops.FMOD, a, b)


def hypot(a: Tensor, b: Tensor) -> Tensor:
    """sqrt(a^2 + b^2), without overflow.

    Examples:
        >>> np.round(xp.hypot(np.array([-1.5, 0.5, 2.0]), np.array([2.0, -0.5, 1.0])), 4)
        array([2.5   , 0.7071, 2.2361])
    """
    return apply(ops.HYPOT, a, b)


def atan2(a: Tensor, b: Tensor) -> Tensor:
    """The angle of the point (b, a), in radians.

    Examples:
        >>> np.round(xp.atan2(np.array([-1.5, 0.5, 2.0]), np.array([2.0, -0.5, 1.0])), 4)
        array([-0.6435,  2.3562,  1.1071])
    """
    return apply(ops.ATAN2, a, b)


def lerp(start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    """start + weight (end - start).

    Examples:
        >>> x = np.array([-1.5, 0.5, 2.0])
        >>> xp.lerp(x, np.array([2.0, -0.5, 1.0]), np.array([0.5, 0.25, 1.0]))
        array([0.25, 0.25, 1.  ])
    """
    return apply(ops.LERP, start, end, weight)


def exp(x: Tensor) -> Tensor:
    """e to the power x.

    Examples:
        >>> np.round(xp.exp(np.array([-1.5, 0.5, 2.0])), 4)
        array([0.2231, 1.6487, 7.3891])
    """
    return apply(ops.EXP, x)


def expm1(x: Tensor) -> Tensor:
    """exp(x) - 1, accurate near zero.

    Examples:
        >>> np.round(xp.expm1(np.array([-1.5, 0.5, 2.0])), 4)
        array([-0.7769,  0.6487,  6.3891])
    """
    return apply(ops.EXPM1, x)


def exp2(x: Tensor) -> Tensor:
    """2 to the power x.

    Examples:
        >>> np.round(xp.exp2(np.array([-1.5, 0.5, 2.0])), 4)
        array([0.3536, 1.4142, 4.    ])
    """
    return apply(ops.EXP2, x)


def log(x: Tensor) -> Tensor:
    """The natural logarithm.

    Examples:
        >>> np.round(xp.log(np.array([0.5, 1.0, 4.0])), 4)
        array([-0.6931,  0.    ,  1.3863])
    """
    return apply(ops.LOG, x)


def log1p(x: Tensor) -> Tensor:
    """log(1 + x), accurate near zero.

    Examples:
        >>> np.round(xp.log1p(np.array([-0.5, 0.0, 2.0])), 4)
        array([-0.6931,  0.    ,  1.0986])
    """
    return apply(ops.LOG1P, x)


def log2(x: Tensor) -> Tensor:
    """The logarithm to base 2.

    Examples:
        >>> xp.log2(np.array([0.5, 1.0, 4.0]))
        array([-1.,  0.,  2.])
    """
    return apply(ops.LOG2, x)


def log10(x: Tensor) -> Tensor:
    """The logarithm to base 10.

    Examples:
        >>> np.round(xp.log10(np.array([0.5, 1.0, 4.0])), 4)
        array([-0.301 ,  0.    ,  0.6021])
    """
    return apply(ops.LOG10, x)


def logaddexp(a: Tensor, b: Tensor) -> Tensor:
    """log(exp(a) + exp(b)), without overflow.

    Examples:
        >>> np.round(xp.logaddexp(np.array([-1.5, 0.5, 2.0]), np.array([2.0, -0.5, 1.0])), 4)
        array([2.0298, 0.8133, 2.3133])
    """
    return apply(ops.LOGADDEXP, a, b)


def xlogy(a: Tensor, b: Tensor) -> Tensor:
    """a log(b); zero where a is zero.

    Examples:
        >>> np.round(xp.xlogy(np.array([-1.5, 0.5, 2.0]), np.array([0.5, 1.0, 4.0])), 4)
        array([1.0397, 0.    , 2.7726])
    """
    return apply(ops.XLOGY, a, b)


def xlog1py(a: Tensor, b: Tensor) -> Tensor:
    """a log(1 + b); zero where a is zero.

    Examples:
        >>> np.round(xp.xlog1py(np.array([-1.5, 0.5, 2.0]), np.array([-0.5, 0.0, 2.0])), 4)
        array([1.0397, 0.    , 2.1972])
    """
    return apply(ops.XLOG1PY, a, b)


def sin(x: Tensor) -> Tensor:
    """The sine; x in radians.

    Examples:
        >>> np.round(xp.sin(np.array([-1.5, 0.5, 2.0])), 4)
        array([-0.9975,  0.4794,  0.9093])
    """
    return apply(ops.SIN, x)


def cos(x: Tensor) -> Tensor:
    """The cosine; x in radians.

    Examples:
        >>> np.round(xp.cos(np.array([-1.5, 0.5, 2.0])), 4)
        array([ 0.0707,  0.8776, -0.4161])
    """
    return apply(ops.COS, x)


def tan(x: Tensor) -> Tensor:
    """The tangent; x in radians.

    Examples:
        >>> np.round(xp.tan(np.array([-0.5, 0.0, 0.5])), 4)
        array([-0.5463,  0.    ,  0.5463])
    """
    return apply(ops.TAN, x)


def asin(x: Tensor) -> Tensor:
    """The inverse sine, in radians.

    Examples:
        >>> np.round(xp.asin(np.array([-0.5, 0.0, 0.5])), 4)
        array([-0.5236,  0.    ,  0.5236])
    """
    return apply(ops.ASIN, x)


def acos(x: Tensor) -> Tensor:
    """The inverse cosine, in radians.

    Examples:
        >>> np.round(xp.acos(np.array([-0.5, 0.0, 0.5])), 4)
        array([2.0944, 1.5708, 1.0472])
    """
    return apply(ops.ACOS, x)


def atan(x: Tensor) -> Tensor:
    """The inverse tangent, in radians.

    Examples:
        >>> np.round(xp.atan(np.array([-1.5, 0.5, 2.0])), 4)
        array([-0.9828,  0.4636,  1.1071])
    """
    return apply(ops.ATAN, x)


def deg2rad(x: Tensor) -> Tensor:
    """Degrees in radians.

    Examples:
        >>> np.round(xp.deg2rad(np.array([0.0, 180.0])), 4)
        array([0.    , 3.1416])
    """
    return apply(ops.DEG2RAD, x)


def rad2deg(x: Tensor) -> Tensor:
    """Radians in degrees.

    Examples:
        >>> xp.rad2deg(np.array([0.0, np.pi]))
        array([  0., 180.])
    """
    return apply(ops.RAD2DEG, x)


def sinh(x: Tensor) -> Tensor:
    """The hyperbolic sine.

    Examples:
        >>> np.round(xp.sinh(np.array([-1.5, 0.5, 2.0])), 4)
        array([-2.1293,  0.5211,  3.6269])
    """
    return apply(ops.SINH, x)


def cosh(x: Tensor) -> Tensor:
    """The hyperbolic cosine.

    Examples:
        >>> np.round(xp.cosh(np.array([-1.5, 0.5, 2.0])), 4)
        array([2.3524, 1.1276, 3.7622])
    """
    return apply(ops.COSH, x)


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent.

    Examples:
        >>> np.round(xp.tanh(np.array([-1.5, 0.5, 2.0])), 4)
        array([-0.9051,  0.4621,  0.964 ])
    """
    return apply(ops.TANH, x)


def asinh(x: Tensor) -> Tensor:
    """The inverse hyperbolic sine.

    Examples:
        >>> np.round(xp.asinh(np.array([-1.5, 0.5, 2.0])), 4)
        array([-1.1948,  0.4812,  1.4436])
    """
    return apply(ops.ASINH, x)


def acosh(x: Tensor) -> Tensor:
    """The inverse hyperbolic cosine.

    Examples:
        >>> np.round(xp.acosh(np.array([1.0, 1.5, 3.0])), 4)
        array([0.    , 0.9624, 1.7627])
    """
    return apply(ops.ACOSH, x)


def atanh(x: Tensor) -> Tensor:
    """The inverse hyperbolic tangent.

    Examples:
        >>> np.round(xp.atanh(np.array([-0.5, 0.0, 0.5])), 4)
        array([-0.5493,  0.    ,  0.5493])
    """
    return apply(ops.ATANH, x)


def erf(x: Tensor) -> Tensor:
    """The error function.

    Examples:
        >>> np.round(xp.erf(np.array([-1.5, 0.5, 2.0])), 4)
        array([-0.9661,  0.5205,  0.9953])
    """
    return apply(ops.ERF, x)


def erfc(x: Tensor) -> Tensor:
    """1 - erf(x), accurate where that is small.

    Examples:
        >>> np.round(xp.erfc(np.array([-1.5, 0.5, 2.0])), 4)
        array([1.9661, 0.4795, 0.0047])
    """
    return apply(ops.ERFC, x)


def erfinv(x: Tensor) -> Tensor:
    """The inverse of erf.

    Examples:
        >>> np.round(xp.erfinv(np.array([-0.5, 0.0, 0.5])), 4)
        array([-0.4769,  0.    ,  0.4769])
    """
    return apply(ops.ERFINV, x)


def ndtr(x: Tensor) -> Tensor:
    """The normal distribution function Phi.

    Examples:
        >>> np.round(xp.ndtr(np.array([-1.5, 0.5, 2.0])), 4)
        array([0.0668, 0.6915, 0.9772])
    """
    return apply(ops.NDTR, x)


def ndtri(x: Tensor) -> Tensor:
    """The inverse of ndtr.

    Examples:
        >>> np.round(xp.ndtri(np.array([0.1, 0.5, 0.9])), 4)
        array([-1.2816,  0.    ,  1.2816])
    """
    return apply(ops.NDTRI, x)


def log_ndtr(x: Tensor) -> Tensor:
    """log(ndtr(x)).

    Examples:
        >>> np.round(xp.log_ndtr(np.array([-1.5, 0.5, 2.0])), 4)
        array([-2.7059, -0.3689, -0.023 ])
    """
    return apply(ops.LOG_NDTR, x)


def lgamma(x: Tensor) -> Tensor:
    """log |gamma(x)|.

    Examples:
        >>> np.round(xp.lgamma(np.array([-1.5, 0.5, 3.0])), 4)
        array([0.86  , 0.5724, 0.6931])
    """
    return apply(ops.LGAMMA, x)


def digamma(x: Tensor) -> Tensor:
    """The derivative of lgamma; NaN at its poles but zero.

    Examples:
        >>> np.round(xp.digamma(np.array([-1.5, 0.5, 2.0])), 4)
        array([ 0.7032, -1.9635,  0.4228])
    """
    return apply(ops.DIGAMMA, x)


def i0e(x: Tensor) -> Tensor:
    """exp(-|x|) I0(x), the Bessel function scaled.

    Examples:
        >>> np.round(xp.i0e(np.array([-1.5, 0.5, 2.0])), 4)
        array([0.3674, 0.645 , 0.3085])
    """
    return apply(ops.I0E, x)


def i1e(x: Tensor) -> Tensor:
    """exp(-|x|) I1(x), the Bessel function scaled.

    Examples:
        >>> np.round(xp.i1e(np.array([-1.5, 0.5, 2.0])), 4)
        array([-0.219 ,  0.1564,  0.2153])
    """
    return apply(ops.I1E, x)


def sinc(x: Tensor) -> Tensor:
    """sin(pi x) / (pi x), and 1 at zero.

    Examples:
        >>> np.round(xp.sinc(np.array([-0.5, 0.0, 0.5])), 4)
        array([0.6366, 1.    , 0.6366])
    """
    return apply(ops.SINC, x)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)).

    Examples:
        >>> np.round(xp.sigmoid(np.array([-1.5, 0.5, 2.0])), 4)
        array([0.1824, 0.6225, 0.8808])
    """
    return apply(ops.SIGMOID, x)


def log_sigmoid(x: Tensor) -> Tensor:
    """log(sigmoid(x)).

    Examples:
        >>> np.round(xp.log_sigmoid(np.array([-1.5, 0.5, 2.0])), 4)
        array([-1.7014, -0.4741, -0.1269])
    """
    return apply(ops.LOG_SIGMOID, x)


def logit(x: Tensor) -> Tensor:
    """log(x / (1 - x)).

    Examples:
        >>> np.round(xp.logit(np.array([0.1, 0.5, 0.9])), 4)
        array([-2.1972,  0.    ,  2.1972])
    """
    return apply(ops.LOGIT, x)


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x).

    Examples:
        >>> np.round(xp.silu(np.array([-1.5, 0.5, 2.0])), 4)
        array([-0.2736,  0.3112,  1.7616])
    """
    return apply(ops.SILU, x)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)).

    Examples:
        >>> np.round(xp.softplus(np.array([-1.5, 0.5, 2.0])), 4)
        array([0.2014, 0.9741, 2.1269])
    """
    return apply(ops.SOFTPLUS, x)


def mish(x: Tensor) -> Tensor:
    """x tanh(softplus(x)).

    Examples:
        >>> np.round(xp.mish(np.array([-1.5, 0.5, 2.0])), 4)
        array([-0.2981,  0.3752,  1.944 ])
    """
    return apply(ops.MISH, x)


def relu(x: Tensor) -> Tensor:
    """max(x, 0).

    Examples:
        >>> xp.relu(np.array([-1.5, 0.5, 2.0]))
        array([0. , 0.5, 2. ])
    """
    return apply(ops.RELU, x)


def relu6(x: Tensor) -> Tensor:
    """min(max(x, 0), 6).

    Examples:
        >>> xp.relu6(np.array([-1.5, 0.5, 2.0]))
        array([0. , 0.5, 2. ])
    """
    return apply(ops.RELU6, x)


def leaky_relu(x: Tensor, slope: float = 0.01) -> Tensor:
    """x above zero, else slope x.

    Examples:
        >>> xp.leaky_relu(np.array([-1.5, 0.5, 2.0]))
        array([-0.015,  0.5  ,  2.   ])
    """
    return apply(ops.LEAKY_RELU, x, slope=float(slope))


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x above zero, else alpha (exp(x) - 1).

    Examples:
        >>> np.round(xp.elu(np.array([-1.5, 0.5, 2.0])), 4)
        array([-0.7769,  0.5   ,  2.    ])
    """
    return apply(ops.ELU, x, alpha=float(alpha))


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x above zero, else alpha (exp(x / alpha) - 1).

    Examples:
        >>> np.round(xp.celu(np.array([-1.5, 0.5, 2.0])), 4)
        array([-0.7769,  0.5   ,  2.    ])
    """
    return apply(ops.CELU, x, alpha=float(alpha))


def selu(x: Tensor) -> Tensor:
    """1.0507 times elu with alpha = 1.67326.

    Examples:
        >>> np.round(xp.selu(np.array([-1.5, 0.5, 2.0])), 4)
        array([-1.3658,  0.5254,  2.1014])
    """
    return apply(ops.SELU, x)


def gelu(x: Tensor, approximate: bool = False) -> Tensor:
    """x Phi(x); approximate: the tanh form.

    Examples:
        >>> np.round(xp.gelu(np.array([-1.5, 0.5, 2.0])), 4)
        array([-0.1002,  0.3457,  1.9545])
    """
    return apply(ops.GELU, x, approximate=bool(approximate))


def squareplus(x: Tensor, b: float = 4.0) -> Tensor:
    """(x + sqrt(x^2 + b)) / 2; the square is not formed.

    Examples:
        >>> np.round(xp.squareplus(np.array([-1.5, 0.5, 2.0])), 4)
        array([0.5   , 1.2808, 2.4142])
    """
    return apply(ops.SQUAREPLUS, x, b=float(b))


def sparse_plus(x: Tensor) -> Tensor:
    """0 below -1, (x + 1)^2 / 4 up to 1, then x.

    Examples:
        >>> xp.sparse_plus(np.array([-1.5, 0.5, 2.0]))
        array([0.    , 0.5625, 2.    ])
    """
    return apply(ops.SPARSE_PLUS, x)


def sparse_sigmoid(x: Tensor) -> Tensor:
    """(x + 1) / 2 limited to [0, 1].

    Examples:
        >>> xp.sparse_sigmoid(np.array([-1.5, 0.5, 2.0]))
        array([0.  , 0.75, 1.  ])
    """
    return apply(ops.SPARSE_SIGMOID, x)


def soft_sign(x: Tensor) -> Tensor:
    """x / (1 + |x|).

    Examples:
        >>> np.round(xp.soft_sign(np.array([-1.5, 0.5, 2.0])), 4)
        array([-0.6   ,  0.3333,  0.6667])
    """
    return apply(ops.SOFT_SIGN, x)


def tanh_shrink(x: Tensor) -> Tensor:
    """x - tanh(x).

    Examples:
        >>> np.round(xp.tanh_shrink(np.array([-1.5, 0.5, 2.0])), 4)
        array([-0.5949,  0.0379,  1.036 ])
    """
    return apply(ops.TANH_SHRINK, x)


def soft_shrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved by lambd towards zero, zero within lambd of it.

    Examples:
        >>> xp.soft_shrink(np.array([-1.5, 0.5, 2.0]))
        array([-1. ,  0. ,  1.5])
    """
    return apply(ops.SOFT_SHRINK, x, lambd=float(lambd))


def hard_shrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x, but zero within lambd of zero.

    Examples:
        >>> xp.hard_shrink(np.array([-1.5, 0.5, 2.0]))
        array([-1.5,  0. ,  2. ])
    """
    return apply(ops.HARD_SHRINK, x, lambd=float(lambd))


def threshold(x: Tensor, threshold: float, default: float) -> Tensor:
    """x above the threshold, else the default; NaN stays.

    Examples:
        >>> xp.threshold(np.array([-1.5, 0.5, 2.0]), 1.0, -9.0)
        array([-9., -9.,  2.])
    """
    return apply(ops.THRESHOLD, x, threshold=float(threshold), default=float(default))


def hard_tanh(x: Tensor, min: float = -1.0, max: float = 1.0) -> Tensor:
    """x limited to [min, max]; the slope is zero at both.

    Examples:
        >>> xp.hard_tanh(np.array([-1.5, 0.5, 2.0]))
        array([-1. ,  0.5,  1. ])
    """
    return apply(ops.HARD_TANH, x, min=float(min), max=float(max))


def hard_sigmoid(x: Tensor) -> Tensor:
    """relu6(x + 3) / 6.

    Examples:
        >>> np.round(xp.hard_sigmoid(np.array([-1.5, 0.5, 2.0])), 4)
        array([0.25  , 0.5833, 0.8333])
    """
    return apply(ops.HARD_SIGMOID, x)


def hard_silu(x: Tensor) -> Tensor:
    """x hard_sigmoid(x).

    Examples:
        >>> np.round(xp.hard_silu(np.array([-1.5, 0.5, 2.0])), 4)
        array([-0.375 ,  0.2917,  1.6667])
    """
    return apply(ops.HARD_SILU, x)


def heaviside(x: Tensor) -> Tensor:
    """1 above zero, else 0.

    Examples:
        >>> xp.heaviside(np.array([-1.5, 0.5, 2.0]))
        array([0., 1., 1.])
    """
    return apply(ops.HEAVISIDE, x)


def less(a: Tensor, b: Tensor) -> Tensor:
    """a < b.

    Examples:
        >>> xp.less(np.array([-1.5, 0.5, 2.0]), np.array([2.0, -0.5, 1.0]))
        array([ True, False, False])
    """
    return apply(ops.LT, a, b)


def less_equal(a: Tensor, b: Tensor) -> Tensor:
    """a <= b.

    Examples:
        >>> xp.less_equal(np.array([-1.5, 0.5, 2.0]), np.array([2.0, -0.5, 1.0]))
        array([ True, False, False])
    """
    return apply(ops.LE, a, b)


def greater(a: Tensor, b: Tensor) -> Tensor:
    """a > b.

    Examples:
        >>> xp.greater(np.array([-1.5, 0.5, 2.0]), np.array([2.0, -0.5, 1.0]))
        array([False,  True,  True])
    """
    return apply(ops.GT, a, b)


def greater_equal(a: Tensor, b: Tensor) -> Tensor:
    """a >= b.

    Examples:
        >>> xp.greater_equal(np.array([-1.5, 0.5, 2.0]), np.array([2.0, -0.5, 1.0]))
        array([False,  True,  True])
    """
    return apply(ops.GE, a, b)


def equal(a: Tensor, b: Tensor) -> Tensor:
    """a equals b; 0 equals -0.

    Examples:
        >>> xp.equal(np.array([0.0, 1.0]), np.array([-0.0, 2.0]))
        array([ True, False])
    """
    return apply(ops.EQ, a, b)


def not_equal(a: Tensor, b: Tensor) -> Tensor:
    """a differs from b; NaN differs from all.

    Examples:
        >>> xp.not_equal(np.array([0.0, np.nan]), np.array([-0.0, np.nan]))
        array([False,  True])
    """
    return apply(ops.NE, a, b)


def logical_and(a: Tensor, b: Tensor) -> Tensor:
    """Both.

    Examples:
        >>> xp.logical_and(np.array([True, True, False]), np.array([True, False, False]))
        array([ True, False, False])
    """
    return apply(ops.AND, a, b)


def logical_or(a: Tensor, b: Tensor) -> Tensor:
    """At least one.

    Examples:
        >>> xp.logical_or(np.array([True, True, False]), np.array([True, False, False]))
        array([ True,  True, False])
    """
    return apply(ops.OR, a, b)


def logical_xor(a: Tensor, b: Tensor) -> Tensor:
    """Exactly one.

    Examples:
        >>> xp.logical_xor(np.array([True, True, False]), np.array([True, False, False]))
        array([False,  True, False])
    """
    return apply(ops.XOR, a, b)


def logical_not(x: Tensor) -> Tensor:
    """The contrary.

    Examples:
        >>> xp.logical_not(np.array([True, True, False]))
        array([False, False,  True])
    """
    return apply(ops.NOT, x)


def isnan(x: Tensor) -> Tensor:
    """x is NaN.

    Examples:
        >>> xp.isnan(np.array([1.0, np.nan, np.inf]))
        array([False,  True, False])
    """
    return apply(ops.ISNAN, x)


def isinf(x: Tensor) -> Tensor:
    """x is infinite.

    Examples:
        >>> xp.isinf(np.array([1.0, np.nan, np.inf]))
        array([False, False,  True])
    """
    return apply(ops.ISINF, x)


def isfinite(x: Tensor) -> Tensor:
    """Not NaN, not inf.

    Examples:
        >>> xp.isfinite(np.array([1.0, np.nan, np.inf]))
        array([ True, False, False])
    """
    return apply(ops.ISFINITE, x)


def signbit(x: Tensor) -> Tensor:
    """The sign bit is set: x is below zero, or -0.

    Examples:
        >>> xp.signbit(np.array([-1.0, -0.0, 0.0]))
        array([ True,  True, False])
    """
    return apply(ops.SIGNBIT, x)


def bitwise_left_shift(a: Tensor, b: Tensor) -> Tensor:
    """a times 2 to the b, without what overflows.

    Examples:
        >>> xp.bitwise_left_shift(np.array([1, 5, 12]), np.array([1, 2, 3]))
        array([ 2, 20, 96])
    """
    return apply(ops.BITWISE_LEFT_SHIFT, a, b)


def bitwise_right_shift(a: Tensor, b: Tensor) -> Tensor:
    """a over 2 to the b, rounded down.

    Examples:
        >>> xp.bitwise_right_shift(np.array([1, 5, 12]), np.array([1, 2, 3]))
        array([0, 1, 1])
    """
    return apply(ops.BITWISE_RIGHT_SHIFT, a, b)


def where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """a where the condition holds, else b.

    Examples:
        >>> x = np.array([True, True, False])
        >>> xp.where(x, np.array([2.0, -0.5, 1.0]), np.array([0.5, 0.25, 1.0]))
        array([ 2. , -0.5,  1. ])
    """
    return apply(ops.WHERE, condition, a, b)


def stop_gradient(x: Tensor) -> Tensor:
    """x, with derivative zero.

    Examples:
        >>> xp.stop_gradient(np.array([-1.5, 0.5, 2.0]))
        array([-1.5,  0.5,  2. ])
    """
    return apply(ops.STOP_GRADIENT, x)


def any(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """At least one.

    Examples:
        >>> xp.any(np.array([[True, False], [False, False]]), axis=1)
        array([ True, False])
    """
    return apply(ops.ANY, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def all(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Every one.

    Examples:
        >>> xp.all(np.array([[True, True], [True, False]]), axis=1)
        array([ True, False])
    """
    return apply(ops.ALL, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def sum(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The sum; 0 where there is nothing.

    Examples:
        >>> xp.sum(np.array([[3.0, 1.0, 2.0], [0.5, 4.0, 4.0]]), axis=1)
        array([6. , 8.5])
    """
    return apply(ops.SUM, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def mean(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The mean; NaN where there is nothing.

    Examples:
        >>> np.round(xp.mean(np.array([[3.0, 1.0, 2.0], [0.5, 4.0, 4.0]]), axis=1), 4)
        array([2.    , 2.8333])
    """
    return apply(ops.MEAN, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def max(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The largest; NaN propagates.

    Examples:
        >>> xp.max(np.array([[3.0, 1.0, 2.0], [0.5, 4.0, 4.0]]), axis=1)
        array([3., 4.])
    """
    return apply(ops.MAX, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def min(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The smallest; NaN propagates.

    Examples:
        >>> xp.min(np.array([[3.0, 1.0, 2.0], [0.5, 4.0, 4.0]]), axis=1)
        array([1. , 0.5])
    """
    return apply(ops.MIN, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def prod(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The product; 1 where there is nothing.

    Examples:
        >>> xp.prod(np.array([[3.0, 1.0, 2.0], [0.5, 4.0, 4.0]]), axis=1)
        array([6., 8.])
    """
    return apply(ops.PROD, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def count_nonzero(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """How many elements are not 0, as a float of x's dtype.

    Examples:
        >>> xp.count_nonzero(np.array([[3.0, 1.0, 2.0], [0.5, 4.0, 4.0]]), axis=1)
        array([3., 3.])
    """
    return apply(ops.COUNT_NONZERO, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def var(x: Tensor, axis: Axis = None, correction: float = 0, keepdims: bool = False) -> Tensor:
    """Variance; divides by n - correction.

    Examples:
        >>> np.round(xp.var(np.array([[3.0, 1.0, 2.0], [0.5, 4.0, 4.0]]), axis=1), 4)
        array([0.6667, 2.7222])
    """
    return apply(ops.VAR, x, axis=axes_of(x, axis), correction=correction, keepdims=bool(keepdims))


def std(x: Tensor, axis: Axis = None, correction: float = 0, keepdims: bool = False) -> Tensor:
    """Standard deviation, as var.

    Examples:
        >>> np.round(xp.std(np.array([[3.0, 1.0, 2.0], [0.5, 4.0, 4.0]]), axis=1), 4)
        array([0.8165, 1.6499])
    """
    return apply(ops.STD, x, axis=axes_of(x, axis), correction=correction, keepdims=bool(keepdims))


def logsumexp(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The log of the sum of exponentials.

    Examples:
        >>> np.round(xp.logsumexp(np.array([[3.0, 1.0, 2.0], [0.5, 4.0, 4.0]]), axis=1), 4)
        array([3.4076, 4.7081])
    """
    return apply(ops.LOGSUMEXP, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def softmax(x: Tensor, axis: Axis = -1) -> Tensor:
    """Exponentials divided by their sum.

    Examples:
        >>> np.round(xp.softmax(np.array([0.0, 1.0, 1.0])), 4)
        array([0.1554, 0.4223, 0.4223])
    """
    return apply(ops.SOFTMAX, x, axis=axes_of(x, axis))


def log_softmax(x: Tensor, axis: Axis = -1) -> Tensor:
    """The log of softmax.

    Examples:
        >>> np.round(xp.log_softmax(np.array([0.0, 1.0, 1.0])), 4)
        array([-1.862, -0.862, -0.862])
    """
    return apply(ops.LOG_SOFTMAX, x, axis=axes_of(x, axis))


def glu(x: Tensor, axis: int = -1) -> Tensor:
    """The first half along an axis times the sigmoid of the second.

    Examples:
        >>> np.round(xp.glu(np.array([1.0, 2.0, 0.0, -1.0])), 4)
        array([0.5   , 0.5379])
    """
    return apply(ops.GLU, x, axis=one_axis(x, axis))


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The product of matrices in the last two axes; a vector is taken as a row or a column.

    Examples:
        >>> xp.matmul(np.array([[4.0, 2.0], [2.0, 3.0]]), np.array([[1.0], [2.0]]))
        array([[8.],
               [8.]])
    """
    return apply(ops.MATMUL, a, b)


def cholesky(x: Tensor) -> Tensor:
    """The lower triangular factor of symmetric positive definite matrices; it reads that half.

    Examples:
        >>> np.round(xp.cholesky(np.array([[4.0, 2.0], [2.0, 3.0]])), 4)
        array([[2.    , 0.    ],
               [1.    , 1.4142]])
    """
    return apply(ops.CHOLESKY, x)


def inv(x: Tensor) -> Tensor:
    """The inverses of matrices.

    Examples:
        >>> xp.inv(np.array([[4.0, 2.0], [2.0, 3.0]]))
        array([[ 0.375, -0.25 ],
               [-0.25 ,  0.5  ]])
    """
    return apply(ops.INV, x)


def pinv(x: Tensor, rtol: float = 0.0, epsilons: float = 1.0) -> Tensor:
    """Pseudo-inverses; singular values up to rtol, or that many eps a row, are left out.

    Examples:
        >>> np.round(xp.pinv(np.array([[4.0, 2.0], [2.0, 3.0]])), 4)
        array([[ 0.375, -0.25 ],
               [-0.25 ,  0.5  ]])
    """
    return apply(ops.PINV, x, rtol=float(rtol), epsilons=float(epsilons))


def det(x: Tensor) -> Tensor:
    """Determinants.

    Examples:
        >>> np.round(xp.det(np.array([[4.0, 2.0], [2.0, 3.0]])), 4)
        np.float64(8.0)
    """
    return apply(ops.DET, x)


def logabsdet(x: Tensor) -> Tensor:
    """The logarithms of the absolute values of determinants.

    Examples:
        >>> np.round(xp.logabsdet(np.array([[4.0, 2.0], [2.0, 3.0]])), 4)
        np.float64(2.0794)
    """
    return apply(ops.LOGABSDET, x)


def signdet(x: Tensor) -> Tensor:
    """Signs of determinants.

    Examples:
        >>> xp.signdet(np.array([[4.0, 2.0], [2.0, 3.0]]))
        array(1.)
    """
    return apply(ops.SIGNDET, x)


def sum_to(x: Tensor, like: Tensor) -> Tensor:
    """x summed to the shape of `like`: undoes broadcasting.

    Examples:
        >>> xp.sum_to(np.array([[3.0, 1.0, 2.0], [0.5, 4.0, 4.0]]), np.zeros((2, 1)))
        array([[6. ],
               [8.5]])
    """
    return apply(ops.SUM_TO, x, like)


def reshape_like(x: Tensor, like: Tensor) -> Tensor:
    """The same elements in the shape of `like`.

    Examples:
        >>> xp.reshape_like(np.array([[3.0, 1.0, 2.0], [0.5, 4.0, 4.0]]), np.zeros((3, 2)))
        array([[3. , 1. ],
               [2. , 0.5],
               [4. , 4. ]])
    """
    return apply(ops.RESHAPE_LIKE, x, like)


def squeeze(x: Tensor, axis: Axis = None) -> Tensor:
    """x without axes of length 1 (None: without all of them).

    Examples:
        >>> xp.squeeze(np.array([[1.0, 2.0]]))
        array([1., 2.])
    """
    return apply(ops.SQUEEZE, x, axis=axes_of(x, axis))


def expand_dims(x: Tensor, axis: int = 0) -> Tensor:
    """A new axis of length 1.

    Examples:
        >>> xp.expand_dims(np.array([1.0, 2.0]))
        array([[1., 2.]])
    """
    return apply(ops.EXPAND_DIMS, x, axis=axis)


def swapaxes(x: Tensor, axis1: int, axis2: int) -> Tensor:
    """Two axes exchanged.

    Examples:
        >>> xp.swapaxes(np.array([[3.0, 1.0, 2.0], [0.5, 4.0, 4.0]]), 0, 1)
        array([[3. , 0.5],
               [1. , 4. ],
               [2. , 4. ]])
    """
    return apply(ops.SWAPAXES, x, axis1=one_axis(x, axis1), axis2=one_axis(x, axis2))


def moveaxis(x: Tensor, source: Any, destination: Any) -> Tensor:
    """Axes moved to other places; the others keep their order.

    Examples:
        >>> xp.moveaxis(np.array([[3.0, 1.0, 2.0], [0.5, 4.0, 4.0]]), 0, -1)
        array([[3. , 0.5],
               [1. , 4. ],
               [2. , 4. ]])
    """
    return apply(ops.MOVEAXIS, x, source=axes_of(x, source), destination=axes_of(x, destination))


def flip(x: Tensor, axis: Axis = None) -> Tensor:
    """x reversed along axes (None: all).

    Examples:
        >>> xp.flip(np.array([1.0, 2.0, 3.0]))
        array([3., 2., 1.])
    """
    return apply(ops.FLIP, x, axis=axes_of(x, axis))


def cumsum(x: Tensor, axis: int = -1, reverse: bool = False) -> Tensor:
    """The sum of each element and those before it along an axis (`reverse`: after it).

    Examples:
        >>> xp.cumsum(np.array([1.0, 3.0, 2.0]))
        array([1., 4., 6.])
    """
    return apply(ops.CUMSUM, x, axis=one_axis(x, axis), reverse=bool(reverse))


def cumprod(x: Tensor, axis: int = -1) -> Tensor:
    """The product of each element and those before it along an axis.

    Examples:
        >>> xp.cumprod(np.array([1.0, 3.0, 2.0]))
        array([1., 3., 6.])
    """
    return apply(ops.CUMPROD, x, axis=one_axis(x, axis))


def cummax(x: Tensor, axis: int = -1) -> Tensor:
    """The largest so far, NaN from the first on; the latest of equal ones takes the gradient.

    Examples:
        >>> xp.cummax(np.array([1.0, 3.0, 2.0]))
        array([1., 3., 3.])
    """
    return apply(ops.CUMMAX, x, axis=one_axis(x, axis))


def cummin(x: Tensor, axis: int = -1) -> Tensor:
    """The smallest so far, NaN from the first on; the latest of equal ones takes the gradient.

    Examples:
        >>> xp.cummin(np.array([1.0, 3.0, 2.0]))
        array([1., 1., 1.])
    """
    return apply(ops.CUMMIN, x, axis=one_axis(x, axis))


def logcumsumexp(x: Tensor, axis: int = -1, reverse: bool = False) -> Tensor:
    """The log of the sum of exponentials so far along an axis (`reverse`: from its end).

    Examples:
        >>> np.round(xp.logcumsumexp(np.array([-1.5, 0.5, 2.0])), 4)
        array([-1.5   ,  0.6269,  2.2258])
    """
    return apply(ops.LOGCUMSUMEXP, x, axis=one_axis(x, axis), reverse=bool(reverse))


def sort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """x sorted along an axis, stable; NaN is larger than every number.

    Examples:
        >>> xp.sort(np.array([3.0, 1.0, 2.0]))
        array([1., 2., 3.])
    """
    return apply(ops.SORT, x, axis=one_axis(x, axis), descending=bool(descending))


def argmax_mask(x: Tensor, axis: int | None = None) -> Tensor:
    """True at the first of the largest, along an axis or of all; NaN is larger.

    Examples:
        >>> xp.argmax_mask(np.array([[3.0, 1.0, 2.0], [0.5, 4.0, 4.0]]), axis=1)
        array([[ True, False, False],
               [False,  True, False]])
    """
    return apply(ops.ARGMAX_MASK, x, axis=None if axis is None else one_axis(x, axis))


def argmin_mask(x: Tensor, axis: int | None = None) -> Tensor:
    """True at the first of the smallest, along an axis or of all; NaN is smaller.

    Examples:
        >>> xp.argmin_mask(np.array([[3.0, 1.0, 2.0], [0.5, 4.0, 4.0]]), axis=1)
        array([[False,  True, False],
               [ True, False, False]])
    """
    return apply(ops.ARGMIN_MASK, x, axis=None if axis is None else one_axis(x, axis))


def argmax(x: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The place of the first of the largest; NaN is larger.

    Examples:
        >>> xp.argmax(np.array([[3.0, 1.0, 2.0], [0.5, 4.0, 4.0]]), axis=1)
        array([0, 1])
    """
    return apply(
        ops.ARGMAX, x, axis=None if axis is None else one_axis(x, axis), keepdims=bool(keepdims)
    )


def argmin(x: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The place of the first of the smallest; NaN is smaller.

    Examples:
        >>> xp.argmin(np.array([[3.0, 1.0, 2.0], [0.5, 4.0, 4.0]]), axis=1)
        array([1, 0])
    """
    return apply(
        ops.ARGMIN, x, axis=None if axis is None else one_axis(x, axis), keepdims=bool(keepdims)
    )


def argsort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """The places that sort x along an axis, stable; NaN is larger than every number.

    Examples:
        >>> xp.argsort(np.array([3.0, 1.0, 2.0]))
        array([1, 2, 0])
    """
    return apply(ops.ARGSORT, x, axis=one_axis(x, axis), descending=bool(descending))


def median(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The middle value, the mean of the two middle ones of an even number; NaN propagates.

    Examples:
        >>> xp.median(np.array([[3.0, 1.0, 2.0], [0.5, 4.0, 4.0]]), axis=1)
        array([2., 4.])
    """
    return apply(ops.MEDIAN, x, axis=axes_of(x, axis), keepdims=bool(keepdims))
