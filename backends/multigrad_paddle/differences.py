"""What Paddle's kernels do differently (paddle 3.3, CPU); `multigrad/backend/differences.py`."""

from __future__ import annotations

from multigrad.backend import SIGN_OF_ZERO, SIGNS_OF_VECTORS, Difference, Differences, Mended

MEASURED = "paddle 3.3"
KEPT: tuple[Difference, ...] = (SIGN_OF_ZERO, SIGNS_OF_VECTORS)
MENDED: tuple[Mended, ...] = (
    Mended("paddle.equal, not_equal", "float32, float64", "equal within 1e-8: equal(0.0, 1e-9)"),
    Mended("paddle.exp", "float32, float64", "3e-39 and 6e-309 at -inf, where it is 0"),
    Mended("paddle.sqrt", "float32, float64", "NaN at inf"),
    Mended("paddle.pow", "float64", "inf from 2 eps below the largest number"),
    Mended("paddle.pow with a number", "float64", "the exponent is rounded to float32"),
    Mended("paddle.where with a number", "float64", "the number is rounded to float32"),
    Mended("Tensor * number, -Tensor", "all", "0.0 of -0.0"),
    Mended("paddle.nn.functional.relu", "float32, float64", "0 at NaN; ours stays NaN"),
    Mended("paddle.digamma", "float64", "loses every digit near its poles"),
    Mended("Tensor.astype('float16')", "float32", "3.6e-7 of 2e-26, where it is 0"),
    Mended("paddle.argsort", "all", "NaN anywhere, where descending"),
    Mended("Tensor.astype('float8_e4m3fn')", "all", "448 of inf and NaN; 57344 in float8_e5m2"),
    Mended("erfc, ndtr, log_ndtr", "all", "no kernel"),
    Mended("nearly all kernels", "float16, bfloat16", "none on a CPU: computed in float32"),
)
DIFFERENCES = Differences(KEPT, MENDED, MEASURED)
