"""The surrogate gradients of SpikingJelly 2.0.0, by its functions' names and with its defaults.

The forward that they belong to is `Heaviside` with `at_zero=1.0`. Without `tin` the factor is 1.
Its classes' names are accepted too: "spikingjelly.ATan".
"""

from __future__ import annotations

from typing import Any

from ....trace.xp import all as xp
from ...registry import register
from .. import curves

Tensor = Any


@register("spikingjelly.piecewise_quadratic", ranges={"alpha": "> 0 and finite"})
def piecewise_quadratic(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 1.0
) -> Tensor:
    """grad_out * alpha * max(0, 1 - alpha * |tin|): 0 from |tin| = 1 / alpha on.

    Source: `PiecewiseQuadratic` of spikingjelly.
    """
    return grad_out if tin is None else grad_out * curves.triangle(tin, alpha, alpha)


@register("spikingjelly.piecewise_exp", ranges={"alpha": "> 0 and finite"})
def piecewise_exp(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 1.0) -> Tensor:
    """grad_out * (alpha / 2) * exp(-alpha * |tin|): alpha / 2 at zero.

    Source: `PiecewiseExp` of spikingjelly.
    """
    return grad_out if tin is None else grad_out * curves.exponential(tin, 0.5 * alpha, alpha)


@register("spikingjelly.sigmoid", ranges={"alpha": "> 0 and finite"})
def sigmoid(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 4.0) -> Tensor:
    """grad_out * alpha * s(alpha tin) * (1 - s(alpha tin)), s the logistic sigmoid: alpha / 4 at
    zero.

    Source: `Sigmoid` of spikingjelly, the default of its neurons.
    """
    return grad_out if tin is None else grad_out * curves.sigmoid(tin, alpha)


@register("spikingjelly.soft_sign", ranges={"alpha": "> 0 and finite"})
def soft_sign(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 2.0) -> Tensor:
    """grad_out * (alpha / 2) / (1 + alpha * |tin|)^2: alpha / 2 at zero.

    Source: `SoftSign` of spikingjelly.
    """
    return grad_out if tin is None else grad_out * (0.5 * alpha * curves.fast_sigmoid(tin, alpha))


@register("spikingjelly.super_spike", ranges={"alpha": "finite"})
def super_spike(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 1.0) -> Tensor:
    """grad_out * alpha / (1 + |tin|)^2: alpha at zero.

    Here alpha is the height, in the paper and elsewhere the slope. Source: `SuperSpike` of
    spikingjelly.
    """
    return grad_out if tin is None else grad_out * (alpha * curves.fast_sigmoid(tin, 1.0))


@register("spikingjelly.atan", ranges={"alpha": "> 0 and finite"})
def atan(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 2.0) -> Tensor:
    """grad_out * (alpha / 2) / (1 + (pi/2 * alpha * tin)^2): alpha / 2 at zero.

    Source: `ATan` of spikingjelly; the same as our `arctan`.
    """
    return grad_out if tin is None else grad_out * curves.arctan(tin, alpha)


@register("spikingjelly.nonzero_sign_log_abs", ranges={"alpha": "> 0 and finite"})
def nonzero_sign_log_abs(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 1.0
) -> Tensor:
    """grad_out / (1 / alpha + |tin|): alpha at zero.

    Source: `NonzeroSignLogAbs` of spikingjelly.
    """
    return grad_out if tin is None else grad_out * curves.nonzero_sign_log(tin, alpha)


@register("spikingjelly.erf", ranges={"alpha": "> 0 and finite"})
def erf(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 2.0) -> Tensor:
    """grad_out * alpha / sqrt(pi) * exp(-(alpha * tin)^2): alpha / sqrt(pi) at zero.

    Source: `Erf` of spikingjelly.
    """
    return grad_out if tin is None else grad_out * curves.erf(tin, alpha)


@register("spikingjelly.piecewise_leaky_relu", ranges={"w": "> 0 and finite", "c": "finite"})
def piecewise_leaky_relu(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, w: float = 1.0, c: float = 0.01
) -> Tensor:
    """grad_out / (2 w) where |tin| < w, else c * grad_out (c at both edges).

    Source: `PiecewiseLeakyReLU` of spikingjelly.
    """
    return grad_out if tin is None else grad_out * xp.where(abs(tin) < w, 0.5 / w, c)


