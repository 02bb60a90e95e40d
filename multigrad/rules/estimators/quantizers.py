"""Quantizers with a fixed or clipped range: DoReFa, PACT, learned ends, quantization noise.

Rounding is to the nearest level, ties to even; 16-bit tensors are computed in float32 and rounded
once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...trace.xp import all as xp
from .declared import estimator, summed, widened

Tensor = Any
BITS = ">= 1 and <= 16"


def levels_of(bits: int) -> float:
    """Return the number of the highest level, counted from 0."""
    return 2.0**bits - 1.0


@estimator(ranges={"bits": BITS})
def dorefa_activations(x: Tensor, bits: int = 2) -> Any:
    """round(n * clip(x, 0, 1)) / n with n = 2**bits - 1.

    Gradients: x: 1 where 0 <= x <= 1, else 0. Source: Zhou et al., 2016 (DoReFa-Net, arXiv
    1606.06160); `DoReFa(mode="activations")` of larq.

    Examples:
        >>> y, pull = xg.vjp(xg.estimators.dorefa_activations, np.array([-0.5, 0.4, 2.0]))
        >>> y.round(3), pull(np.ones(3))[0]
        (array([0.   , 0.333, 1.   ]), array([0., 1., 0.]))
    """
    n = levels_of(bits)
    level = xp.round(xp.clip(widened(x), 0.0, 1.0) * n) / n

    def grad(grad_out: Tensor) -> Tensor:
        return xp.where((x >= 0) & (x <= 1), grad_out, 0.0)

    return xp.cast_like(level, x), grad


# tanh takes most of the time, and weights are few beside activations.
@estimator(ranges={"bits": BITS}, residuals="time")
def dorefa_weights(x: Tensor, bits: int = 2) -> Any:
    """2 * round(n * (tanh(x) / m + 1) / 2) / n - 1 with n = 2**bits - 1 and m the largest |tanh(x)|
    of the whole tensor; where all of x is 0, m is 1.

    Gradients: x: (1 - tanh(x)**2) / m; m itself passes none. Source: Zhou et al., 2016 (DoReFa-Net,
    arXiv 1606.06160); `DoReFa(mode="weights")` of larq.

    Examples:
        >>> y, pull = xg.vjp(xg.estimators.dorefa_weights, np.array([-0.5, 0.1, 1.0]))
        >>> y.round(3), pull(np.ones(3))[0].round(3)
        (array([-0.333,  0.333,  1.   ]), array([1.033, 1.3  , 0.551]))
    """
    n = levels_of(bits)
    limited = xp.tanh(widened(x))
    largest = xp.norm(limited, ord=xp.inf)
    largest = xp.where(largest == 0, 1.0, largest)
    level = xp.round((limited / largest * 0.5 + 0.5) * n) / n

    def grad(grad_out: Tensor) -> Tensor:
        slope = (1.0 - xp.square(limited)) / largest
        return xp.cast_like(widened(grad_out) * slope, x)

    return xp.cast_like(2.0 * level - 1.0, x), grad


@estimator(ranges={"alpha": "> 0 and finite", "bits": BITS})
def pact(x: Tensor, alpha: Tensor, bits: int = 4) -> Any:
    """round(clip(x, 0, alpha) * n / alpha) * alpha / n with n = 2**bits - 1; alpha > 0, for all or
    per channel.

    Gradients: x: 1 where 0 <= x < alpha, else 0; alpha: 1 where x >= alpha, else 0, summed to its
    shape. Source: Choi et al., 2018 (PACT, arXiv 1805.06085), eq. 1 to 3.

    Examples:
        >>> x, alpha = np.array([-1.0, 0.5, 3.0]), np.array(2.0)
        >>> y, pull = xg.vjp(xg.estimators.pact, x, alpha)
        >>> y.round(3)
        array([0.   , 0.533, 2.   ])
        >>> grad_x, grad_alpha = pull(np.ones(3))[:2]
        >>> grad_x, float(grad_alpha)
        (array([0., 1., 0.]), 1.0)
    """
    n, bound = levels_of(bits), widened(alpha)
    level = xp.round(xp.clip(widened(x) / bound, 0.0, 1.0) * n)

    def grad(grad_out: Tensor) -> Any:
        wide = widened(grad_out)
        clipped = x >= alpha
        grad_x = xp.where((x >= 0) & (x < alpha), grad_out, 0.0)
        return grad_x, summed(xp.where(clipped, wide, 0.0), alpha)

    return xp.cast_like(level / n * bound, x), grad


@estimator(
    ranges={"low": "< high and finite", "high": "finite", "bits": ">= 2 and <= 16"},
    examples=(np.linspace(-1.6, 1.5, 12).reshape(3, 4), np.array(-1.1), np.array(1.3), 4, False),
)
def fake_quantize(x: Tensor, low: Tensor, high: Tensor, bits: int = 8, narrow: bool = False) -> Any:
    """scale * (round((clip(x, m, M) - m) / scale) - z) with scale = (high - low) / n, the zero
    point z = round(-low / scale) kept in 0..n, and the ends m = -z * scale, M = (n - z) * scale
    moved so that 0 is a level; n = 2**bits - 1, or 2**bits - 2 where narrow. low < high, each for
    all or per channel.

    Gradients: x: 1 where m <= x <= M, else 0; low: 1 where x <= m; high: 1 where x >= M, each
    summed to its shape; the edges count for both. Source: Jacob et al., 2018 (arXiv 1712.05877),
    section 3; `fake_quant_with_min_max_vars` of Keras, which rounds ties up.

    Examples:
        >>> low, high = np.array(-1.0), np.array(1.0)
        >>> y, pull = xg.vjp(xg.estimators.fake_quantize, np.array([-3.0, 0.1, 0.6]), low, high, 3)
        >>> y.round(3)
        array([-1.143,  0.   ,  0.571])
        >>> grad_x, grad_low, grad_high = pull(np.ones(3))[:3]
        >>> grad_x, float(grad_low), float(grad_high)
        (array([0., 1., 1.]), 1.0, 0.0)
    """
    n = levels_of(bits) - float(narrow)
    wide, bottom, top = widened(x), widened(low), widened(high)
    scale = (top - bottom) / n
    # In this order the zero point of -a and a is n / 2 exactly, whatever a is.
    zero = xp.clip(xp.round(-bottom / (top - bottom) * n), 0.0, n)
    first, last = -zero * scale, (n - zero) * scale
    level = xp.round((xp.clip(wide, first, last) - first) / scale)

    def grad(grad_out: Tensor) -> Any:
        upstream = widened(grad_out)
        return (
            xp.where((wide >= first) & (wide <= last), grad_out, 0.0),
            summed(xp.where(wide <= first, upstream, 0.0), low),
            summed(xp.where(wide >= last, upstream, 0.0), high),
        )

    return xp.cast_like((level - zero) * scale, x), grad


@estimator(ranges={"factor": ">= 0 and <= 1"})
def quantization_noise(x: Tensor, q: Tensor, factor: float = 1.0) -> Any:
    """x + factor * (q - x): x on its way to its quantized value q.

    Gradients: x: 1 - factor; q: none. Source: `quantized_bits(use_ste=False, qnoise_factor=...)` of
    qkeras.

    Examples:
        >>> x, q = np.array([0.4, 0.6]), np.array([0.0, 1.0])
        >>> y, pull = xg.vjp(xg.estimators.quantization_noise, x, q, 0.5)  # half of the way
        >>> y, pull(np.ones(2))[0]
        (array([0.2, 0.8]), array([0.5, 0.5]))
    """
    between = xp.cast_like(x + factor * (q - x), x)
    return between, lambda grad_out: grad_out * (1.0 - factor)
