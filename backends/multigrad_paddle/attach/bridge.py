"""Paddle tensors to and from NumPy, so that no backend knows another."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import paddle

from multigrad.backend import SharedBuffer, lend_array

from ..kernels.widening import Tensor

Array = np.ndarray[Any, Any]
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


def dtype(name: str) -> Any:
    """Return Paddle's dtype of an IR name."""
    return getattr(paddle, name)


def to_numpy(x: Tensor) -> Array:
    """Return the values of a tensor; bfloat16 keeps its dtype (ml_dtypes)."""
    x = x.detach()
    if x.dtype == paddle.bfloat16:
        return x.numpy().view(ml_dtypes.bfloat16)  # Paddle gives the bits as uint16
    name = str(x.dtype).rpartition(".")[2]
    if name in FLOAT8:
        return x.astype(paddle.float32).numpy().astype(getattr(ml_dtypes, name))
    return x.numpy()


def from_numpy(x: Array) -> Tensor:
    """Return a copy of a NumPy array as a tensor of the same dtype."""
    x = np.array(x, order="C")
    name = x.dtype.name
    if name == "bfloat16":
        return paddle.to_tensor(x.view(np.uint16))  # which Paddle takes for the bits of bfloat16
    if name in FLOAT8:
        return paddle.to_tensor(x.astype(np.float32)).astype(name)
    if name in ("uint16", "uint32", "uint64"):
        return paddle.to_tensor(x.astype(np.int64))  # Paddle has no numbers of these
    return paddle.to_tensor(x)


def is_traced(x: Any) -> bool:
    """Return whether a tensor's values are known at run time only."""
    return isinstance(x, paddle.pir.Value)


def read_number(x: Tensor) -> Any:
    """Return the number in a 0-d tensor where that waits for no device, else the tensor."""
    return x if is_traced(x) or not x.place.is_cpu_place() else x.item()


def requires_grad(x: Tensor) -> bool:
    return not x.stop_gradient


def lend(x: Tensor) -> SharedBuffer:
    """Return a tensor for other frameworks to read."""
    return lend_array(to_numpy(x))


def borrow(lent: SharedBuffer, own: bool = False) -> Tensor:
    """Return what another framework lent as a tensor, in memory of its own."""
    return from_numpy(lent.array())
