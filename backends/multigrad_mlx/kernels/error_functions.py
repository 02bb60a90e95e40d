"""MLX's kernels of the error functions, each named after its op.

MLX 0.32 has only `erf`, off by 1e6 eps near zero, and in float64 that of float32. These kernels fit
Chebyshev polynomials: up to 1 of erf(x) / x in 2 x^2 - 1, and beyond of (1 + 2 x) exp(x^2) erfc(x)
in (x - 3.75) / (x + 3.75).
"""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx

from multigrad.backend import random, rows_of

from .elementwise import clip, exp, widened

Tensor = Any
# fmt: off
ERF_FLOAT32 = (
    1.231640173e-6, -1.766908081e-5, 0.0002175119898, -0.002285419529, 0.01985249772,
    -0.1405360973, 0.9654687386,
)
ERF_FLOAT64 = (
    1.45481707596067901e-14, -3.80788273952634126e-13, 9.1676067460694449e-12,
    -2.03522840489946704e-10, 4.11580059766495944e-9, -7.51156928660088963e-8,
    1.22338273835240096e-6, -0.0000175371694411248254, 0.000217517156041601072,
    -0.00228548556114411321, 0.0198524966889837072, -0.140536089022717119, 0.965468738669867308,
)
ERFC_FLOAT32 = (
    1.852194739e-5, 2.204671891e-5, -0.0002843130758, 0.0003301674563, 0.001751157629,
    -0.009770087183, 0.02836410512, -0.05868544049, 0.09230393754, -0.1088052275, 0.08227677399,
    0.003585495314, -0.1402405995, 1.23751263,
)
ERFC_FLOAT64 = (
    -7.33950500852953935e-11, -3.75315827795962034e-11, 9.02214970034059035e-10,
    5.45715730470468791e-10, -6.54556021248026729e-9, -4.38928415998632839e-9,
    4.09712231527030033e-8, 2.42897629254887074e-8, -2.61147023599009552e-7,
    -5.82628107880077709e-8, 1.75344342511063337e-6, -9.72849582211122029e-7,
    -0.000011445049125831309, 0.0000223839120365506791, 0.000051649407775463988,
    -0.00029015397928986766, 0.000293713594805707373, 0.00175562583242175281,
    -0.00974657954761962297, 0.0283622774215155971, -0.0586933985905476187, 0.0923043211601983343,
    -0.108803930141707455, 0.082276738490151024, 0.00358541548546369005, -0.140240598585547018,
    1.23751263083782758,
)
# fmt: on


def polynomial(x: Tensor, narrow: tuple[float, ...], wide: tuple[float, ...]) -> Tensor:
    """Evaluate a polynomial by Horner's scheme; the highest power comes first."""
    first, *rest = wide if x.dtype == mx.float64 else narrow
    total = mx.full(x.shape, first, dtype=x.dtype)
    for coefficient in rest:
        total = total * x + coefficient
    return total


def within(x: Tensor) -> Tensor:
    """Return erf(x) for |x| up to 1."""
    x = clip(x, -1.0, 1.0)
    return x * polynomial(2.0 * x * x - 1.0, ERF_FLOAT32, ERF_FLOAT64)


def beyond(x: Tensor) -> Tensor:
    """Return erfc(x) for x from 0 on."""
    x = mx.minimum(x, 40.0)  # erfc is 0 there in every dtype; infinity would make NaN
    scaled = polynomial((x - 3.75) / (x + 3.75), ERFC_FLOAT32, ERFC_FLOAT64) / (1.0 + 2.0 * x)
    # The square is split, as rounding it would cost x^2 eps.
    high = mx.floor(x * 16.0) / 16.0
    return scaled * exp(-(x - high) * (x + high)) * exp(-high * high)


@widened
def erf(x: Tensor) -> Tensor:
    size = mx.abs(x)
    far = mx.where(x < 0, beyond(size) - 1.0, 1.0 - beyond(size))
    return mx.where(size < 1.0, within(x), far)


@widened
def erfc(x: Tensor) -> Tensor:
    tail = beyond(mx.abs(x))
    far = mx.where(x < 0, 2.0 - tail, tail)
    # Up to 0.5 the difference keeps its digits; beyond, 1 - erf would cancel.
    return mx.where(mx.abs(x) < 0.5, 1.0 - within(x), far)


@widened
def erfinv(x: Tensor) -> Tensor:
    # As for normal draws, in float64, which only the CPU has: MLX's own erfinv is a float32 one.
    with mx.stream(mx.cpu):
        wide = x.astype(mx.float64)
        inside = random.erfinv(clip(wide, -1.0 + 2.0**-53, 1.0 - 2.0**-53), mx, True)
        outside = mx.where(wide == 1.0, math.inf, mx.where(wide == -1.0, -math.inf, math.nan))
        return mx.where(mx.abs(wide) < 1.0, inside, outside).astype(x.dtype)


OPS = rows_of({name: globals()[name] for name in ("erf", "erfc", "erfinv")})
