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
        deterministic_pass,
        erf,
        fake_numerical_gradient,
        heaviside,
        leaky_k_relu,
        log_tailed_relu,
        nonzero_sign_log_abs,
        piecewise_exp,
        piecewise_leaky_relu,
        piecewise_quadratic,
        poisson_pass,
        q_pseudo_spike,
        rect,
        s2nn,
        sigmoid,
        soft_sign,
        squarewave_fourier_series,
        super_spike,
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
    "deterministic_pass",
    "erf",
    "fake_numerical_gradient",
    "heaviside",
    "leaky_k_relu",
    "log_tailed_relu",
    "nonzero_sign_log_abs",
    "piecewise_exp",
    "piecewise_leaky_relu",
    "piecewise_quadratic",
    "poisson_pass",
    "q_pseudo_spike",
    "rect",
    "s2nn",
    "sigmoid",
    "soft_sign",
    "squarewave_fourier_series",
    "super_spike",
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
