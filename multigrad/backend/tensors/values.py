"""Numbers, keys and memory in tensors of any framework."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ...errors import BackendNotFound, RuleError, RuleValueError
from ...graph import random
from ...graph.ir.types import dtype_name
from ..contract import Backend
from ..finding.discovery import backend_of
from ..guest import SharedBuffer

Tensor: TypeAlias = Any


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
