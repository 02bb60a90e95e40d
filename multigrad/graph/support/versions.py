"""Differences between releases of Python, NumPy and SciPy, each behind one name.

docs/versions.md lists the releases that are supported.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

# Python 3.10 has no SciPy from 1.16 on.
IS_OLD_SCIPY = sys.version_info < (3, 11)
RELEASE = tuple(map(int, np.__version__.split(".")[:2]))


@contextmanager
def ignoring_warnings() -> Iterator[None]:
    """Ignore warnings, as `warnings.catch_warnings(action="ignore")` from Python 3.11 on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _reshape(x: Any, shape: Any) -> Any:
    # Before NumPy 2.1 `shape` has another name.
    return np.reshape(x, shape)


def _vecdot(a: Any, b: Any) -> Any:
    # np.vecdot is new in NumPy 2.0.
    return np.stack([x.dot(y) for x, y in zip(a, b, strict=True)])


def log_ndtr(x: Any) -> Any:
    """Return `scipy.special.log_ndtr`, off by at most 3.2 eps times 1 + x^2."""
    from scipy.special import erfcx, ndtr

    # SciPy's own is off by 5.5 eps before 1.16. Below -1 by erfcx(z) = exp(z^2) erfc(z):
    # log(erfcx(-x / sqrt(2)) / 2) - x^2 / 2; below 0 by its definition, else log1p(-ndtr(-x)).
    wide = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        left = np.log(erfcx(np.maximum(wide * -(0.5**0.5), 0.0)) / 2) - wide * wide / 2
        near, right = np.log(ndtr(wide)), np.log1p(-ndtr(-wide))
    return np.where(wide < -1, left, np.where(wide < 0, near, right)).astype(x.dtype)[()]


reshape: Any = np.reshape if RELEASE >= (2, 1) else _reshape
vecdot: Any = getattr(np, "vecdot", _vecdot)


class HeldWeakly:
    """A base of dataclasses with slots whose objects weak references may point to."""

    # From Python 3.11 on `weakref_slot=True` does the same.
    __slots__ = ("__weakref__",)
