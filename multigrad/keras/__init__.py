"""multigrad in Keras 3: layers, activations, a callback and an optimizer, on whichever backend
Keras runs.

Importing this room imports Keras and registers them at once, so that loading a model finds them.

May import the rooms up to `audit`; docs/architecture.md has their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.backend.discovery import OWN, load_backend
from ..core.support.installed import why_too_old
from ..engine.support.extras import extra_line
from ..engine.support.public_modules import module_hooks
from ..errors import BackendNotFound

try:
    import keras
except ImportError as error:
    if error.name == "keras":
        advice = f"install it: {extra_line('keras')}"
    else:
        advice = "install one of tensorflow, torch, jax and name it in KERAS_BACKEND"
    raise BackendNotFound(f"Keras cannot be imported ({error}); {advice}") from error

_OLD = why_too_old("keras", OWN)
if _OLD is not None:
    raise BackendNotFound(f"multigrad.keras {_OLD}")

# Before anything is traced: a compiler cannot follow the import of a backend.
load_backend(keras.config.backend())

from .anneal import Anneal
from .attachment import attach
from .custom_gradient import CustomGradient, FunctionOperation
from .layer import Activation, ActivationFunction, activation
from .optimizer import apply_to_gradients
from .quantize import QuantConv1D, QuantConv2D, QuantDense, Quantized, Quantizer

__all__ = [
    "Activation",
    "ActivationFunction",
    "Anneal",
    "CustomGradient",
    "FunctionOperation",
    "QuantConv1D",
    "QuantConv2D",
    "QuantDense",
    "Quantized",
    "Quantizer",
    "activation",
    "apply_to_gradients",
    "attach",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = module_hooks(__name__, __all__)
