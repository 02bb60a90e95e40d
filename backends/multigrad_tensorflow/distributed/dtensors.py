"""DTensors of `tf.experimental.dtensor`: one array over all devices of a mesh, on which every op
acts as on the whole.

TensorFlow knows their layouts in eager code only.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import tensorflow as tf

Tensor: TypeAlias = Any
DEVICE = "CUSTOM"  # what a DTensor says its device is


def is_dtensor(x: Tensor) -> bool:
    """Return whether a tensor of eager code is one array over a mesh; False in a graph."""
    return DEVICE in getattr(x, "device", "")


def place_like(value: Tensor, x: Tensor) -> Tensor:
    """Return a tensor, laid out over a mesh as x is where that is a DTensor."""
    if not is_dtensor(x):
        return value
    dtensor = tf.experimental.dtensor
    layout = dtensor.fetch_layout(x)
    everywhere = dtensor.Layout.replicated(layout.mesh, layout.rank)
    return dtensor.relayout(dtensor.copy_to_mesh(value, everywhere), layout)
