"""`snntorch.surrogate` with our rules: `from multigrad.compat.snntorch import surrogate`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multigrad_torch.compat_snntorch import (
        LSO,
        SFS,
        SSO,
        ATan,
        CustomSurrogate,
        FastSigmoid,
        Heaviside,
        LeakySpikeOperator,
        Sigmoid,
        SparseFastSigmoid,
        SpikeRateEscape,
        StochasticSpikeOperator,
        StraightThroughEstimator,
        Triangular,
        atan,
        custom_surrogate,
        fast_sigmoid,
        heaviside,
        sigmoid,
        spike_rate_escape,
        straight_through_estimator,
        triangular,
    )

__all__ = [
    "LSO",
    "SFS",
    "SSO",
    "ATan",
    "CustomSurrogate",
    "FastSigmoid",
    "Heaviside",
    "LeakySpikeOperator",
    "Sigmoid",
    "SparseFastSigmoid",
    "SpikeRateEscape",
    "StochasticSpikeOperator",
    "StraightThroughEstimator",
    "Triangular",
    "atan",
    "custom_surrogate",
    "fast_sigmoid",
    "heaviside",
    "sigmoid",
    "spike_rate_escape",
    "straight_through_estimator",
    "surrogate",
    "triangular",
]
surrogate = sys.modules[__name__]  # the packages' own name for the module


def __getattr__(name: str) -> Any:
    if name in __all__:
        from ..backend.discovery import load_backend

        load_backend("torch")  # says what to install where torch is missing
        from multigrad_torch import compat_snntorch

        return getattr(compat_snntorch, name)
    raise AttributeError(f"module 'multigrad.compat.snntorch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
