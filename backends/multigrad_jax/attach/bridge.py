"""JAX arrays to and from NumPy and DLPack, so that no backend knows another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from multigrad.backend import SharedBuffer

WIDE = ("float64", "int64", "uint64")  # dtypes that jax makes narrower by default


def to_numpy(x: Any) -> np.ndarray[Any, Any]:
    """Return the values of an array; bfloat16 keeps its dtype (ml_dtypes)."""
    return np.asarray(x)


def from_numpy(x: np.ndarray[Any, Any]) -> jax.Array:
    """Return a NumPy array as jax's; 64 bits need `precision`."""
    return jnp.asarray(x)


def precision(dtype: str) -> AbstractContextManager[Any]:
    """Return the mode that keeps a dtype: jax makes 32 bits of 64 by default."""
    return jax.enable_x64(True) if dtype in WIDE else nullcontext()


def is_traced(x: Any) -> bool:
    """Return whether an array's values are known at run time only."""
    return isinstance(x, jax.core.Tracer)


def dtype(name: str) -> Any:
    """Return jax's dtype of an IR name."""
    return jnp.dtype(name)


def is_weak(value: Any) -> bool:
    """Return whether an array, or a tracer, has a dtype that gives way."""
    return getattr(value, "weak_type", False)


def find_weak(run: Callable[..., Any], arrays: Sequence[Any]) -> Sequence[bool]:
    """Return which results of a function are weak, () where jax cannot tell."""
    given = [jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=is_weak(x)) for x in arrays]
    try:
        return [*map(is_weak, jax.eval_shape(run, *given))]
    except Exception:  # noqa: BLE001 (it is the user's code, which looks at values)
        return ()


def weak(value: Any, dtype: Any) -> Any:
    """Return a scalar that does not promote the tensor it meets."""
    if isinstance(value, bool | int | float) or is_weak(value):
        return value
    return value.astype(dtype)


def lend(x: jax.Array) -> SharedBuffer:
    """Return an array for other frameworks to read, in place where it lies on the CPU."""
    device = next(iter(x.devices()))
    exporter = x if device.platform == "cpu" and len(x.devices()) == 1 else None
    return SharedBuffer(x.dtype.name, x.shape, partial(np.asarray, x), exporter)


def borrow(lent: SharedBuffer, own: bool = False) -> jax.Array:
    """Return what another framework lent as an array, of its own dtype whatever the mode."""
    if lent.dtype in WIDE:
        with jax.enable_x64(True):
            return _borrow(lent, own)
    return _borrow(lent, own)


def _borrow(lent: SharedBuffer, own: bool) -> jax.Array:
    if own or lent.exporter is None:
        return jnp.array(lent.array(), copy=own)
    return jax.dlpack.from_dlpack(lent.exporter)
