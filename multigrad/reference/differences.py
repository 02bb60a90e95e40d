"""What SciPy's kernels do differently, which the NumPy reference calls (NumPy 2.4, SciPy 1.17)."""

from __future__ import annotations

from ..backend.differences import SIGN_OF_ZERO, Difference, Differences, Mended, zeros

MEASURED = "NumPy 2.4 and SciPy 1.17"
KEPT: tuple[Difference, ...] = (
    SIGN_OF_ZERO,
    zeros("cumsum, logcumsumexp, log_sigmoid, elu, celu, selu, erfinv, i1e"),
)
MENDED: tuple[Mended, ...] = (
    Mended("scipy.special.psi", "float64", "38 % one float above -1: -5.5e15, where it is -9.0e15"),
    Mended("scipy.special.gammaln", "all", "-inf at -inf; torch, jax and TensorFlow have inf"),
    Mended("numpy.cumsum", "float16, bfloat16", "602 and 191 over 3,000 terms"),
    Mended("numpy.prod", "bfloat16", "37 over 1,001 factors"),
    Mended("numpy.quantile", "all", "NaN where the neighbors are infinite: [1, inf, inf]"),
)
DIFFERENCES = Differences(KEPT, MENDED, MEASURED)
