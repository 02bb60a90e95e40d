"""Arrays and tensors in proofs, and the isolation in which code runs for one."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

from ....errors import BackendNotFound
from ... import ops
from ...backend.contract import Backend
from ...random import fold_in
from ...support.tensors import Tensor
from ..calls.recipe import KEY

Array = Any


def isolated(backend: Backend, run: Callable[[], Any], dtype: str, is_random: bool) -> Any:
    """Run a function in the mode that keeps a dtype, whatever the backend's modes are around it.

    `is_random`: the framework's own draws take the keys of `REPLAYED`.
    """
    precision = backend.tensors.precision
    precise = nullcontext() if precision is None else precision(dtype)

    def run_precisely() -> Any:
        with np.errstate(all="ignore"), precise:
            return run()

    isolate = backend.autodiff.isolate
    # In a context of its own: what the run sets there ends with it.
    run_own = contextvars.copy_context().run
    return run_own(run_precisely) if isolate is None else run_own(isolate, run_precisely, is_random)


def keys() -> Iterator[Any]:
    """Yield the keys of an application's draws, as capture numbers them."""
    yield KEY
    n = 1
    while True:
        yield fold_in(KEY, n)
        n += 1


def to_tensor(backend: Backend, array: Array) -> Tensor:
    """Return an array as a tensor of its own, which lies in memory as the array does."""
    # An expanded array: one number in memory for all elements.
    if array.size > 1 and not any(array.strides):
        element = backend.tensors.from_numpy(array[(slice(0, 1),) * array.ndim].copy())
        return backend.kernels.rows[ops.BROADCAST_TO_SHAPE](element, shape=array.shape)
    if array.flags.c_contiguous or array.flags.f_contiguous:
        return backend.tensors.from_numpy(array.copy(order="K"))
    # Every second element of a larger array, so that it is not contiguous.
    spaced = np.zeros((*array.shape, 2), array.dtype)
    spaced[..., 0] = array
    return backend.tensors.from_numpy(spaced)[..., 0]


def as_array(backend: Backend, value: Any) -> Array | None:
    """Return a tensor, or a number, as an array; None for None."""
    try:
        return None if value is None else np.asarray(backend.tensors.to_numpy(value))
    except (AttributeError, BackendNotFound, TypeError):
        return np.asarray(value, np.float32 if isinstance(value, float) else None)
