"""The rules of FreeGrad's `transforms`, under the function names that it gives them."""

from typing import TYPE_CHECKING

from ..core.rules.library.quantization import linear_derivative as identity
from ..core.rules.library.surrogate import rectangular, triangular
from ..core.rules.library.surrogate import relu_derivative as heaviside
from ..core.rules.library.transforms import (
    centralize,
    clip_norm,
    full_jam,
    noise,
    positive_jam,
    rectangular_jam,
    scale,
)
from ..engine.support.public_modules import module_hooks

__all__ = [
    "centralize",
    "clip_norm",
    "full_jam",
    "heaviside",
    "identity",
    "noise",
    "positive_jam",
    "rectangular",
    "rectangular_jam",
    "scale",
    "triangular",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = module_hooks(__name__, __all__)
