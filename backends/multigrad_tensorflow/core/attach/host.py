"""TensorFlow's tensors, variables and the numbers in them; code that runs apart from a call."""

from __future__ import annotations

import contextvars
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.ops.resource_variable_ops import ResourceVariable


def to_numpy(x: Any) -> np.ndarray[Any, Any]:
    return np.asarray(x.numpy())


def constant(x: np.ndarray[Any, Any], tensors: Sequence[Any]) -> Any:
    """Return a NumPy array for TensorFlow's operators, floats in the other tensors' dtype."""
    dtype = next((each.dtype for each in tensors if each.dtype.is_floating), None)
    return tf.convert_to_tensor(x, dtype if x.dtype.kind == "f" else None)


def is_traced(x: Any) -> bool:
    return not hasattr(x, "numpy") or not tf.executing_eagerly()


def read_number(x: Any) -> Any:
    # a loop's gradient (2.21) can only read a variable that its body reads too
    return tf.convert_to_tensor(x)


def write_number(x: Any, number: float) -> bool:
    # `assign` makes a tensor, casts it and reads the variable: one op is enough on one device
    if type(x) is not ResourceVariable or not tf.executing_eagerly():
        return False
    # As an array: TensorFlow reuses an equal number that it has converted before, 0.0 for -0.0.
    value = tf.convert_to_tensor(np.asarray(number, x.dtype.as_numpy_dtype))
    tf.raw_ops.AssignVariableOp(resource=x.handle, value=value)
    return True


def keep(x: Any, whole: bool) -> Callable[[], str] | None:
    """Return a function that restores a variable and describes its change; None for others."""
    if type(x) is not ResourceVariable or not whole:
        return None
    with tf.init_scope():
        original = x.numpy()

    def put_back() -> str:
        with tf.init_scope():
            if x.numpy().tobytes() == original.tobytes():
                return ""
            x.assign(original)
        return "writes into a variable from outside it"

    return put_back


def weak(value: Any, dtype: Any) -> Any:
    """Return a scalar of the tensor's dtype; TensorFlow converts Python numbers itself."""
    if isinstance(value, bool):
        return float(value)
    if not isinstance(value, int | float):
        return tf.cast(value, dtype)
    # for -0.0 TensorFlow (2.21) reuses an equal number that it has converted before
    if value or math.copysign(1.0, value) > 0:
        return value
    return tf.constant(np.array(value, tf.as_dtype(dtype).as_numpy_dtype))


# --- code that runs apart from the call around it, as proofs do -----------------------------------
# Set while a proof runs: only one replica runs it, so an exchange would wait for ever.
ALONE: contextvars.ContextVar[bool] = contextvars.ContextVar("alone", default=False)


def isolate(run: Callable[[], Any], is_random: bool) -> Any:
    """Run a function eagerly and return its result, on its own thread where this one is not free.

    That is so where a graph is built: `tf.init_scope` would also stop tapes that begin inside it;
    within a strategy, whose other replicas would be waited for; and where tapes are stopped, as in
    the forward of `tf.recompute_grad`.
    """
    ALONE.set(True)  # never reset: the context is a copy for this proof
    if (
        tf.executing_eagerly()
        and not tf.distribute.has_strategy()
        and not pywrap_tfe.TFE_Py_TapeSetIsStopped()
    ):
        return run()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(contextvars.copy_context().run, run).result()
