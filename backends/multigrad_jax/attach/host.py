"""A `custom_vjp` around code that runs in another framework, and the exchange of memory with it.

Eager code gives the guest jax's memory directly and keeps the guest's pullback among the residuals.
Where jax stages code out, a callback calls the guest with NumPy's view of the memory, and backward
begins with a second forward: nothing but arrays may pass from one to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from multigrad.backend import Guest, Kind, Pull, SharedBuffer, kind_of, make_zeros

from ..kernels.random import place_like
from ..versions import take_current_trace
from .native_function import is_eager
from .render import make_strong
from .vjp import forbid_derivative

WIDE = ("float64", "int64", "uint64")  # dtypes that jax makes narrower by default


def to_numpy(x: Any) -> np.ndarray[Any, Any]:
    # bfloat16 keeps its dtype, by ml_dtypes
    return np.asarray(x)


def from_numpy(x: np.ndarray[Any, Any]) -> jax.Array:
    """Return a NumPy array as jax's; it keeps 64 bits only within `precision`."""
    return jnp.asarray(x)


def precision(dtype: str) -> AbstractContextManager[Any]:
    """Return a context that keeps a dtype: jax narrows 64 bits to 32 by default."""
    return jax.enable_x64(True) if dtype in WIDE else nullcontext()


def is_traced(x: Any) -> bool:
    return isinstance(x, jax.core.Tracer)


def dtype(name: str) -> Any:
    return jnp.dtype(name)


def is_weak(value: Any) -> bool:
    return getattr(value, "weak_type", False)


def find_weak(run: Callable[..., Any], arrays: Sequence[Any]) -> Sequence[bool]:
    """Return which results of a function are weakly typed; () if jax cannot trace it."""
    given = [jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=is_weak(x)) for x in arrays]
    try:
        return [*map(is_weak, jax.eval_shape(run, *given))]
    except Exception:  # noqa: BLE001 (it is the user's code, which looks at values)
        return ()


def weak(value: Any, dtype: Any) -> Any:
    """Return a scalar that does not promote the tensor that it meets."""
    if isinstance(value, bool | int | float) or is_weak(value):
        return value
    return value.astype(dtype)


def lend(x: jax.Array) -> SharedBuffer:
    """Return an array for other frameworks to read, without a copy if it is on the CPU."""
    device = next(iter(x.devices()))
    exporter = x if device.platform == "cpu" and len(x.devices()) == 1 else None
    return SharedBuffer(x.dtype.name, x.shape, partial(np.asarray, x), exporter)


def borrow(lent: SharedBuffer, own: bool = False) -> jax.Array:
    if lent.dtype in WIDE:
        # whatever the user's mode is: a lent dtype must not be narrowed
        with jax.enable_x64(True):
            return _borrow(lent, own)
    return _borrow(lent, own)


def _borrow(lent: SharedBuffer, own: bool) -> jax.Array:
    if own or lent.exporter is None:
        return jnp.array(lent.array(), copy=own)
    return jax.dlpack.from_dlpack(lent.exporter)


Tensor: TypeAlias = Any


