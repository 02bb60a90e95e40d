"""`snntorch.surrogate` with our rules: `from multigrad.compat.snntorch import surrogate`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from . import served_by

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

if TYPE_CHECKING:
    from multigrad.compat import snntorch as surrogate  # noqa: PLW0406 (for type checkers)
    from multigrad_torch.compat.snntorch import *
else:
    # The packages' own name for the module, also in import statements.
    surrogate = sys.modules[f"{__name__}.surrogate"] = sys.modules[__name__]
    __getattr__, __dir__ = served_by("torch", "compat.snntorch", __name__, __all__)
