"""More surrogate gradients for spiking units, under plain names: each name has one curve.

`tin` is the membrane minus the threshold. Without it, where a rule acts on a parameter's gradient,
the factor is 1. What packages call by the same names, with curves, edges and defaults of their own,
is in `engine/rules/peers.py`.
"""

from __future__ import annotations

import math

from ...support.trees import Tensor
from ...trace.xp import all as xp
from . import curves
from .curves import FINITE, NOT_NEGATIVE, POSITIVE, rule_of_curve


# --- windows --------------------------------------------------------------------------------------
@rule_of_curve("unit_rectangular", alpha=POSITIVE)
def unit_rectangular(tin: Tensor, alpha: float = 1.0) -> Tensor:
    """grad_out * alpha where |tin| < 1 / (2 alpha), else 0; the edges do not belong to it.

    Source: `Rect` of spikingjelly.
    """
    return alpha * (abs(tin) < 0.5 / alpha)


@rule_of_curve("piecewise_quadratic", alpha=POSITIVE)
def piecewise_quadratic(tin: Tensor, alpha: float = 1.0) -> Tensor:
    """grad_out * alpha * max(0, 1 - alpha * |tin|): 0 from |tin| = 1 / alpha on.

    A triangle of area 1. Source: Esser et al., 2016 (arXiv 1603.08270); `PiecewiseQuadratic` of
    spikingjelly.
    """
    return curves.triangle(tin, alpha, alpha)


@rule_of_curve("piecewise_leaky_relu", w=POSITIVE, c=FINITE)
def piecewise_leaky_relu(tin: Tensor, w: float = 1.0, c: float = 0.01) -> Tensor:
    """grad_out / (2 w) where |tin| < w, else c * grad_out (c at both edges).

    Source: `PiecewiseLeakyReLU` of spikingjelly.
    """
    return xp.where(abs(tin) < w, 0.5 / w, c)


@rule_of_curve("fake_numerical_gradient", alpha=NOT_NEGATIVE)
def fake_numerical_gradient(tin: Tensor, alpha: float = 0.3) -> Tensor:
    """grad_out * min(1 / |tin|, alpha): alpha at both zeros.

    Source: `FakeNumericalGradient` of spikingjelly, which gives -inf at -0.0.
    """
    is_near = abs(tin) * alpha <= 1.0
    return xp.where(is_near, alpha, 1.0 / xp.where(is_near, 1.0, abs(tin)))


# --- slopes of sigmoids ---------------------------------------------------------------------------
@rule_of_curve("sparse_fast_sigmoid", slope=NOT_NEGATIVE, threshold=FINITE)
def sparse_fast_sigmoid(tin: Tensor, slope: float = 25.0, threshold: float = 1.0) -> Tensor:
    """grad_out / (1 + slope * |tin|)^2 where tin > threshold, else 0 (0 at threshold).

    Source: Perez-Nieves and Goodman, 2021 (arXiv 2105.08810); `SFS` of snnTorch.
    """
    return curves.fast_sigmoid(tin, slope) * (tin > threshold)


@rule_of_curve("soft_sign_surrogate", alpha=POSITIVE)
def soft_sign_surrogate(tin: Tensor, alpha: float = 2.0) -> Tensor:
    """grad_out * (alpha / 2) / (1 + alpha * |tin|)^2: alpha / 2 at zero.

    Source: the derivative of (1 + softsign(alpha x)) / 2; `SoftSign` of spikingjelly.
    """
    u = 1.0 / (1.0 + alpha * abs(tin))
    return 0.5 * alpha * u * u  # in this order u * u does not underflow


@rule_of_curve("tanh_surrogate", slope=NOT_NEGATIVE)
def tanh_surrogate(tin: Tensor, slope: float = 1.0) -> Tensor:
    """grad_out * (1 - tanh(slope * tin)^2): 1 at zero.

    Source: `tanh` of norse and of spyx.
    """
    return curves.tanh_slope(tin, slope)


@rule_of_curve("erf_surrogate", alpha=POSITIVE)
def erf_surrogate(tin: Tensor, alpha: float = 2.0) -> Tensor:
    """grad_out * alpha / sqrt(pi) * exp(-(alpha * tin)^2): alpha / sqrt(pi) at zero.

    Source: the derivative of erfc(-alpha x) / 2; `Erf` of spikingjelly.
    """
    return curves.bell(tin, alpha * math.pi**-0.5, alpha)


@rule_of_curve("circle", alpha=POSITIVE)
def circle(tin: Tensor, alpha: float = 1.0) -> Tensor:
    """grad_out * alpha^3 / (alpha^2 + tin^2)^(3/2): 1 at zero.

    0.35 at |tin| = alpha. Source: `circ` of norse.
    """
    u = tin / alpha
    return (1.0 + u * u) ** -1.5


@rule_of_curve("nonzero_sign_log", alpha=POSITIVE)
def nonzero_sign_log(tin: Tensor, alpha: float = 1.0) -> Tensor:
    """grad_out / (1 / alpha + |tin|): alpha at zero.

    Source: `NonzeroSignLogAbs` of spikingjelly.
    """
    return 1.0 / (1.0 / alpha + abs(tin))


@rule_of_curve("s2nn", alpha=POSITIVE, beta=FINITE)
def s2nn(tin: Tensor, alpha: float = 4.0, beta: float = 1.0) -> Tensor:
    """grad_out * alpha s(alpha tin) (1 - s(alpha tin)) where tin < 0, s the logistic sigmoid; else
    grad_out * beta / (tin + 1): beta at zero.

    Source: Suetake et al., 2022 (S2NN, arXiv 2201.10879); `S2NN` of spikingjelly.
    """
    right_side = beta / (xp.maximum(tin, 0.0) + 1.0)
    return xp.where(tin < 0.0, curves.sigmoid(tin, alpha), right_side)


