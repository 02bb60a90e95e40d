"""Numbers, keys and memory in tensors of any framework."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ...errors import BackendNotFound, RuleError, RuleValueError
from ...graph import random
from ...graph.ir.types import BOOL, FLOATS, WHOLE, dtype_name
from ..contract import Backend
from ..finding.discovery import backend_among, backend_of
from ..guest import SharedBuffer

Tensor: TypeAlias = Any
ARRAYS = (np.ndarray, np.generic)  # Dynamo reads no union of them
NO_TENSORS = (bool, int, float, str, bytes, type(None), list, tuple, dict)


def owner_of(value: Any) -> Backend | None:
    """Return the backend of a tensor, None for what is no tensor."""
    is_number = isinstance(value, np.number)  # np.float64 is a Python float too
    if isinstance(value, NO_TENSORS) and not is_number:
        return None
    try:
        return backend_of(value)
    except BackendNotFound:
        return None


def framework_of(values: Sequence[Any]) -> Backend | None:
    """Return the backend of the tensors among values, of arrays where there is no other tensor;
    None: there is neither.

    Raises:
        MultigradError: tensors of two frameworks are there.
    """
    tensors = [value for value in values if owner_of(value) is not None]
    return backend_among(tensors) if tensors else None


def in_one_framework(values: Sequence[Any]) -> list[Any]:
    """Return values with NumPy's arrays among them as constants of the framework whose tensors
    stand beside them.

    Raises:
        MultigradError: tensors of two frameworks stand beside an array.
    """
    if not any(isinstance(value, ARRAYS) for value in values):
        return list(values)
    backend = framework_of(values)
    if backend is None or issubclass(np.ndarray, backend.tensors.types):
        return list(values)
    tensors = [value for value in values if owner_of(value) is backend]

    def own(value: Any) -> Any:
        is_array = isinstance(value, ARRAYS)
        if not is_array or dtype_name(value.dtype) not in (*FLOATS, *WHOLE, BOOL):
            return value
        array = np.asarray(value, value.dtype.newbyteorder("="))
        constant = backend.tensors.constant
        return backend.tensors.from_numpy(array) if constant is None else constant(array, tensors)

    return [own(value) for value in values]


def concrete_number(value: Any) -> float | None:
    """Return a 0-d tensor's number, or None where it is known at run time only."""
    tensors = backend_of(value).tensors
    return None if tensors.is_traced(value) else float(tensors.to_numpy(value))


def key_pair(key: Any) -> Any:
    """Return the two uint32 words in a user's key object, or a traced form of them."""
    if isinstance(key, np.integer):
        return random.key_pair(key)
    if isinstance(key, tuple | list):
        if len(key) == 2 and all(isinstance(word, int) and 0 <= word < 2**32 for word in key):
            return (int(key[0]), int(key[1]))
        raise RuleValueError(f"a key of two words needs two uint32, got {key!r}")
    try:
        backend = backend_of(key)
    except BackendNotFound:
        raise RuleValueError(
            f"key must be an int, a jax key or two uint32, got {type(key).__name__} {key!r}"
        ) from None
    return read_key(backend, key)


def read_key(backend: Backend, key: Any) -> Any:
    """Return the key in a framework's own key object."""
    if backend.draws.key_pair is not None:
        return backend.draws.key_pair(key)
    return random.key_pair(backend.tensors.to_numpy(key))


def concrete_key(key: Any) -> tuple[int, int] | None:
    """Return the two words of a key, or None where they are known at run time only."""
    if isinstance(key, tuple):
        return key
    tensors = backend_of(key).tensors
    if tensors.is_traced(key):
        return None
    first, second = tensors.to_numpy(key).tolist()
    return first, second


def key_for(backend: Backend, key: Any) -> Any:
    """Return a key such as a backend folds in: two ints of what is another framework's.

    Raises:
        RuleError: another framework's trace holds it.
    """
    if isinstance(key, tuple):
        return key
    owner = backend_of(key)
    if owner is backend:
        return key
    words = concrete_key(key)
    if words is None:
        raise RuleError(
            f"the key belongs to a trace of {owner.name} and {backend.name} draws: give a key "
            f"that is known, an int or two uint32"
        )
    return words


def lend(backend: Backend, x: Tensor) -> SharedBuffer:
    """Return a backend's tensor for others to read."""
    if backend.interop.lend is not None:
        return backend.interop.lend(x)
    array = partial(backend.tensors.to_numpy, x)
    return SharedBuffer(dtype_name(x.dtype), tuple(x.shape), array)


def borrow(backend: Backend, lent: SharedBuffer, own: bool = False) -> Tensor:
    """Return a backend's tensor of what was lent.

    Args:
        own: whether the tensor's memory must be its own, so that either side may write to what it
            has.
    """
    if backend.interop.borrow is not None:
        return backend.interop.borrow(lent, own)
    return backend.tensors.from_numpy(np.array(lent.array()) if own else lent.array())
