"""`spikingjelly.activation_based.surrogate` with our rules: `from multigrad.compat.spikingjelly
import surrogate`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from . import served_by

__all__ = [
    "S2NN",
    "ATan",
    "DeterministicPass",
    "Erf",
    "FakeNumericalGradient",
    "LeakyKReLU",
    "LogTailedReLU",
    "MultiLevelSpikeCount",
    "NonzeroSignLogAbs",
    "PiecewiseExp",
    "PiecewiseLeakyReLU",
    "PiecewiseQuadratic",
    "PoissonPass",
    "QPseudoSpike",
    "Rect",
    "Sigmoid",
    "SoftSign",
    "SquarewaveFourierSeries",
    "SuperSpike",
    "SurrogateFunctionBase",
    "atan",
    "atan_backward",
    "check_manual_grad",
    "deterministic_pass",
    "erf",
    "erf_backward",
    "fake_numerical_gradient",
    "fake_numerical_gradient_backward",
    "heaviside",
    "leaky_k_relu",
    "leaky_k_relu_backward",
    "log_tailed_relu",
    "log_tailed_relu_backward",
    "nonzero_sign_log_abs",
    "nonzero_sign_log_abs_backward",
    "piecewise_exp",
    "piecewise_exp_backward",
    "piecewise_leaky_relu",
    "piecewise_leaky_relu_backward",
    "piecewise_quadratic",
    "piecewise_quadratic_backward",
    "poisson_pass",
    "q_pseudo_spike",
    "rect",
    "rect_backward",
    "s2nn",
    "sigmoid",
    "sigmoid_backward",
    "soft_sign",
    "soft_sign_backward",
    "squarewave_fourier_series",
    "super_spike",
    "super_spike_backward",
    "surrogate",
]

if TYPE_CHECKING:
    from multigrad.compat import spikingjelly as surrogate  # noqa: PLW0406 (for type checkers)
    from multigrad_torch.compat.spikingjelly import *
else:
    # The packages' own name for the module, also in import statements.
    surrogate = sys.modules[f"{__name__}.surrogate"] = sys.modules[__name__]
    __getattr__, __dir__ = served_by("torch", "compat.spikingjelly", __name__, __all__)
