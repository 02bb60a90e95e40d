"""Known differences of torch's kernels (2.13, CPU); see `engine/backend/differences.py`."""

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
from multigrad.core.ops.numerics import erf

MEASURED = "torch 2.13"
NARROW = ("float16", "bfloat16", "float32")


def gelu_by_erf(x: Any) -> Any:
    return 0.5 * x * (1.0 + (0.5**0.5 * x).apply(erf))


def is_above_half_the_range(x: Any, params: dict[str, Any]) -> Any:
    narrow = x.dtype.name in NARROW
    return narrow & (x.astype(np.float64) > float(np.finfo(np.float32).max) / 2)


# Differences that remain: ours computes as torch does.
KEPT: tuple[Difference, ...] = (
    SIGN_OF_ZERO,
    zeros("remainder"),
    Difference(
        "gelu",
        "zero",
        ("float32",),
        "0 for -0",
        "oneDNN's kernel, on vectors of a processor without AVX-512",
        settled=False,
    ),
    SIGNS_OF_VECTORS,
    Difference(
        "torch.index_add, index_copy",
        "integers",
        ALL,
        "an error for a negative index",
        "as torch itself; its compiler counts it from the end",
    ),
    Difference(
        "GELU",
        "value",
        ALL,
        "half an eps of x, where the value is far smaller",
        "1 + erf cancels in the left tail",
        formula=gelu_by_erf,
    ),
    Difference(
        "GELU",
        "value",
        NARROW,
        "inf above half of the range of float32, NaN at inf",
        "oneDNN's kernel, where torch takes it: float16 only on processors that compute in it",
        settled=False,
        unsettled=is_above_half_the_range,
    ),
    Difference("ReLU", "own gradient", ALL, "1 at NaN", "it blocks x <= 0, which NaN is not"),
    Difference(
        "ReLU6", "own gradient", ALL, "1 at NaN", "it blocks x <= 0 and x >= 6, which NaN is not"
    ),
    Difference("ELU", "own gradient", ALL, "1 at NaN", "it scales where x <= 0, which NaN is not"),
)
# Differences that our kernels correct, with torch's own result. The pages list both tables.
MENDED: tuple[Mended, ...] = (
    Mended("torch.fmod, torch.remainder", "all", "NaN where a / b overflows: fmod(20, 1.2e-38)"),
    Mended("torch.floor_divide, its gradient", "all", "an error, where it is zero"),
    Mended("torch.polygamma(1, x)", "float64", "2.2e6 at 1.15"),
    Mended("torch.polygamma(2, x)", "all", "NaN at inf"),
    Mended("torch.special.ndtr", "float32, float64", "0 from -6 down, from -20 down"),
    Mended("torch.digamma", "float64", "loses every digit near its poles"),
    Mended("torch.nn.functional.hardswish", "all", "x * 6 overflows before it is divided by 6"),
    Mended("torch.special.ndtri, log_ndtr", "float16, bfloat16", "no kernel"),
    Mended("torch.erf", "bfloat16", "6 % near zero"),
    Mended("torch.linalg", "float16, bfloat16", "no kernel"),
    Mended(
        "torch.cdist",
        "float32",
        "3,112 between vectors near (30, 30, ...), beyond 25 rows, where it takes a matrix product "
        "unless compute_mode says otherwise; of codes about as near, a class may choose another "
        "one than its converted form",
    ),
    Mended(
        "torch.sqrt, a number over a tensor",
        "float32, float64",
        "half an eps: MKL's root, a reciprocal and a product; exact where a decision reads it",
    ),
    Mended(
        "torch.compile of 16-bit floats",
        "float16, bfloat16",
        "a cast to them and back is left out; made where a decision reads it",
    ),
    Mended("torch.sign", "all", "0 at NaN; ours stays NaN"),
    Mended("torch.prod", "float16, bfloat16", "25 and 47 over 1,001 factors"),
    Mended("torch.log_softmax", "float16, bfloat16", "0.78 and 0.91, not rounded once"),
    Mended("torch.logsumexp, its gradient", "all", "NaN over -inf alone; ours is 0"),
    Mended("torch.quantile", "all", "NaN at [1, inf, inf]; no 16-bit kernel"),
    Mended("Tensor.to(torch.float8_e4m3fn)", "all", "448 for what is out of range; ours is NaN"),
    Mended("keras.ops.mean", "float64", "computed in float32, also in losses"),
    Mended("keras.ops.round", "int32, int64", "rounded to float32"),
    Mended(
        "keras.losses.categorical_focal_crossentropy, kl_divergence",
        "bfloat16, float64",
        "keras.config.epsilon() is rounded to float32, 1 - p to bfloat16",
    ),
    Mended(
        "keras.losses.cosine_similarity",
        "float16, float64",
        "0 where a square overflows; norms of float32",
    ),
    Mended(
        "keras.losses.huber, log_cosh, hinge, squared_hinge, poisson, mean_absolute_error, "
        "mean_squared_error, mean_absolute_percentage_error, mean_squared_logarithmic_error, "
        "binary_crossentropy, binary_focal_crossentropy",
        "float64",
        "their mean is of float32",
    ),
    Mended("torch.median", "all", "the lower of two middle values; ours is their mean"),
)
DIFFERENCES = Differences(KEPT, MENDED, MEASURED)