def bridge(guest: Guest, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Apply code of another framework whose gradient flows back in jax's autodiff."""
    # a weakly typed input would reach the rules as a Python number (jax 0.10)
    return apply(guest, *map(make_strong, map(jnp.asarray, tensors)))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def apply(guest: Guest, *tensors: Tensor) -> tuple[Tensor, ...]:
    if is_at_hand(tensors):
        outputs = guest.run([lend(x) for x in tensors])
        return tuple(place(borrow(y, guest.owns), tensors) for y in outputs)
    kinds = guest.infer([kind_of(x) for x in tensors])
    return call_back(guest, guest.run, tensors, kinds)


@jax.tree_util.register_static
class GuestResiduals:
    """The guest's pullback among the residuals, with the kinds and devices of its inputs."""

    def __init__(self, pull: Pull, inputs: Sequence[Tensor]) -> None:
        self.pull = pull
        self.kinds = [kind_of(x) for x in inputs]
        self.places = [x.sharding for x in inputs]


def keep(guest: Guest, *tensors: Tensor) -> tuple[tuple[Tensor, ...], Any]:
    """Return the outputs and the residuals."""
    if is_at_hand(tensors):
        lent, pull = guest.record([lend(x) for x in tensors])
        outputs = tuple(place(borrow(y, guest.owns), tensors) for y in lent)
        return outputs, (GuestResiduals(pull, tensors), ())
    return apply(guest, *tensors), (None, tensors)  # under another derivative: `apply` has its own


def pull_back(
    guest: Guest, residuals: Any, cotangents: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    """Return a gradient for each input."""
    kept, tensors = residuals
    given = [
        jnp.asarray(c)
        if guest.carries(i, str(c.dtype))
        else None  # that of an integer has no bytes
        for i, c in enumerate(cotangents)
    ]
    if kept is not None and is_at_hand([c for c in given if c is not None]):
        lent = kept.pull([None if c is None else lend(c) for c in given])
        return tuple(
            None if g is None else jax.device_put(borrow(g, guest.owns), where)
            for g, where in zip(lent, kept.places, strict=True)
        )
    kinds = [kind_of(x) for x in tensors] if kept is None else kept.kinds
    # A callback has no derivative of its own, so a second derivative raises here.
    once = forbid_derivative(str(guest.refusal()))
    tensors = tuple(once(x) if jnp.issubdtype(x.dtype, jnp.inexact) else x for x in tensors)
    carried = [once(c) for c in given if c is not None]

    def backward(lent: Sequence[SharedBuffer]) -> list[SharedBuffer]:
        rest = iter(lent[len(tensors) :])
        upstream = [None if c is None else next(rest) for c in carries]
        found = (
            kept.pull(upstream)
            if kept is not None
            else guest.gradients(lent[: len(tensors)], upstream)
        )
        return [found[i] or _zeros(kinds[i]) for i in guest.wrt]

    carries = [None if c is None else True for c in given]
    results = call_back(guest, backward, (*tensors, *carried), [kinds[i] for i in guest.wrt])
    found = dict(zip(guest.wrt, results, strict=True))
    return tuple(found.get(i) for i in range(len(kinds)))


apply.defvjp(keep, pull_back)


def call_back(
    guest: Guest,
    function: Callable[[Sequence[SharedBuffer]], list[SharedBuffer]],
    tensors: tuple[Tensor, ...],
    kinds: Sequence[Kind],
) -> tuple[Tensor, ...]:
    """Stage out a callback to a function of lent buffers."""
    types = tuple(jax.ShapeDtypeStruct(shape, dtype(kind)) for shape, kind in kinds)

    def call(*arrays: Tensor) -> tuple[np.ndarray[Any, Any], ...]:
        return tuple(y.array() for y in function([lend(x) for x in arrays]))

    # a batched guest takes the mapped axis itself
    method = "broadcast_all" if getattr(guest, "is_batched", False) else "sequential"
    return tuple(jax.pure_callback(call, types, *tensors, vmap_method=method))


def _zeros(kind: Kind) -> SharedBuffer:
    shape, dtype = kind
    return make_zeros(tuple(n or 0 for n in shape), dtype)


def is_at_hand(tensors: Sequence[Tensor]) -> bool:
    """Return whether code runs now on values, not on tracers."""
    with take_current_trace() as trace:
        pass
    return is_eager(trace) and not any(isinstance(x, jax.core.Tracer) for x in tensors)


def place(y: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """Move a result to the device of an input of its shape, if there is one."""
    like = next((x for x in tensors if x.shape == y.shape), None)
    return y if like is None else place_like(y, like)


def outside(function: Any) -> Any:
    return jax.jit(function)
