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

__all__ = [
    "attribution", "binary", "jamming", "limits", "quantization", "spiking", "straight_through",
    "surrogate", "transforms",
]  # fmt: skip
