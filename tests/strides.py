"""Tensors that do not lie in memory as fresh ones do."""

from __future__ import annotations

from typing import Any

Tensor = Any


def strided(x: Tensor) -> Tensor:
    """Every second row of the transpose of a matrix; a view, where the framework has views."""
    if hasattr(x, "T"):
        return x.T[::2]
    import tensorflow as tf

    return tf.transpose(x)[::2]
