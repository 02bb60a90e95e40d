"""TensorFlow tensors to and from NumPy, so that no backend knows another."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf


def to_numpy(x: Any) -> np.ndarray[Any, Any]:
    """Return the values of a tensor; bfloat16 keeps its dtype (ml_dtypes)."""
    return np.asarray(x.numpy())


def from_numpy(x: np.ndarray[Any, Any]) -> Any:
    """Return a NumPy array as a tensor."""
    return tf.convert_to_tensor(x)


def is_traced(x: Any) -> bool:
    """Return whether a tensor's values are known at run time only."""
    return not hasattr(x, "numpy") or not tf.executing_eagerly()


def dtype(name: str) -> Any:
    """Return TensorFlow's dtype of an IR name."""
    return tf.as_dtype(name)


def weak(value: Any, dtype: Any) -> Any:
    """Return a scalar of the tensor's dtype; TensorFlow converts Python numbers by itself."""
    if isinstance(value, bool):
        return float(value)
    return value if isinstance(value, int | float) else tf.cast(value, dtype)
