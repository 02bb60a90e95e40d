"""The rule library, one file per family; importing it registers every rule."""

from . import (
    attribution,
    binary,
    jamming,
    limits,
    quantization,
    spiking,
    straight_through,
    surrogate,
    tasks,
    transforms,
)
from .peers import braintools, names, optax, peers, snntorch, spikingjelly

# Of version 0.1.0: to register one of these names again is an error. The others give way to a
# user's.
KEPT = (
    "arctan", "centralize", "clip_norm", "clipped_straight_through", "d(Linear)", "d(ReLU)",
    "fast_sigmoid", "full_jam", "gradient_reversal", "noise", "positive_jam", "rectangular",
    "rectangular_jam", "scale", "sigmoid_surrogate", "straight_through", "triangular",
)  # fmt: skip
__all__ = [
    "attribution", "binary", "braintools", "jamming", "limits", "names", "optax", "peers",
    "quantization", "snntorch", "spiking", "spikingjelly", "straight_through", "surrogate",
    "tasks", "transforms",
]  # fmt: skip
