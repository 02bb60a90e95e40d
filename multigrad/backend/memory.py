"""What one framework lends to another: memory, read in place where its layout allows.

Who lends gives contiguous memory of the host's processor, outside of any autodiff, and does not
write to it as long as the borrower may read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Tensor = Any
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class SharedBuffer:
    """A tensor that another framework may read.

    Attributes:
        dtype: its IR name.
        shape: its shape.
        array: gives the memory as a NumPy array, without a copy where NumPy can see it (bfloat16 by
            ml_dtypes).
        exporter: an object with `__dlpack__`; None where there is the array alone.
    """

    dtype: str
    shape: tuple[int, ...]
    array: Callable[[], Array]
    exporter: Any = None


def lend_array(x: Any) -> SharedBuffer:
    """Return a NumPy array, or one of its numbers, for others to read."""
    x = np.asarray(x)
    if not x.flags.c_contiguous:
        x = x.copy(order="C")
    return SharedBuffer(x.dtype.name, x.shape, x.view)


def borrow_array(lent: SharedBuffer, own: bool = False) -> Array:
    """Return what was lent as a NumPy array, which cannot be written to unless it is `own`."""
    if own:
        return np.array(lent.array())
    x = lent.array().view()
    x.flags.writeable = False
    return x
