"""Known differences of MLX's kernels (0.32, CPU); see `multigrad/engine/backend/differences.py`."""

from __future__ import annotations

from multigrad.backend import ALL, SIGN_OF_ZERO, SIGNS_OF_VECTORS, Difference, Differences, Mended

MEASURED = "mlx 0.32"
# Differences that remain: ours computes as MLX does.
KEPT: tuple[Difference, ...] = (
    SIGN_OF_ZERO,
    SIGNS_OF_VECTORS,
    Difference(
        "take, take_along_axis",
        "integers",
        ALL,
        "NaN for a place that lies outside",
        "nothing is computed yet, so that it cannot raise; what is put outside is dropped",
    ),
)
# Differences that our kernels correct: MLX's function, dtypes, and its error in eps or its result.
MENDED: tuple[Mended, ...] = (
    Mended("mlx.core.exp", "float32, float64", "31 at 80; 3.3e10, a float32 kernel"),
    Mended("mlx.core.sin, cos", "float64", "1.4e14 near zeros, a float32 kernel"),
    Mended("mlx.core.sigmoid", "float32, float64", "15; 1.1e10"),
    Mended("mlx.core.erf", "float32, float64", "1.3e6 and 1.6e14 near 0"),
    Mended("mlx.core.erfinv", "float64", "5.4e12"),
    Mended("mlx.core.softmax, logaddexp", "float64", "1.7e9 and 3.5e8"),
    Mended("mlx.core.sum, mean, any, all", "of no elements", "seen not to end, at times"),
    Mended("mlx.core.conv_general", "float64", "no kernel"),
    Mended("mlx.core.take, put", "places outside", "other memory is read or written"),
    Mended("mlx.core.linalg.cholesky", "no factor", "numbers that are none; ours is NaN"),
    Mended("mlx.core.linalg.eigh", "of NaN", "numbers; ours is NaN"),
    Mended("mlx.core.linalg.inv, solve, svd", "where they fail", "zeros when read twice; NaN"),
    Mended("mlx.core.linalg.inv, solve, lu_factor", "no rows", "the process ends"),
    Mended("mlx.core.conv_general", "no channels", "the process ends"),
)
DIFFERENCES = Differences(KEPT, MENDED, MEASURED)
