"""The values of constant arrays: frozen, compared by what they are, found again by a serial
number.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import field
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ..support.data import dataclass
from ..support.versions import HeldWeakly

MOST_ELEMENTS = 65_536
_serials = itertools.count()
_arrays: WeakValueDictionary[int, ArrayValue] = WeakValueDictionary()


@dataclass(frozen=True, slots=True, eq=False)
class ArrayValue(HeldWeakly):
    """The values of a constant array, frozen; `repr` is equal for equal values, and short.

    Attributes:
        native: what backends made of it, by what they made it for; they alone look inside.
        serial: a number under which `find_array` finds it again while it lives.
    """

    data: bytes
    shape: tuple[int, ...]
    dtype: str
    digest: str
    serial: int = field(default_factory=lambda: next(_serials))
    native: dict[Any, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<{self.dtype}{list(self.shape)} {self.digest}>"

    def as_numpy(self, dtype: Any) -> np.ndarray[Any, Any]:
        """Return the values in a NumPy dtype, read-only."""
        known = self.native.get(dtype)
        if known is None:
            stored = np.frombuffer(self.data, np.dtype(self.dtype)).reshape(self.shape)
            with np.errstate(all="ignore"):
                known = stored.astype(dtype)
            known.flags.writeable = False
            self.native[dtype] = known
        return known


def freeze(array: np.ndarray[Any, Any]) -> ArrayValue:
    """Return the values of a NumPy array, frozen."""
    if array.dtype.name in ("bfloat16", "float16"):
        array = array.astype(np.float32)  # holds both, and has a buffer that NumPy reads back
    array = array.astype(array.dtype.newbyteorder("="), order="C", copy=False)
    data = array.tobytes()
    digest = hashlib.blake2b(data, digest_size=8).hexdigest()
    value = ArrayValue(data, array.shape, array.dtype.name, digest)
    _arrays[value.serial] = value
    return value


def find_array(serial: int) -> ArrayValue:
    """Return the living array value of that serial."""
    return _arrays[serial]