@rule_of_curve("q_pseudo_spike", alpha="> 1 and finite")
def q_pseudo_spike(tin: Tensor, alpha: float = 2.0) -> Tensor:
    """grad_out * (1 + 2 |tin| / (alpha - 1))^-alpha, for alpha > 1: 1 at zero.

    Source: Herranz-Celotti and Rouat, 2022 (arXiv 2202.00282); `QPseudoSpike` of spikingjelly.
    """
    return curves.pseudo_spike(tin, alpha, alpha - 1.0)


# --- densities and exponentials -------------------------------------------------------------------
@rule_of_curve("gaussian", mean=FINITE, sigma=POSITIVE, scale=FINITE)
def gaussian(tin: Tensor, mean: float = 0.0, sigma: float = 0.5, scale: float = 1.0) -> Tensor:
    """grad_out * scale * N(tin; mean, sigma), N the density of the normal distribution.

    Source: Yin et al., 2021 (arXiv 2103.12593); `Gaussian` of sinabs.
    """
    return scale * curves.normal(tin, mean, sigma)


@rule_of_curve("multi_gaussian", mean=FINITE, sigma=POSITIVE, h=FINITE, s=POSITIVE, scale=FINITE)
def multi_gaussian(
    tin: Tensor,
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
    sides = curves.normal(tin, sigma, s * sigma) + curves.normal(tin, -sigma, s * sigma)
    return scale * ((1.0 + h) * curves.normal(tin, mean, sigma) - h * sides)


@rule_of_curve("exponential", alpha=NOT_NEGATIVE, scale=FINITE)
def exponential(tin: Tensor, alpha: float = 1.0, scale: float = 1.0) -> Tensor:
    """grad_out * scale * exp(-alpha * |tin|): scale at zero.

    Source: Shrestha and Orchard, 2018 (SLAYER, arXiv 1810.08646).
    """
    return curves.exponential(tin, alpha, scale)


@rule_of_curve("spike_rate_escape", beta=NOT_NEGATIVE, slope=FINITE)
def spike_rate_escape(tin: Tensor, beta: float = 1.0, slope: float = 25.0) -> Tensor:
    """grad_out * slope * exp(-beta * |tin - 1|): slope at tin = 1.

    Source: Gerstner and Kistler, 2002, the escape rate; `spike_rate_escape` of snnTorch.
    """
    return curves.exponential(tin - 1.0, beta, slope)


@rule_of_curve("periodic_exponential", width=POSITIVE, threshold=POSITIVE, scale=FINITE)
def periodic_exponential(
    tin: Tensor, width: float = 0.5, threshold: float = 1.0, scale: float = 1.0
) -> Tensor:
    """grad_out * scale * exp(-|u| / width): u = tin below zero; from zero on a sawtooth between
    -threshold and threshold that is zero at each multiple of the threshold, where a neuron spikes
    once more. NaN at infinity, where the sawtooth has no value.

    Source: Weidel and Sheik, 2021 (WaveSense, arXiv 2111.01456); `PeriodicExponential` of sinabs.
    """
    phase = xp.remainder(tin, threshold)
    teeth = 2.0 * xp.minimum(phase, threshold - phase)
    return scale * xp.exp(-(xp.where(tin < 0.0, -tin, teeth) / width))


@rule_of_curve("squarewave_fourier", n=">= 1", period=POSITIVE)
def squarewave_fourier(tin: Tensor, n: int = 2, period: float = 8.0) -> Tensor:
    """grad_out * (4 / period) * sum of cos((2i - 1) 2 pi tin / period) for i = 1..n: the derivative
    of a square wave's first n Fourier terms. NaN at infinity.

    Source: `squarewave_fourier_series` of braintools; spikingjelly's sums n - 1 terms.
    """
    return curves.squarewave_fourier(tin, n, period)


# --- of one side, and drawn -----------------------------------------------------------------------
@rule_of_curve("leaky_k_relu", leak=FINITE, k=FINITE)
def leaky_k_relu(tin: Tensor, leak: float = 0.0, k: float = 1.0) -> Tensor:
    """grad_out * k where tin >= 0, else grad_out * leak (k at zero).

    Source: `LeakyKReLU` of spikingjelly.
    """
    return xp.where(tin >= 0.0, k, leak)


@rule_of_curve("leaky_spike", slope=FINITE)
def leaky_spike(tin: Tensor, slope: float = 0.1) -> Tensor:
    """grad_out where tin > 0, else grad_out * slope (slope at zero).

    Source: the leaky spike operator, `LSO`, as snnTorch documents it.
    """
    return xp.where(tin > 0.0, 1.0, slope)


@rule_of_curve("log_tailed_relu", alpha=FINITE)
def log_tailed_relu(tin: Tensor, alpha: float = 0.0) -> Tensor:
    """grad_out / tin where tin > 1, grad_out where 0 < tin <= 1, else alpha * grad_out (alpha at
    zero).

    Source: Cai et al., 2017 (arXiv 1702.00953); `LogTailedReLU` of spikingjelly.
    """
    return xp.where(tin > 0.0, 1.0 / xp.maximum(tin, 1.0), alpha)


@rule_of_curve("stochastic_spike", mean=FINITE, variance=NOT_NEGATIVE)
def stochastic_spike(tin: Tensor, mean: float = 0.0, variance: float = 0.2) -> Tensor:
    """grad_out where tin > 0, else grad_out * (U - 1/2 + mean) * variance, with U uniform on [0, 1)
    for each element (zero counts as below).

    Source: the stochastic spike operator, `SSO` of snnTorch.
    """
    return xp.where(tin > 0.0, 1.0, (xp.rand_like(tin) - 0.5 + mean) * variance)
