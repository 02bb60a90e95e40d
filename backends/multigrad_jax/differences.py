"""Differences in value or gradient of XLA's and jax's kernels (jax 0.10, CPU); see
`multigrad/engine/backend/differences.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from multigrad.backend import (
    ALL,
    SIGN_OF_ZERO,
    SIGNS_OF_VECTORS,
    Difference,
    Differences,
    Mended,
    zeros,
)

MEASURED = "jax 0.10"
TANH = "its own tanh, off by 3.5 eps near 1"


def is_tiny_width(x: Any, params: dict[str, Any]) -> Any:
    return np.full(x.shape, x.dtype.name == "float16" and params.get("width", 1.0) < 2e-5)


KEPT: tuple[Difference, ...] = (
    SIGN_OF_ZERO,
    zeros("remainder, floor_divide, sign"),
    SIGNS_OF_VECTORS,
    Difference(
        "*", "subnormals", ("bfloat16", "float32", "float64"), "taken for zero",
        "XLA sets the processor to flush them; ours follow where they meet its arithmetic",
    ),
    Difference(
        "pow", "subnormals", ("bfloat16", "float32"), "2.8e-14 for 1.4e-45 to the power 0.3",
        "neither the power of the number nor that of zero",
    ),
    Difference(
        "*", "compiled", ALL, "x for log(exp(x)), also where exp(x) overflows or is 0",
        "XLA's algebra keeps the value of ops that meet, not the range on the way: it regroups "
        "quotients too",
    ),
    Difference(
        "*", "compiled", ("float16",), "0.15 for `q_pseudo_spike` with an alpha of 300",
        "XLA leaves out roundings between ops that it fuses, of which the rule gives one back",
    ),
    Difference(
        "multiply", "compiled", ("float16", "float32", "float64"),
        "0 for NaN or an infinity times a mask that is False",
        "XLA chooses by the mask and does not multiply; without jit, and in bfloat16, NaN",
    ),
    Difference(
        "*", "integers", ("int64",), "int32 where jax_enable_x64 is off",
        "jax has no int64 then: what is larger wraps around",
    ),
    Difference(
        "take, take_along_axis", "integers", ALL, "NaN for a place that lies outside",
        "compiled code cannot raise; what is put outside is dropped",
    ),
    Difference(
        "cholesky, inv, solve, svd, eigh", "matrices", ALL,
        "NaN or an infinity for a matrix that has none",
        "compiled code cannot raise, as NumPy does",
    ),
    Difference("cbrt", "slope", ("float64",), "4.3 eps", "its own cbrt, whose square it is",
        ulps=5),
    Difference("tanh", "slope", ("float64",), "7 eps of 1", TANH, ulps=8),
    Difference("tanh_shrink", "slope", ("float64",), "8 eps of 1", TANH, ulps=8),
    Difference("mish", "slope", ("float64",), "6 eps of x", TANH, ulps=7),
    Difference("gelu, approximate", "slope", ("float64",), "7 eps of x", TANH, ulps=7),
    Difference(
        "triangular", "rule", ("float16",), "inf or NaN for a width below 2e-5",
        "XLA divides by a scalar through its reciprocal, here above the range",
        unsettled=is_tiny_width,
    ),
    Difference(
        "LeakyReLU", "own gradient", ALL, "1 at 0",
        "jax.nn.leaky_relu takes the upper branch at zero"
    ),
    Difference(
        "ELU", "own gradient", ALL, "half an eps of 1 in the left tail",
        "the derivative of expm1 is its value + 1",
    ),
)  # fmt: skip
MENDED: tuple[Mended, ...] = (
    Mended(
        "jax.numpy.arctan2",
        "float32, float64",
        "NaN for two subnormal numbers, -pi for 5e-324 over -1",
    ),
    Mended("jax.numpy.log1p", "float64", "118 at -0.41"),
    Mended("jax.numpy.cbrt", "float32", "-5.6e-16 for subnormal numbers, and of the wrong sign"),
    Mended("jax.numpy.arctanh", "float64", "56"),
    Mended("jax.numpy.sinh, cosh", "float32, float64", "12 and 8.4 at 88"),
    Mended("jax.numpy.exp2", "all", "8.5 in float32, 7 in float64, 5 in float16, 36 in bfloat16"),
    Mended("jax.scipy.special.erfinv", "float32, float64", "4.1 and 15"),
    Mended("jax.scipy.special.log_ndtr", "float32, float64", "6e5; 8.9e4 absolute"),
    Mended("jax.scipy.special.digamma", "float64", "9,600 over -30 to -5"),
    Mended("jax.scipy.special.digamma", "all", "NaN at 0"),
    Mended("jax.scipy.special.polygamma", "all", "NaN at inf; of order 2 also at 0"),
    Mended("jax.scipy.linalg.expm", "float64", "4e6 of the norm at a norm of 9; NaN above 3e5"),
    Mended("jax.numpy.linalg", "float16, bfloat16", "no kernel"),
    Mended(
        "x / y, a * b + c, 1 / sqrt, arithmetic with constants",
        "all",
        "half an eps, as XLA rewrites it; exact where a decision reads it",
    ),
    Mended("jax.nn.mish", "float16", "801 at -18"),
    Mended("jax.numpy.take, x[i]", "int64", "the element at i modulo 2**32; ours is outside"),
    Mended("jax.scipy.special.ndtr, ndtri, log_ndtr", "float16, bfloat16", "no kernel"),
    Mended("jax.numpy.cumsum", "float16, bfloat16", "37 and 244 over 3,000 terms"),
    Mended("jax.numpy.cumprod", "float16, bfloat16", "28 and 43 over 1,001 factors"),
    Mended(
        "jax.numpy.quantile, percentile",
        "all",
        "an eps of the dtype of q, rounded to it or not as XLA fuses",
    ),
    Mended("jax.numpy.divide, true_divide", "bool", "0 for 0 / 0: XLA chooses instead"),
    Mended("jax.nn.celu", "bool", "0 for NaN where alpha is False, as XLA fuses"),
    Mended("jax.nn.softmax", "float16, bfloat16", "1.8 and 1.6, not rounded once"),
    Mended("jax.nn.logsumexp, its gradient", "all", "NaN over -inf alone; ours is 0"),
)
DIFFERENCES = Differences(KEPT, MENDED, MEASURED)
