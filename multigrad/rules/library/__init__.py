"""The rule library, one file per family; importing it registers every rule of ours."""

from . import quantization, spiking, surrogate, transforms

__all__ = ["quantization", "spiking", "surrogate", "transforms"]
