"""What one framework lends to another: memory that is read in place, where alignment and layout allow.

Who lends gives contiguous memory of the host's processor, outside of any autodiff, and does not write to it as long as
the borrower may read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..ir.types import dtype_name
from .backend import Backend

Tensor = Any
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Lent:
    """A tensor that another framework may read.

    Attributes:
        dtype: its IR name.
        shape: its shape.
        array: gives the memory as a NumPy array, without a copy where NumPy can see it (bfloat16 by ml_dtypes).
        exporter: an object with `__dlpack__`; None where there is the array alone.
    """

    dtype: str
    shape: tuple[int, ...]
    array: Callable[[], Array]
    exporter: Any = None


def lend(backend: Backend, x: Tensor) -> Lent:
    """Return a backend's tensor for others to read."""
    if backend.lend is not None:
        return backend.lend(x)
    array = partial(backend.to_numpy, x)
    return Lent(dtype_name(x.dtype), tuple(x.shape), array)


def borrow(backend: Backend, lent: Lent, own: bool = False) -> Tensor:
    """Return a backend's tensor of what was lent.

    Args:
        own: whether the tensor's memory must be its own, so that either side may write to what it has.
    """
    if backend.borrow is not None:
        return backend.borrow(lent, own)
    return backend.from_numpy(np.array(lent.array()) if own else lent.array())


def lend_array(x: Any) -> Lent:
    """Return a NumPy array, or one of its numbers, for others to read."""
    x = np.asarray(x)
    if not x.flags.c_contiguous:
        x = x.copy(order="C")
    return Lent(x.dtype.name, x.shape, x.view)


def borrow_array(lent: Lent, own: bool = False) -> Array:
    """Return what was lent as a NumPy array, which cannot be written to unless it is `own`."""
    if own:
        return np.array(lent.array())
    x = lent.array().view()
    x.flags.writeable = False
    return x
