"""Differences of TensorFlow's kernels (2.21, CPU); see `engine/backend/differences.py`."""

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

MEASURED = "tensorflow 2.21"
POW = "Eigen's vectorized pow, the worse the larger the exponent"
TANH = "its own tanh, 1 from 18 on"


def elu_by_exp(x: Any) -> Any:
    # Only the suite, which has it, asks for numbers of this formula.
    from multigrad_conformance.oracles import where

    return where(x > 0, x, x.apply(np.exp) - 1.0)


KEPT: tuple[Difference, ...] = (
    SIGN_OF_ZERO,
    zeros("remainder, floor_divide"),
    SIGNS_OF_VECTORS,
    Difference(
        "*", "subnormals", ("bfloat16", "float32", "float64"), "taken for zero",
        "its kernels set the processor to flush them",
    ),
    Difference(
        "multiply", "compiled", ("float16", "float32", "float64"),
        "0 for NaN or an infinity times a mask that is False",
        "with jit_compile=True: XLA chooses by the mask and does not multiply",
    ),
    Difference(
        "ELU", "value", ALL, "half an eps of 1 near zero", "tf.nn.elu is exp(x) - 1, which cancels",
        formula=elu_by_exp,
    ),
    Difference(
        "ELU", "own gradient", ALL, "half an eps of 1 in the left tail, 1 at NaN",
        "the kernel takes y + 1 where y < 0, which NaN is not",
    ),
    Difference(
        "pow", "subnormals", ("bfloat16", "float32"), "2.8e-14 for 1.4e-45 to the power 0.3",
        "neither the power of the number nor that of zero",
    ),
    Difference(
        "log, lgamma", "subnormals", ("float32", "float64"), "-104 and 104, lgamma in float64 745",
        "those of the smallest subnormal number, for every one",
    ),
    Difference(
        "tf.math.unsorted_segment_sum", "integers", ALL,
        "a row is dropped whose id is too large, and gets no gradient",
        "as TensorFlow on a GPU and in XLA; its CPU kernel raises, and its own gradient in XLA "
        "takes the last segment's",
    ),
    Difference(
        "take, take_along_axis", "integers", ALL,
        "the nearest element for a place that lies outside",
        "with jit_compile=True, as XLA cannot raise; what is put outside is dropped",
    ),
    Difference("tanh", "slope", ("float64",), "4.2 eps of 1", TANH, ulps=5),
    Difference("tanh_shrink", "slope", ("float64",), "4.2 eps of 1", TANH, ulps=5),
    Difference("gelu, approximate", "slope", ("float64",), "6 eps of x", TANH, ulps=6),
    Difference(
        "cholesky, svd", "matrices", ALL, "NaN for a matrix that has no factor",
        "its kernels warn, where NumPy raises",
    ),
    Difference("pow", "value", ("float64",), "16 eps, 302 at (1.065, 9926)", POW, ulps=16),
    Difference("pow", "slope", ("float64",), "312 eps at (-1.07, 10,000)", POW, ulps=320),
)  # fmt: skip
MENDED: tuple[Mended, ...] = (
    Mended("tf.atan2", "float32, float64", "pi / 4 for a subnormal number over zero"),
    Mended("tf.math.erfinv", "float32, float64", "6e6 and 3e15 near 0; inf one float from 1"),
    Mended("tf.nn.selu", "float32, float64", "7e6 and 4e15 for small negative x: exp(x) - 1"),
    Mended("tf.math.erf", "float64", "NaN where the square of x overflows"),
    Mended("tf.linalg.expm", "float64", "4e6 of the norm at a norm of 9; NaN of one in all"),
    Mended("tf.math.floordiv", "all", "floor(a / b): inf // x is inf, 1 // 0.1 is 10"),
    Mended("tf.math.xlogy, xlog1py", "all", "0 at (0, NaN)"),
    Mended("tf.math.digamma", "float64", "loses every digit near its poles; NaN at 0"),
    Mended("tf.math.polygamma", "all", "of order 2 NaN at 0"),
    Mended(
        "tf.math.rsqrt, reciprocal, arithmetic with constants",
        "float32, float64",
        "half an eps, also as graphs and XLA rewrite it; exact where a decision reads it",
    ),
    Mended("tf.math.erfinv, ndtri, polygamma, floormod", "float16, bfloat16", "no kernel"),
    Mended("tf.math.lgamma, digamma", "bfloat16", "no kernel"),
    Mended("tf.bitwise.left_shift, right_shift", "int32, int64", "31, 63 for amounts out of range"),
    Mended("tf.cast to int32", "all", "left to the processor out of range; ours saturates"),
    Mended("tf.cumsum", "float16, bfloat16", "602 and 191 over 3,000 terms"),
    Mended("tf.math.cumprod", "float16, bfloat16", "5 and 37 over 1,001 factors"),
    Mended("tf.reduce_prod", "float16, bfloat16", "12 and 38 over 1,001 factors"),
    Mended("tf.nn.softmax", "float16", "1.8, not rounded once"),
    Mended("tf.nn.gelu", "float64", "2.3e7 of positive numbers: it holds float32 ones"),
    Mended("tf.linalg.qr", "float16", "NaN where the square of a number overflows"),
    Mended(
        "tf.sort, argsort, argmax",
        "all",
        "NaN anywhere: [-inf 1 nan 2 3 nan 0 inf] counts as sorted",
    ),
    Mended("tf.linalg.lu", "all", "square matrices alone; an error for a singular one; not in XLA"),
    Mended("tf.linalg.cholesky", "all", "uninitialized above the diagonal where it fails"),
    Mended("tf.linalg", "float16, bfloat16", "some without a kernel"),
    Mended("tf.pad in tf.vectorized_map", "all", "drops its constant_values"),
    Mended(
        "tf.math.cumprod, its gradient",
        "all",
        "wrong at a zero: [1, 0, 0] for [2, 0, 4], where it is [1, 10, 0]",
    ),
    Mended("tf.reduce_logsumexp, its gradient", "all", "NaN over -inf alone; ours is 0"),
)
DIFFERENCES = Differences(KEPT, MENDED, MEASURED)
