"""More surrogate gradients for spiking units, under plain names: each name has one curve.

`tin` is the membrane minus the threshold. Without it, where a rule acts on a parameter's gradient,
the factor is 1. What packages call by the same names, with curves, edges and defaults of their own,
is in `engine/rules/peers.py`.
"""

from __future__ import annotations

from . import curves

named = curves.table(__name__)
named("unit_rectangular", curves.unit_rectangular, "`Rect` of spikingjelly", alpha=1.0)
named(
    "piecewise_quadratic",
    curves.piecewise_quadratic,
    "Esser et al., 2016 (arXiv 1603.08270); `PiecewiseQuadratic` of spikingjelly",
    "A triangle of area 1.",
    alpha=1.0,
)
named(
    "sparse_fast_sigmoid",
    curves.sparse_fast_sigmoid,
    "Perez-Nieves and Goodman, 2021 (arXiv 2105.08810); `SFS` of snnTorch",
    slope=25.0,
    threshold=1.0,
)
named(
    "soft_sign_surrogate",
    curves.soft_sign,
    "the derivative of (1 + softsign(alpha x)) / 2; `SoftSign` of spikingjelly",
    alpha=2.0,
)
named("tanh_surrogate", curves.tanh_slope, "`tanh` of norse and of spyx", slope=1.0)
named(
    "erf_surrogate",
    curves.erf,
    "the derivative of erfc(-alpha x) / 2; `Erf` of spikingjelly",
    alpha=2.0,
)
named("circle", curves.circle, "`circ` of norse", "0.35 at |tin| = alpha.", alpha=1.0)
named(
    "gaussian",
    curves.gaussian,
    "Yin et al., 2021 (arXiv 2103.12593); `Gaussian` of sinabs",
    mean=0.0,
    sigma=0.5,
    scale=1.0,
)
named(
    "multi_gaussian",
    curves.multi_gaussian,
    "Yin et al., 2021 (arXiv 2103.12593); `MultiGaussian` of sinabs",
    mean=0.0,
    sigma=0.5,
    h=0.15,
    s=6.0,
    scale=1.0,
)
named(
    "exponential",
    curves.exponential,
    "Shrestha and Orchard, 2018 (SLAYER, arXiv 1810.08646)",
    alpha=1.0,
    scale=1.0,
)
named(
    "periodic_exponential",
    curves.periodic_exponential,
    "Weidel and Sheik, 2021 (WaveSense, arXiv 2111.01456); `PeriodicExponential` of sinabs",
    width=0.5,
    threshold=1.0,
    scale=1.0,
)
named("nonzero_sign_log", curves.nonzero_sign_log, "`NonzeroSignLogAbs` of spikingjelly", alpha=1.0)
named(
    "piecewise_leaky_relu",
    curves.piecewise_leaky_relu,
    "`PiecewiseLeakyReLU` of spikingjelly",
    w=1.0,
    c=0.01,
)
named(
    "squarewave_fourier",
    curves.squarewave_fourier,
    "`squarewave_fourier_series` of braintools; spikingjelly's sums n - 1 terms",
    n=2,
    period=8.0,
)
named(
    "s2nn",
    curves.s2nn,
    "Suetake et al., 2022 (S2NN, arXiv 2201.10879); `S2NN` of spikingjelly",
    alpha=4.0,
    beta=1.0,
)
named(
    "q_pseudo_spike",
    curves.q_pseudo_spike,
    "Herranz-Celotti and Rouat, 2022 (arXiv 2202.00282); `QPseudoSpike` of spikingjelly",
    alpha=2.0,
)
named("leaky_k_relu", curves.leaky_k_relu, "`LeakyKReLU` of spikingjelly", leak=0.0, k=1.0)
named(
    "leaky_spike",
    curves.leaky_spike,
    "the leaky spike operator, `LSO`, as snnTorch documents it",
    slope=0.1,
)
named(
    "log_tailed_relu",
    curves.log_tailed_relu,
    "Cai et al., 2017 (arXiv 1702.00953); `LogTailedReLU` of spikingjelly",
    alpha=0.0,
)
named(
    "fake_numerical_gradient",
    curves.numerical,
    "`FakeNumericalGradient` of spikingjelly, which gives -inf at -0.0",
    alpha=0.3,
)
named(
    "spike_rate_escape",
    curves.spike_rate_escape,
    "Gerstner and Kistler, 2002, the escape rate; `spike_rate_escape` of snnTorch",
    beta=1.0,
    slope=25.0,
)
named(
    "stochastic_spike",
    curves.stochastic_spike,
    "the stochastic spike operator, `SSO` of snnTorch",
    mean=0.0,
    variance=0.2,
)
