"""More surrogate gradients for spiking units, under plain names: each name has one curve.

`tin` is the membrane minus the threshold. Without it, where a rule acts on a parameter's gradient,
the factor is 1. What packages call by the same names, with curves, edges and defaults of their own,
is in the files beside this one.
"""

from __future__ import annotations

from typing import Any

from ...trace.xp import all as xp
from ..registry import register
from . import curves

Tensor = Any


@register("unit_rectangular", ranges={"alpha": "> 0 and finite"})
def unit_rectangular(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 1.0) -> Tensor:
    """grad_out * alpha where |tin| < 1 / (2 alpha), else 0: of area 1, without its edges.

    Source: `Rect` of spikingjelly.
    """
    return grad_out if tin is None else grad_out * (alpha * (abs(tin) < 0.5 / alpha))


@register("piecewise_quadratic", ranges={"alpha": "> 0 and finite"})
def piecewise_quadratic(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 1.0
) -> Tensor:
    """grad_out * alpha * max(0, 1 - alpha * |tin|): a triangle of area 1, 0 from |tin| = 1 / alpha
    on.

    Source: Esser et al., 2016 (arXiv 1603.08270); `PiecewiseQuadratic` of spikingjelly.
    """
    return grad_out if tin is None else grad_out * curves.triangle(tin, alpha, alpha)


@register("sparse_fast_sigmoid", ranges={"slope": ">= 0 and finite", "threshold": "finite"})
def sparse_fast_sigmoid(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, slope: float = 25.0, threshold: float = 1.0
) -> Tensor:
    """grad_out / (1 + slope * |tin|)^2 where tin > threshold, else 0 (0 at the threshold).

    Source: Perez-Nieves and Goodman, 2021 (arXiv 2105.08810); `SFS` of snnTorch.
    """
    if tin is None:
        return grad_out
    return grad_out * (curves.fast_sigmoid(tin, slope) * (tin > threshold))


@register("soft_sign_surrogate", ranges={"alpha": "> 0 and finite"})
def soft_sign_surrogate(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 2.0
) -> Tensor:
    """grad_out * (alpha / 2) / (1 + alpha * |tin|)^2: alpha / 2 at zero.

    Source: the derivative of (1 + softsign(alpha x)) / 2; `SoftSign` of spikingjelly.
    """
    return grad_out if tin is None else grad_out * (0.5 * alpha * curves.fast_sigmoid(tin, alpha))


@register("tanh_surrogate", ranges={"slope": ">= 0 and finite"})
def tanh_surrogate(ctx: Any, grad_out: Tensor, tin: Tensor | None, slope: float = 1.0) -> Tensor:
    """grad_out * (1 - tanh(slope * tin)^2): 1 at zero.

    Written as 4 s(2u) s(-2u), s the logistic sigmoid, which does not cancel. Source: `tanh` of
    norse and of spyx.
    """
    return grad_out if tin is None else grad_out * curves.tanh(tin, slope)


@register("erf_surrogate", ranges={"alpha": "> 0 and finite"})
def erf_surrogate(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 2.0) -> Tensor:
    """grad_out * alpha / sqrt(pi) * exp(-(alpha * tin)^2): alpha / sqrt(pi) at zero.

    Source: the derivative of erfc(-alpha x) / 2; `Erf` of spikingjelly.
    """
    return grad_out if tin is None else grad_out * curves.erf(tin, alpha)


@register("circle", ranges={"alpha": "> 0 and finite"})
def circle(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 1.0) -> Tensor:
    """grad_out * alpha^3 / (alpha^2 + tin^2)^(3/2): 1 at zero, 0.35 at |tin| = alpha.

    Written as (1 + (tin / alpha)^2)^(-3/2). Source: `circ` of norse.
    """
    return grad_out if tin is None else grad_out * curves.circle(tin, alpha)


