"""`spikingjelly.activation_based.surrogate` with our rules: `from multigrad.compat.spikingjelly
import surrogate`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multigrad_torch.compat_spikingjelly import (
        S2NN,
        ATan,
        DeterministicPass,
        Erf,
        FakeNumericalGradient,
        LeakyKReLU,
        LogTailedReLU,
        MultiLevelSpikeCount,
        NonzeroSignLogAbs,
        PiecewiseExp,
        PiecewiseLeakyReLU,
        PiecewiseQuadratic,
        PoissonPass,
        QPseudoSpike,
        Rect,
        Sigmoid,
        SoftSign,
        SquarewaveFourierSeries,
        SuperSpike,
        SurrogateFunctionBase,
        atan,
        atan_backward,
        check_manual_grad,
        deterministic_pass,
        erf,
        erf_backward,
        fake_numerical_gradient,
        fake_numerical_gradient_backward,
        heaviside,
        leaky_k_relu,
        leaky_k_relu_backward,
        log_tailed_relu,
        log_tailed_relu_backward,
        nonzero_sign_log_abs,
        nonzero_sign_log_abs_backward,
        piecewise_exp,
        piecewise_exp_backward,
        piecewise_leaky_relu,
        piecewise_leaky_relu_backward,
        piecewise_quadratic,
        piecewise_quadratic_backward,
        poisson_pass,
        q_pseudo_spike,
        rect,
        rect_backward,
        s2nn,
        sigmoid,
        sigmoid_backward,
        soft_sign,
        soft_sign_backward,
        squarewave_fourier_series,
        super_spike,
        super_spike_backward,
    )

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
surrogate = sys.modules[__name__]  # the packages' own name for the module


def __getattr__(name: str) -> Any:
    if name in __all__:
        from ..backend.discovery import load_backend

        load_backend("torch")  # says what to install where torch is missing
        from multigrad_torch import compat_spikingjelly

        return getattr(compat_spikingjelly, name)
    raise AttributeError(f"module 'multigrad.compat.spikingjelly' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
