"""What differs between releases of Python, NumPy and SciPy: each name in one form, for all
releases that are supported.

docs/versions.md says which these are.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

IS_OLD_SCIPY = sys.version_info < (3, 11)
RELEASE = tuple(map(int, np.__version__.split(".")[:2]))


@contextmanager
def ignoring_warnings() -> Iterator[None]:
    """As `warnings.catch_warnings(action="ignore")`, which there is from Python 3.11 on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _reshape(x: Any, shape: Any) -> Any:
    """As `np.reshape`, whose `shape` has another name before NumPy 2.1."""
    return np.reshape(x, shape)


def _vecdot(a: Any, b: Any) -> Any:
    """As `np.vecdot` of rows, which there is from NumPy 2.0 on: one row at a time."""
    return np.stack([x.dot(y) for x, y in zip(a, b, strict=True)])


def log_ndtr(x: Any) -> Any:
    """As `scipy.special.log_ndtr`, which is off by 5.5 eps before SciPy 1.16, all that there is for
    Python 3.10.

    Below -1 by erfcx(z) = exp(z^2) erfc(z): log(erfcx(-x / sqrt(2)) / 2) - x^2 / 2; below 0 as it
    is defined, and else log1p(-ndtr(-x)): 3.2 eps at most, times 1 + x^2.
    """
    from scipy.special import erfcx, ndtr

    wide = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        left = np.log(erfcx(np.maximum(wide * -(0.5**0.5), 0.0)) / 2) - wide * wide / 2
        near, right = np.log(ndtr(wide)), np.log1p(-ndtr(-wide))
    return np.where(wide < -1, left, np.where(wide < 0, near, right)).astype(x.dtype)[()]


reshape: Any = np.reshape if RELEASE >= (2, 1) else _reshape
vecdot: Any = getattr(np, "vecdot", _vecdot)