@register("gaussian", ranges={"mean": "finite", "sigma": "> 0 and finite", "scale": "finite"})
def gaussian(
    ctx: Any,
    grad_out: Tensor,
    tin: Tensor | None,
    mean: float = 0.0,
    sigma: float = 0.5,
    scale: float = 1.0,
) -> Tensor:
    """grad_out * scale * N(tin; mean, sigma), N the density of the normal distribution.

    Source: Yin et al., 2021 (arXiv 2103.12593); `Gaussian` of sinabs.
    """
    return grad_out if tin is None else grad_out * (scale * curves.normal(tin, mean, sigma))


@register(
    "multi_gaussian",
    ranges={
        "mean": "finite",
        "sigma": "> 0 and finite",
        "h": "finite",
        "s": "> 0 and finite",
        "scale": "finite",
    },
)
def multi_gaussian(
    ctx: Any,
    grad_out: Tensor,
    tin: Tensor | None,
    mean: float = 0.0,
    sigma: float = 0.5,
    h: float = 0.15,
    s: float = 6.0,
    scale: float = 1.0,
) -> Tensor:
    """grad_out * scale * ((1 + h) N(tin; mean, sigma) - h N(tin; sigma, s sigma)
    - h N(tin; -sigma, s sigma)), N the density of the normal distribution.

    Source: Yin et al., 2021 (arXiv 2103.12593); `MultiGaussian` of sinabs.
    """
    if tin is None:
        return grad_out
    return grad_out * (scale * curves.multi_gaussian(tin, mean, sigma, h, s))


@register("exponential", ranges={"alpha": ">= 0 and finite", "scale": "finite"})
def exponential(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 1.0, scale: float = 1.0
) -> Tensor:
    """grad_out * scale * exp(-alpha * |tin|): scale at zero.

    Source: Shrestha and Orchard, 2018 (SLAYER, arXiv 1810.08646).
    """
    return grad_out if tin is None else grad_out * curves.exponential(tin, scale, alpha)


@register(
    "periodic_exponential",
    ranges={"width": "> 0 and finite", "threshold": "> 0 and finite", "scale": "finite"},
)
def periodic_exponential(
    ctx: Any,
    grad_out: Tensor,
    tin: Tensor | None,
    width: float = 0.5,
    threshold: float = 1.0,
    scale: float = 1.0,
) -> Tensor:
    """grad_out * scale * exp(-|u| / width): u = tin below zero; from zero on a sawtooth between
    -threshold and threshold that is zero at each multiple of the threshold, where a neuron spikes
    once more. NaN at infinity, where the sawtooth has no value.

    Source: Weidel and Sheik, 2021 (WaveSense, arXiv 2111.01456); `PeriodicExponential` of sinabs.
    """
    if tin is None:
        return grad_out
    return grad_out * curves.periodic_exponential(tin, scale, width, threshold)


@register("nonzero_sign_log", ranges={"alpha": "> 0 and finite"})
def nonzero_sign_log(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 1.0) -> Tensor:
    """grad_out / (1 / alpha + |tin|): alpha at zero.

    Source: `NonzeroSignLogAbs` of spikingjelly.
    """
    return grad_out if tin is None else grad_out * curves.nonzero_sign_log(tin, alpha)


@register("piecewise_leaky_relu", ranges={"w": "> 0 and finite", "c": "finite"})
def piecewise_leaky_relu(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, w: float = 1.0, c: float = 0.01
) -> Tensor:
    """grad_out / (2 w) where |tin| < w, else c * grad_out (c at both edges).

    Source: `PiecewiseLeakyReLU` of spikingjelly.
    """
    return grad_out if tin is None else grad_out * xp.where(abs(tin) < w, 0.5 / w, c)


@register("squarewave_fourier", ranges={"n": ">= 1", "period": "> 0 and finite"})
def squarewave_fourier(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, n: int = 2, period: float = 8.0
) -> Tensor:
    """grad_out * (4 / period) * sum of cos((2i - 1) 2 pi tin / period) for i = 1..n: the derivative
    of a square wave's first n Fourier terms. NaN at infinity.

    Source: `squarewave_fourier_series` of braintools; spikingjelly's sums n - 1 terms.
    """
    return grad_out if tin is None else grad_out * curves.squarewave_fourier(tin, n, period)


