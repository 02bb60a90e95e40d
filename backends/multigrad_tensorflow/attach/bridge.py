"""TensorFlow tensors to and from NumPy and DLPack, so that no backend knows another."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from multigrad.backend import SharedBuffer

ALIGNMENT = 64  # of memory that TensorFlow takes; it aborts the process at any other


def to_numpy(x: Any) -> np.ndarray[Any, Any]:
    """Return the values of a tensor; bfloat16 keeps its dtype (ml_dtypes)."""
    return np.asarray(x.numpy())


def from_numpy(x: np.ndarray[Any, Any]) -> Any:
    """Return a NumPy array as a tensor."""
    return tf.convert_to_tensor(x)


def constant(x: np.ndarray[Any, Any], tensors: Sequence[Any]) -> Any:
    """Return a NumPy array as TensorFlow's operators take it beside tensors: in their float dtype,
    where it is of floats.
    """
    dtype = next((each.dtype for each in tensors if each.dtype.is_floating), None)
    return tf.convert_to_tensor(x, dtype if x.dtype.kind == "f" else None)


def is_traced(x: Any) -> bool:
    """Return whether a tensor's values are known at run time only."""
    return not hasattr(x, "numpy") or not tf.executing_eagerly()


def read_number(x: Any) -> Any:
    """Return the value of a variable as a tensor: a loop's gradient (2.21) can read no variable
    that its body has not.
    """
    return tf.convert_to_tensor(x)


def write_number(x: Any, number: float) -> bool:
    """Write a number into a variable of one device, in eager code, without what `assign` does for
    all others: it makes a tensor, casts it and reads the variable.
    """
    if type(x) is not ResourceVariable or not tf.executing_eagerly():
        return False
    # As an array: TensorFlow takes an equal number that it has converted before, 0.0 for -0.0.
    value = tf.convert_to_tensor(np.asarray(number, x.dtype.as_numpy_dtype))
    tf.raw_ops.AssignVariableOp(resource=x.handle, value=value)
    return True


def keep(x: Any, whole: bool) -> Callable[[], str] | None:
    """Return what puts a variable back as it is now, and tells in words that it had changed; None
    for a tensor, which nobody writes to, and for what is not to be copied.
    """
    if type(x) is not ResourceVariable or not whole:
        return None
    with tf.init_scope():
        before = x.numpy()

    def put_back() -> str:
        with tf.init_scope():
            if x.numpy().tobytes() == before.tobytes():
                return ""
            x.assign(before)
        return "writes into a variable from outside of it"

    return put_back


def dtype(name: str) -> Any:
    """Return TensorFlow's dtype of an IR name."""
    return tf.as_dtype(name)


def weak(value: Any, dtype: Any) -> Any:
    """Return a scalar of the tensor's dtype; TensorFlow converts Python numbers by itself.

    But for -0.0, in whose place it takes an equal number that it has converted before (2.21).
    """
    if isinstance(value, bool):
        return float(value)
    if not isinstance(value, int | float):
        return tf.cast(value, dtype)
    if value or math.copysign(1.0, value) > 0:
        return value
    return tf.constant(np.array(value, tf.as_dtype(dtype).as_numpy_dtype))


def lend(x: Any) -> SharedBuffer:
    """Return an eager tensor for other frameworks to read, in place where it lies on the CPU."""
    if "CPU" not in x.device:
        with tf.device("CPU:0"):
            x = tf.identity(x)
    return SharedBuffer(x.dtype.name, tuple(x.shape), partial(as_array, x), x)


def as_array(x: Any) -> np.ndarray[Any, Any]:
    """Return an eager tensor's memory, or a copy of a dtype that NumPy has no DLPack for, and of
    all in TensorFlow 2.16, whose tensors have no `__dlpack__`.
    """
    is_copied = x.dtype == tf.bfloat16 or not hasattr(x, "__dlpack__")
    return np.asarray(x.numpy()) if is_copied else np.from_dlpack(x)


def borrow(lent: SharedBuffer, own: bool = False) -> Any:
    """Return what another framework lent as an eager tensor."""
    if own:
        return tf.convert_to_tensor(np.array(lent.array()))
    if lent.exporter is not None:
        capsule = lent.exporter.__dlpack__()
        if address(capsule) % ALIGNMENT == 0:
            return tf.experimental.dlpack.from_dlpack(capsule)
    return tf.convert_to_tensor(lent.array())


class DLTensor(ctypes.Structure):
    """The beginning of what a DLPack capsule points to (dlpack.h, version 0)."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint32),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def address(capsule: Any) -> int:
    """Return the address of a capsule's memory, 0 for none."""
    tensor = DLTensor.from_address(_get_pointer(capsule, b"dltensor"))
    return (tensor.data or 0) + tensor.byte_offset
