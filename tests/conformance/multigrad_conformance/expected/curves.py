"""The oracles of surrogate gradients: the factor of each rule, from its formula as it is published.

They are written as the papers and packages write them, not as the rules are. Rules of one factor on
the gradient differ in their formula alone, so that each is tested once on each backend, and not in
the matrix of all activations and dtypes as those in `oracles.RULES` are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..oracles import Draws, Exact, maximum, minimum, sigmoid, square, where

PI = float(np.pi)


def rounded(number: float, x: Exact) -> float:
    """The number as the dtype has it: what a period or a power makes of a large x depends on it."""
    return float(np.asarray(number, x.dtype))


def one(x: Exact) -> Exact:
    return x.lift(np.ones_like(x.value))


def arctan(x: Exact, alpha: float) -> Exact:
    return alpha / 2 / (1.0 + square(x * (PI / 2 * alpha)))


def super_spike(x: Exact, slope: float) -> Exact:
    return square(1.0 / (slope * abs(x) + 1.0))  # whose square overflows nowhere


def logistic(x: Exact, alpha: float) -> Exact:
    s = sigmoid(alpha * x)
    return alpha * s * sigmoid(-(alpha * x))


def tanh(x: Exact, k: float) -> Exact:
    return 2.0 * logistic(k * x, 2.0)  # 1 / cosh^2


def tent(x: Exact, height: float, slope: float) -> Exact:
    return height * maximum(1.0 - abs(slope * x), 0.0)


def bell(x: Exact, height: float, alpha: float) -> Exact:
    return height / PI**0.5 * (-square(alpha * x)).apply(np.exp)


def exponential(x: Exact, alpha: float) -> Exact:
    return (-(alpha * abs(x))).apply(np.exp)


def normal(x: Exact, mean: float, sigma: float) -> Exact:
    return (-0.5 * square((x - mean) / sigma)).apply(np.exp) / (sigma * (2 * PI) ** 0.5)


def multi_gaussian(x: Exact, mean: float, sigma: float, h: float, s: float) -> Exact:
    left, right = normal(x, -sigma, s * sigma), normal(x, sigma, s * sigma)
    return (1 + h) * normal(x, mean, sigma) - (h * right + h * left)


def periodic(x: Exact, width: float, threshold: float) -> Exact:
    threshold = rounded(threshold, x)

    def teeth(v: Any) -> Any:
        past = np.mod(v, threshold)
        return 2 * np.minimum(past, threshold - past)

    return (-(where(x < 0, -x, x.apply(teeth, 0)) / width)).apply(np.exp)


def circle(x: Exact, alpha: float) -> Exact:
    return (square(x / alpha) + 1.0).apply(lambda u: u**-1.5)


def fourier(x: Exact, terms: int, period: float) -> Exact:
    period = rounded(period, x)
    turn = x.apply(lambda v: np.mod(v, period), 0) * (2 * PI / period)
    total = 0.0 * turn
    for i in range(1, terms + 1):
        total = total + ((2 * i - 1.0) * turn).apply(np.cos)
    return 4 / period * total


def s2nn(x: Exact, alpha: float, beta: float) -> Exact:
    return where(x < 0, logistic(x, alpha), beta / (maximum(x, 0.0) + 1.0))


def pseudo_spike(x: Exact, alpha: float, width: float) -> Exact:
    power = -rounded(alpha, x)
    return (1.0 + 2 / width * abs(x)).apply(lambda u: u**power)


def log_tail(x: Exact, alpha: float) -> Exact:
    return where(x > 1, 1.0 / x, where(x > 0, 1.0, alpha * one(x)))


def numerical(x: Exact, alpha: float) -> Exact:
    return minimum(1.0 / abs(x), alpha)


def step(x: Exact, low: float, high: float, *, closed: bool) -> Exact:
    return where(x >= 0 if closed else x > 0, one(x) * high, low)


def stochastic(x: Exact, draws: Draws, mean: float, variance: float) -> Exact:
    return where(x > 0, 1.0, (draws.uniform() - 0.5 + mean) * variance)


def swish(x: Exact, beta: float) -> Exact:
    u = minimum(beta * abs(x), 1e4)
    slope = u.apply(lambda v: np.exp(-v) / (1 + np.exp(-v)) ** 2)  # half of 1 / (1 + cosh u)
    return 2 * beta * ((2.0 - u * (0.5 * u).apply(np.tanh)) * slope)


def inside(x: Exact, low: float, high: float) -> Exact:
    return one(x) * ((x >= low) & (x <= high))


# (x, draws, params as the rule's, with its defaults); not all edges are those of the plain name.
CURVES: dict[str, Callable[..., Exact]] = {
    "unit_rectangular": lambda x, _, alpha=1.0: where(abs(x) < 0.5 / alpha, alpha, 0.0 * one(x)),
    "piecewise_quadratic": lambda x, _, alpha=1.0: tent(x, alpha, alpha),
    "sparse_fast_sigmoid": lambda x, _, slope=25.0, threshold=1.0: (
        super_spike(x, slope) * (x > threshold)
    ),
    "soft_sign_surrogate": lambda x, _, alpha=2.0: alpha / 2 * super_spike(x, alpha),
    "tanh_surrogate": lambda x, _, slope=1.0: tanh(x, slope),
    "erf_surrogate": lambda x, _, alpha=2.0: bell(x, alpha, alpha),
    "circle": lambda x, _, alpha=1.0: circle(x, alpha),
    "gaussian": lambda x, _, mean=0.0, sigma=0.5, scale=1.0: scale * normal(x, mean, sigma),
    "multi_gaussian": lambda x, _, mean=0.0, sigma=0.5, h=0.15, s=6.0, scale=1.0: (
        scale * multi_gaussian(x, mean, sigma, h, s)
    ),
    "exponential": lambda x, _, alpha=1.0, scale=1.0: scale * exponential(x, alpha),
    "periodic_exponential": lambda x, _, width=0.5, threshold=1.0, scale=1.0: (
        scale * periodic(x, width, threshold)
    ),
    "nonzero_sign_log": lambda x, _, alpha=1.0: 1.0 / (abs(x) + 1 / alpha),
    "piecewise_leaky_relu": lambda x, _, w=1.0, c=0.01: where(abs(x) < w, 1 / (2 * w), c * one(x)),
    "squarewave_fourier": lambda x, _, n=2, period=8.0: fourier(x, n, period),
    "s2nn": lambda x, _, alpha=4.0, beta=1.0: s2nn(x, alpha, beta),
    "q_pseudo_spike": lambda x, _, alpha=2.0: pseudo_spike(x, alpha, alpha - 1),
    "leaky_k_relu": lambda x, _, leak=0.0, k=1.0: step(x, leak, k, closed=True),
    "leaky_spike": lambda x, _, slope=0.1: step(x, slope, 1.0, closed=False),
    "log_tailed_relu": lambda x, _, alpha=0.0: log_tail(x, alpha),
    "fake_numerical_gradient": lambda x, _, alpha=0.3: numerical(x, alpha),
    "spike_rate_escape": lambda x, _, beta=1.0, slope=25.0: slope * exponential(x - 1.0, beta),
    "stochastic_spike": lambda x, draws, mean=0.0, variance=0.2: stochastic(
        x, draws, mean, variance
    ),
    "snntorch.straight_through_estimator": lambda x, _: one(x),
    "snntorch.heaviside": lambda x, _: step(x, 0.0, 1.0, closed=False),
    "snntorch.triangular": lambda x, _, threshold=1.0: step(x, threshold, -threshold, closed=True),
    "snntorch.fast_sigmoid": lambda x, _, slope=25.0: super_spike(x, slope),
    "snntorch.atan": lambda x, _, alpha=2.0: arctan(x, alpha),
    "snntorch.sigmoid": lambda x, _, slope=25.0: logistic(x, slope),
    "snntorch.spike_rate_escape": lambda x, _, beta=1.0, slope=25.0: (
        slope * exponential(x - 1.0, beta)
    ),
    "snntorch.SFS": lambda x, _, slope=25.0, B=1.0: super_spike(x, slope) * (x > B),
    "snntorch.SSO": lambda x, draws, mean=0.0, variance=0.2: stochastic(x, draws, mean, variance),
    "snntorch.LSO": lambda x, _, slope=0.1: step(x, slope, 1.0, closed=False),
    "spikingjelly.piecewise_quadratic": lambda x, _, alpha=1.0: tent(x, alpha, alpha),
    "spikingjelly.piecewise_exp": lambda x, _, alpha=1.0: alpha / 2 * exponential(x, alpha),
    "spikingjelly.sigmoid": lambda x, _, alpha=4.0: logistic(x, alpha),
    "spikingjelly.soft_sign": lambda x, _, alpha=2.0: (
        1.0 / (1 / alpha + abs(x)) / (2 * alpha) / (1 / alpha + abs(x))  # no square overflows
    ),
    "spikingjelly.super_spike": lambda x, _, alpha=1.0: alpha * super_spike(x, 1.0),
    "spikingjelly.atan": lambda x, _, alpha=2.0: arctan(x, alpha),
    "spikingjelly.nonzero_sign_log_abs": lambda x, _, alpha=1.0: 1.0 / (abs(x) + 1 / alpha),
    "spikingjelly.erf": lambda x, _, alpha=2.0: bell(x, alpha, alpha),
    "spikingjelly.piecewise_leaky_relu": lambda x, _, w=1.0, c=0.01: where(
        abs(x) < w, 1 / (2 * w), c * one(x)
    ),
    "spikingjelly.squarewave_fourier_series": lambda x, _, n=2, T_period=8.0: fourier(
        x, n - 1, T_period
    ),
    "spikingjelly.s2nn": lambda x, _, alpha=4.0, beta=1.0: s2nn(x, alpha, beta),
    "spikingjelly.q_pseudo_spike": lambda x, _, alpha=2.0: pseudo_spike(x, alpha, alpha - 1),
    "spikingjelly.leaky_k_relu": lambda x, _, leak=0.0, k=1.0: step(x, leak, k, closed=True),
    "spikingjelly.fake_numerical_gradient": lambda x, _, alpha=0.3: numerical(x, alpha),
    "spikingjelly.log_tailed_relu": lambda x, _, alpha=0.0: log_tail(x, alpha),
    "spikingjelly.deterministic_pass": lambda x, _: one(x),
    "spikingjelly.poisson_pass": lambda x, _: one(x),
    "spikingjelly.multi_level_spike_count": lambda x, _, grad_min=0.0, grad_max=1.0: (
        one(x) * ((x >= grad_min) & (x <= grad_max))
    ),
    "spikingjelly.rect": lambda x, _, alpha=1.0: where(abs(x) < 0.5 / alpha, alpha, 0.0 * one(x)),
    "norse.super": lambda x, _, alpha=100.0: super_spike(x, alpha),
    "norse.triangle": lambda x, _, alpha=0.3: tent(x, alpha, 1.0),
    "norse.tanh": lambda x, _, alpha=100.0: tanh(x, alpha),
    "norse.circ": lambda x, _, alpha=100.0: circle(x, alpha),
    "norse.heavi_erfc": lambda x, _, alpha=100.0: bell(x, 2.0, alpha),
    "sinabs.Heaviside": lambda x, _, window=1.0, threshold=1.0: one(x) * (x >= -window) / threshold,
    "sinabs.Gaussian": lambda x, _, mu=0.0, sigma=0.5, grad_scale=1.0: (
        grad_scale * normal(x, mu, sigma)
    ),
    "sinabs.MultiGaussian": lambda x, _, mu=0.0, sigma=0.5, h=0.15, s=6.0, grad_scale=1.0: (
        grad_scale * multi_gaussian(x, mu, sigma, h, s)
    ),
    "sinabs.SingleExponential": lambda x, _, grad_width=0.5, grad_scale=1.0, threshold=1.0: (
        grad_scale / (grad_width * threshold) * exponential(x, 1 / (grad_width * threshold))
    ),
    "sinabs.PeriodicExponential": lambda x, _, grad_width=0.5, grad_scale=1.0, threshold=1.0: (
        grad_scale * periodic(x, grad_width, threshold)
    ),
    "spyx.boxcar": lambda x, _, width=2.0, height=0.5: where(
        abs(x) < width / 2, height, 0.0 * one(x)
    ),
    "spyx.triangular": lambda x, _, k=2.0: tent(x, 1.0, k),
    "spyx.arctan": lambda x, _, k=2.0: 1 / PI / (1.0 + square(x * (PI * k))),
    "spyx.superspike": lambda x, _, k=25.0: super_spike(x, k),
    "spyx.tanh": lambda x, _, k=1.0: tanh(x, k),
    "snnax.superspike": lambda x, _, beta=10.0: 1.0 / (beta * abs(x) + 1.0),
    "snnax.sigmoid": lambda x, _, beta=1.0: logistic(x, beta),
    "snnax.piecewise": lambda x, _, beta=0.5: one(x) * ((x > -beta) & (x < beta)),
    "braintools.sigmoid": lambda x, _, alpha=4.0: logistic(x, alpha),
    "braintools.piecewise_quadratic": lambda x, _, alpha=1.0: tent(x, alpha, alpha),
    "braintools.piecewise_exp": lambda x, _, alpha=1.0: alpha / 2 * exponential(x, alpha),
    "braintools.soft_sign": lambda x, _, alpha=1.0: alpha / 2 * super_spike(x, alpha),
    "braintools.arctan": lambda x, _, alpha=1.0: arctan(x, alpha),
    "braintools.nonzero_sign_log": lambda x, _, alpha=1.0: 1.0 / (abs(x) + 1 / alpha),
    "braintools.erf": lambda x, _, alpha=1.0: bell(x, alpha, alpha),
    "braintools.piecewise_leaky_relu": lambda x, _, c=0.01, w=1.0: where(
        abs(x) <= w, 1 / (2 * w), c * one(x)
    ),
    "braintools.squarewave_fourier_series": lambda x, _, n=2, t_period=8.0: fourier(x, n, t_period),
    "braintools.s2nn": lambda x, _, alpha=4.0, beta=1.0: s2nn(x, alpha, beta),
    "braintools.q_pseudo_spike": lambda x, _, alpha=2.0: pseudo_spike(x, alpha, alpha + 1),
    "braintools.leaky_relu": lambda x, _, alpha=0.1, beta=1.0: where(x < 0, alpha, beta * one(x)),
    "braintools.log_tailed_relu": lambda x, _, alpha=0.0: log_tail(x, alpha),
    "braintools.relu_grad": lambda x, _, alpha=0.3, width=1.0: alpha * maximum(width - abs(x), 0.0),
    "braintools.gaussian_grad": lambda x, _, sigma=0.5, alpha=0.5: alpha * normal(x, 0.0, sigma),
    "braintools.multi_gaussian_grad": lambda x, _, h=0.15, s=6.0, sigma=0.5, scale=0.5: (
        scale * multi_gaussian(x, 0.0, sigma, h, s)
    ),
    "braintools.inv_square_grad": lambda x, _, alpha=100.0: super_spike(x, alpha),
    "braintools.slayer_grad": lambda x, _, alpha=1.0: exponential(x, alpha),
    "approx_sign": lambda x, _: tent(x, 2.0, 1.0),
    "swish_sign": lambda x, _, beta=5.0: swish(x, beta),
    "absolute_binary_sign": lambda x, _: step(x, -1.0, 1.0, closed=True),
    "dorefa_activations": lambda x, _: inside(x, 0.0, 1.0),
    "qkeras.quantized_bits": lambda x, _, qnoise_factor=1.0, use_ste=True: (
        one(x) if use_ste else (1.0 - qnoise_factor) * one(x)
    ),
    "qkeras.binary": lambda x, _: tanh(x, 1.0),
    "qkeras.ternary": lambda x, _: tanh(x, 1.0),
    "larq.ste_sign": lambda x, _, clip_value=1.0: inside(x, -clip_value, clip_value),
    "larq.ste_tern": lambda x, _, clip_value=1.0: inside(x, -clip_value, clip_value),
    "larq.ste_heaviside": lambda x, _, clip_value=1.0: inside(x, -clip_value, clip_value),
    "larq.DoReFa": lambda x, _, k_bit=2, mode="activations": inside(x, 0.0, 1.0),
    "larq.approx_sign": lambda x, _: tent(x, 2.0, 1.0),
    "larq.swish_sign": lambda x, _, beta=5.0: swish(x, beta),
    "brevitas.abs_binary_sign_grad": lambda x, _: step(x, -1.0, 1.0, closed=True),
    "zennit.ReLUBetaSmooth": lambda x, _, beta_smooth=10.0: sigmoid(beta_smooth * x),
    "norse.Logistic": lambda x, _, k=100.0: tanh(x, k),
    "norse.CircDist": lambda x, _, alpha=100.0: circle(x, alpha),
    "rockpool.step_pwl": lambda x, _, window=0.5: one(x) * (x > -window),
    "rockpool.threshold_subtract": lambda x, _, window=0.5: one(x) * (x >= -window),
    "brevitas.round_ste": lambda x, _: one(x),
    "brevitas.ceil_ste": lambda x, _: one(x),
    "brevitas.floor_ste": lambda x, _: one(x),
    "brevitas.round_to_zero_ste": lambda x, _: one(x),
    "brevitas.dpu_round_ste": lambda x, _: one(x),
    "brevitas.binary_sign_ste": lambda x, _: one(x),
    "brevitas.ternary_sign_ste": lambda x, _: one(x),
    "brevitas.tensor_clamp_ste": lambda x, _: one(x),
    "brevitas.scalar_clamp_ste": lambda x, _: one(x),
    "brevitas.scalar_clamp_min_ste": lambda x, _: one(x),
    "zennit.Pass": lambda x, _: one(x),
}
RANDOM_CURVES = {"stochastic_spike", "snntorch.SSO"}
# The periodic ones have no limit there.
NAN_AT_INFINITY = {name for name in CURVES if "fourier" in name or "periodic" in name.lower()}