@register(
    "spikingjelly.squarewave_fourier_series", ranges={"n": ">= 1", "T_period": "> 0 and finite"}
)
def squarewave_fourier_series(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, n: int = 2, T_period: float = 8.0
) -> Tensor:
    """grad_out * (4 / T_period) * sum of cos((2i - 1) 2 pi tin / T_period) for i = 1..n - 1. NaN at
    infinity.

    One term less than n says, as in spikingjelly's code; `squarewave_fourier` has all n. Source:
    `SquarewaveFourierSeries` of spikingjelly.
    """
    return grad_out if tin is None else grad_out * curves.squarewave_fourier(tin, n - 1, T_period)


@register("spikingjelly.s2nn", ranges={"alpha": "> 0 and finite", "beta": "finite"})
def s2nn(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 4.0, beta: float = 1.0
) -> Tensor:
    """grad_out * alpha s(alpha tin) (1 - s(alpha tin)) where tin < 0, s the logistic sigmoid; else
    grad_out * beta / (tin + 1): beta at zero.

    Source: `S2NN` of spikingjelly.
    """
    return grad_out if tin is None else grad_out * curves.s2nn(tin, alpha, beta)


@register("spikingjelly.q_pseudo_spike", ranges={"alpha": "> 1 and finite"})
def q_pseudo_spike(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 2.0) -> Tensor:
    """grad_out * (1 + 2 |tin| / (alpha - 1))^-alpha, for alpha > 1: 1 at zero.

    Source: `QPseudoSpike` of spikingjelly.
    """
    return grad_out if tin is None else grad_out * curves.q_pseudo_spike(tin, alpha, alpha - 1.0)


@register("spikingjelly.leaky_k_relu", ranges={"leak": "finite", "k": "finite"})
def leaky_k_relu(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, leak: float = 0.0, k: float = 1.0
) -> Tensor:
    """grad_out * k where tin >= 0, else grad_out * leak (k at zero).

    Source: `LeakyKReLU` of spikingjelly.
    """
    return grad_out if tin is None else grad_out * xp.where(tin >= 0.0, k, leak)


@register("spikingjelly.fake_numerical_gradient", ranges={"alpha": ">= 0 and finite"})
def fake_numerical_gradient(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 0.3
) -> Tensor:
    """grad_out * min(1 / |tin|, alpha): alpha at both zeros.

    Source: `FakeNumericalGradient` of spikingjelly, which gives -inf at -0.0.
    """
    return grad_out if tin is None else grad_out * curves.numerical(tin, alpha)


@register("spikingjelly.log_tailed_relu", ranges={"alpha": "finite"})
def log_tailed_relu(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 0.0) -> Tensor:
    """grad_out / tin where tin > 1, grad_out where 0 < tin <= 1, else alpha * grad_out (alpha at
    zero).

    Source: `LogTailedReLU` of spikingjelly.
    """
    return grad_out if tin is None else grad_out * curves.log_tailed_relu(tin, alpha)


@register("spikingjelly.deterministic_pass")
def deterministic_pass(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """grad_out, unchanged.

    Source: `DeterministicPass` of spikingjelly.
    """
    return grad_out


@register("spikingjelly.poisson_pass")
def poisson_pass(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """grad_out, unchanged.

    Its forward draws spikes with probability tin. Source: `PoissonPass` of spikingjelly.
    """
    return grad_out


@register(
    "spikingjelly.multi_level_spike_count",
    ranges={"grad_min": "<= grad_max", "grad_max": ">= grad_min"},
)
def multi_level_spike_count(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, grad_min: float = 0.0, grad_max: float = 1.0
) -> Tensor:
    """grad_out where grad_min <= tin <= grad_max, else 0; both edges belong to the window.

    Its forward is tin rounded to a count of spikes. Source: `MultiLevelSpikeCount` of spikingjelly;
    grad_max is there the largest count.
    """
    return grad_out if tin is None else grad_out * ((tin >= grad_min) & (tin <= grad_max))


@register("spikingjelly.rect", ranges={"alpha": "> 0 and finite"})
def rect(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 1.0) -> Tensor:
    """grad_out * alpha where |tin| < 1 / (2 alpha), else 0; the edges do not belong to it.

    Source: `Rect` of spikingjelly.
    """
    return grad_out if tin is None else grad_out * (alpha * (abs(tin) < 0.5 / alpha))
