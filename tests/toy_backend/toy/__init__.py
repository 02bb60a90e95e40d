"""An array library: arrays that are no NumPy arrays, operators, and no derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

__version__ = "0.1.0"


class Array(NDArrayOperatorsMixin):
    """Numbers of one dtype in a rectangular shape."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)

    def __repr__(self) -> str:
        return f"toy.Array({self._values.tolist()}, {self.dtype})"

    @property
    def shape(self) -> tuple[int, ...]:
        return self._values.shape

    @property
    def ndim(self) -> int:
        return self._values.ndim

    @property
    def dtype(self) -> Any:
        return self._values.dtype

    def numpy(self) -> np.ndarray[Any, Any]:
        return self._values

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return compute(getattr(ufunc, method), *inputs, **options)


def compute(function: Any, *operands: Any, **options: Any) -> Any:
    """Call a NumPy function on arrays of this library."""
    given = [each.numpy() if isinstance(each, Array) else each for each in operands]
    with np.errstate(all="ignore"):
        result = function(*given, **options)
    return Array(result) if isinstance(result, np.ndarray | np.generic) else result
