"""The surrogate gradients of SpikingJelly 2.0.0, by its functions' names and with its defaults.

The forward that they belong to is `Heaviside` with `at_zero=1.0`. Without `tin` the factor is 1.
Its classes' names are accepted too: "spikingjelly.ATan".
"""

from __future__ import annotations

from typing import Any

from ...registry import register
from .. import curves
from ..straight_through import straight_through
from ..surrogate import rectangular

Tensor = Any
named = curves.table(__name__)
named(
    "spikingjelly.piecewise_quadratic", curves.piecewise_quadratic, "PiecewiseQuadratic", alpha=1.0
)
named("spikingjelly.piecewise_exp", curves.piecewise_exp, "PiecewiseExp", alpha=1.0)
named(
    "spikingjelly.sigmoid",
    curves.sigmoid,
    "`Sigmoid` of spikingjelly, the default of its neurons",
    alpha=4.0,
)
named("spikingjelly.soft_sign", curves.soft_sign, "SoftSign", alpha=2.0)
named(
    "spikingjelly.atan",
    curves.arctan,
    "`ATan` of spikingjelly; the same as our `arctan`",
    alpha=2.0,
)
named("spikingjelly.nonzero_sign_log_abs", curves.nonzero_sign_log, "NonzeroSignLogAbs", alpha=1.0)
named("spikingjelly.erf", curves.erf, "Erf", alpha=2.0)
named(
    "spikingjelly.piecewise_leaky_relu",
    curves.piecewise_leaky_relu,
    "PiecewiseLeakyReLU",
    w=1.0,
    c=0.01,
)
named("spikingjelly.s2nn", curves.s2nn, "S2NN", alpha=4.0, beta=1.0)
named("spikingjelly.q_pseudo_spike", curves.q_pseudo_spike, "QPseudoSpike", alpha=2.0)
named("spikingjelly.leaky_k_relu", curves.leaky_k_relu, "LeakyKReLU", leak=0.0, k=1.0)
named(
    "spikingjelly.fake_numerical_gradient",
    curves.numerical,
    "`FakeNumericalGradient` of spikingjelly, which gives -inf at -0.0",
    alpha=0.3,
)
named("spikingjelly.log_tailed_relu", curves.log_tailed_relu, "LogTailedReLU", alpha=0.0)
named("spikingjelly.rect", curves.unit_rectangular, "Rect", alpha=1.0)
named("spikingjelly.deterministic_pass", straight_through, "DeterministicPass")
named(
    "spikingjelly.poisson_pass",
    straight_through,
    "PoissonPass",
    "Its forward draws spikes with probability tin.",
)
named(
    "spikingjelly.multi_level_spike_count",
    rectangular,
    "`MultiLevelSpikeCount` of spikingjelly; grad_max is there the largest count",
    "Its forward is tin rounded to a count of spikes.",
    a=("grad_min", 0.0),
    b=("grad_max", 1.0),
)


@register("spikingjelly.super_spike", ranges={"alpha": "finite"})
def super_spike(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 1.0) -> Tensor:
    """grad_out * alpha / (1 + |tin|)^2: alpha at zero.

    Here alpha is the height, in the paper and elsewhere the slope. Source: `SuperSpike` of
    spikingjelly.
    """
    return grad_out if tin is None else grad_out * (alpha * curves.fast_sigmoid(tin, 1.0))


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
    return grad_out if tin is None else grad_out * curves.squarewave(tin, n - 1, T_period)
