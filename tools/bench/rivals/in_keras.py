"""The hand-written layer in Keras: one `call`, which hands the tensor to the hand-written code of
Keras's backend.

It keeps the rule's width in that code, where ours keeps it in a Variable that may change between
two steps.
"""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import importlib
from typing import Any, TypeAlias

import keras

Tensor: TypeAlias = Any

native = importlib.import_module(f".in_{keras.config.backend()}", __package__)
step = native.RIVALS["Heaviside", "triangular"]["hand-written"]


class Step(keras.layers.Layer):
    """A step with the triangular surrogate gradient."""

    def call(self, inputs: Tensor) -> Tensor:
        return step(inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape
