"""What JAX says of its tensors, their dtypes and whether they are traced, and of its processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax

from multigrad.backend.contract import Group
from multigrad.graph.support.lazy_modules import late_function

from .. import versions

WIDE = ("float64", "int64", "uint64")  # dtypes that jax makes narrower by default


def precision(dtype: str) -> AbstractContextManager[Any]:
    """Return a context that keeps a dtype: jax narrows 64 bits to 32 by default."""
    return jax.enable_x64(True) if dtype in WIDE else nullcontext()


def is_traced(x: Any) -> bool:
    return isinstance(x, jax.core.Tracer)


def is_weak(value: Any) -> bool:
    return getattr(value, "weak_type", False)


def find_weak(run: Callable[..., Any], arrays: Sequence[Any]) -> Sequence[bool]:
    """Return which results of a function are weakly typed; () if jax cannot trace it."""
    structs = [jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=is_weak(x)) for x in arrays]
    try:
        return [*map(is_weak, jax.eval_shape(run, *structs))]
    except Exception:  # noqa: BLE001 (it is the user's code, which looks at values)
        return ()


def weak(value: Any, dtype: Any) -> Any:
    """Return a scalar that does not promote the tensor that it meets."""
    if isinstance(value, bool | int | float) or is_weak(value):
        return value
    return value.astype(dtype)


make_group = late_function("multigrad_jax.distributed:make_group")


def group() -> Group | None:
    """Return the processes of `jax.distributed`; None for one alone, and off the main thread."""
    state = versions.distributed.global_state
    if state.client is None or (state.num_processes or 1) < 2:
        return None
    # Only the main thread's calls have an order that all processes share.
    if threading.current_thread() is not threading.main_thread():
        return None
    return make_group(state.client, state.process_id, state.num_processes)
