"""multigrad in Keras 3: the layer `Activation`, on whichever backend Keras runs.

Importing this room imports Keras and registers the layer at once, so that loading a model finds it.
"""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from ..errors import BackendNotFound
from ..lowering.backend import load_backend

try:
    import keras
except ImportError as error:
    if error.name == "keras":
        advice = "install it: pip install 'multigrad-rules[keras]'"
    else:
        advice = "install one of tensorflow, torch, jax and name it in KERAS_BACKEND"
    raise BackendNotFound(f"Keras cannot be imported ({error}); {advice}") from error

# Before anything is traced: a compiler cannot follow the import of a backend.
load_backend(keras.config.backend())

from .function import FunctionOperation
from .layer import Activation

__all__ = ["Activation", "FunctionOperation"]
