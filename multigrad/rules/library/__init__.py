"""The rule library, one file per family; importing it registers every rule of ours."""

from . import (
    attribution,
    binary,
    jamming,
    limits,
    quantization,
    spiking,
    straight_through,
    surrogate,
    transforms,
)

# Of version 0.1.0: to register one of these names again is an error. The others give way to a
# user's.
KEPT = (
    "arctan", "centralize", "clip_norm", "clipped_straight_through", "d(Linear)", "d(ReLU)",
    "fast_sigmoid", "full_jam", "gradient_reversal", "noise", "positive_jam", "rectangular",
    "rectangular_jam", "scale", "sigmoid_surrogate", "straight_through", "triangular",
)  # fmt: skip
__all__ = [
    "attribution", "binary", "jamming", "limits", "quantization", "spiking", "straight_through",
    "surrogate", "transforms",
]  # fmt: skip
