"""Surrogates of snnTorch 1.0.0 under `vmap`, `torch.func` and `torch.compile` of these.

    with transformable():
        per_sample = torch.vmap(torch.func.grad(loss))(inputs)

A surrogate looks its class up when it fires, so those made before, and in neurons, change too.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from snntorch import surrogate

import multigrad as xg

# Not StochasticSpikeOperator, whose noise would come from another generator, nor
# LeakySpikeOperator, which cannot be called.
CLASSES = (
    "ATan",
    "CustomSurrogate",
    "FastSigmoid",
    "Heaviside",
    "Sigmoid",
    "SparseFastSigmoid",
    "SpikeRateEscape",
    "StraightThroughEstimator",
    "Triangular",
)


def transformable() -> AbstractContextManager[Any]:
    """Convert the surrogates of snnTorch until the end of the block."""
    converted: dict[str, Any] = {name: xg.convert(getattr(surrogate, name)) for name in CLASSES}
    return patch.multiple(surrogate, **converted)