@register("s2nn", ranges={"alpha": "> 0 and finite", "beta": "finite"})
def s2nn(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 4.0, beta: float = 1.0
) -> Tensor:
    """grad_out * alpha s(alpha tin) (1 - s(alpha tin)) where tin < 0, s the logistic sigmoid; else
    grad_out * beta / (tin + 1): beta at zero.

    Source: Suetake et al., 2022 (S2NN, arXiv 2201.10879); `S2NN` of spikingjelly.
    """
    return grad_out if tin is None else grad_out * curves.s2nn(tin, alpha, beta)


@register("q_pseudo_spike", ranges={"alpha": "> 1 and finite"})
def q_pseudo_spike(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 2.0) -> Tensor:
    """grad_out * (1 + 2 |tin| / (alpha - 1))^-alpha, for alpha > 1: 1 at zero.

    Source: Herranz-Celotti and Rouat, 2022 (arXiv 2202.00282); `QPseudoSpike` of spikingjelly.
    """
    return grad_out if tin is None else grad_out * curves.q_pseudo_spike(tin, alpha, alpha - 1.0)


@register("leaky_k_relu", ranges={"leak": "finite", "k": "finite"})
def leaky_k_relu(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, leak: float = 0.0, k: float = 1.0
) -> Tensor:
    """grad_out * k where tin >= 0, else grad_out * leak (k at zero).

    Source: `LeakyKReLU` of spikingjelly.
    """
    return grad_out if tin is None else grad_out * xp.where(tin >= 0.0, k, leak)


@register("leaky_spike", ranges={"slope": "finite"})
def leaky_spike(ctx: Any, grad_out: Tensor, tin: Tensor | None, slope: float = 0.1) -> Tensor:
    """grad_out where tin > 0, else grad_out * slope (slope at zero).

    Source: the leaky spike operator, `LSO`, as snnTorch documents it.
    """
    return grad_out if tin is None else grad_out * xp.where(tin > 0.0, 1.0, slope)


@register("log_tailed_relu", ranges={"alpha": "finite"})
def log_tailed_relu(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 0.0) -> Tensor:
    """grad_out / tin where tin > 1, grad_out where 0 < tin <= 1, else alpha * grad_out (alpha at
    zero).

    Source: Cai et al., 2017 (arXiv 1702.00953); `LogTailedReLU` of spikingjelly.
    """
    return grad_out if tin is None else grad_out * curves.log_tailed_relu(tin, alpha)


@register("fake_numerical_gradient", ranges={"alpha": ">= 0 and finite"})
def fake_numerical_gradient(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 0.3
) -> Tensor:
    """grad_out * min(1 / |tin|, alpha): alpha at both zeros.

    Source: `FakeNumericalGradient` of spikingjelly, which gives -inf at -0.0.
    """
    return grad_out if tin is None else grad_out * curves.numerical(tin, alpha)


@register("spike_rate_escape", ranges={"beta": ">= 0 and finite", "slope": "finite"})
def spike_rate_escape(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, beta: float = 1.0, slope: float = 25.0
) -> Tensor:
    """grad_out * slope * exp(-beta * |tin - 1|): slope at tin = 1.

    Source: Gerstner and Kistler, 2002, the escape rate; `spike_rate_escape` of snnTorch.
    """
    return grad_out if tin is None else grad_out * curves.exponential(tin - 1.0, slope, beta)


@register("stochastic_spike", ranges={"mean": "finite", "variance": ">= 0 and finite"})
def stochastic_spike(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, mean: float = 0.0, variance: float = 0.2
) -> Tensor:
    """grad_out where tin > 0, else grad_out * (U - 1/2 + mean) * variance, with U uniform on [0, 1)
    for each element (zero counts as below).

    Source: the stochastic spike operator, `SSO` of snnTorch.
    """
    if tin is None:
        return grad_out
    return grad_out * xp.where(tin > 0.0, 1.0, (xp.rand_like(tin) - 0.5 + mean) * variance)
