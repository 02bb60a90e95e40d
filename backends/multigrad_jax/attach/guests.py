"""A `custom_vjp` around another framework's code, which is not emitted.

Eager code gives the guest jax's memory directly and keeps the guest's pullback among the residuals.
Where jax stages code out, a callback calls the guest with NumPy's view of the memory, and backward
begins with a second forward: nothing but arrays may pass from one to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from multigrad.engine.backend.guest import Guest, Kind, Pull, SharedBuffer, kind_of, make_zeros

from ..core.attach.host import is_traced, precision
from ..core.attach.render import make_strong
from ..kernels.random import place_like
from .as_written import is_eager
from .vjp import forbid_derivative

Tensor: TypeAlias = jax.Array


def lend(x: jax.Array) -> SharedBuffer:
    """Return an array for other frameworks to read, without a copy if it is on the CPU."""
    device = next(iter(x.devices()))
    exporter = x if device.platform == "cpu" and len(x.devices()) == 1 else None
    return SharedBuffer(x.dtype.name, x.shape, partial(np.asarray, x), exporter)


def borrow(lent: SharedBuffer, own: bool = False) -> jax.Array:
    with precision(lent.dtype):  # whatever the user's mode is: a lent dtype must not be narrowed
        if own or lent.exporter is None:
            return jnp.array(lent.array(), copy=own)
        return jax.dlpack.from_dlpack(lent.exporter)


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
    if is_at_hand(tensors):
        buffers, pull = guest.record([lend(x) for x in tensors])
        outputs = tuple(place(borrow(y, guest.owns), tensors) for y in buffers)
        return outputs, (GuestResiduals(pull, tensors), ())
    return apply(guest, *tensors), (None, tensors)  # under another derivative: `apply` has its own


def pull_back(
    guest: Guest, residuals: Any, cotangents: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    guest_residuals, tensors = residuals
    cotangents_in = [
        jnp.asarray(c)
        if guest.carries(i, str(c.dtype))
        else None  # that of an integer has no bytes
        for i, c in enumerate(cotangents)
    ]
    if guest_residuals is not None and is_at_hand([c for c in cotangents_in if c is not None]):
        lent = guest_residuals.pull([None if c is None else lend(c) for c in cotangents_in])
        return tuple(
            None if g is None else jax.device_put(borrow(g, guest.owns), sharding)
            for g, sharding in zip(lent, guest_residuals.places, strict=True)
        )
    kinds = [kind_of(x) for x in tensors] if guest_residuals is None else guest_residuals.kinds
    # A callback has no derivative of its own, so a second derivative raises here.
    guard = forbid_derivative(str(guest.refusal()))
    tensors = tuple(guard(x) if jnp.issubdtype(x.dtype, jnp.inexact) else x for x in tensors)
    are_carried = [c is not None for c in cotangents_in]
    arrays = [guard(c) for c in cotangents_in if c is not None]

    def backward(buffers: Sequence[SharedBuffer]) -> list[SharedBuffer]:
        cotangent_buffers = iter(buffers[len(tensors) :])
        upstream = [next(cotangent_buffers) if is_carried else None for is_carried in are_carried]
        gradients = (
            guest_residuals.pull(upstream)
            if guest_residuals is not None
            else guest.gradients(buffers[: len(tensors)], upstream)
        )
        return [gradients[i] or _zeros(kinds[i]) for i in guest.wrt]

    results = call_back(guest, backward, (*tensors, *arrays), [kinds[i] for i in guest.wrt])
    gradients = dict(zip(guest.wrt, results, strict=True))
    return tuple(gradients.get(i) for i in range(len(kinds)))


apply.defvjp(keep, pull_back)


def call_back(
    guest: Guest,
    function: Callable[[Sequence[SharedBuffer]], list[SharedBuffer]],
    tensors: tuple[Tensor, ...],
    kinds: Sequence[Kind],
) -> tuple[Tensor, ...]:
    types = tuple(jax.ShapeDtypeStruct(shape, jnp.dtype(name)) for shape, name in kinds)

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
    return is_eager() and not any(map(is_traced, tensors))


def place(y: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """Move a result to the device of an input of its shape, if there is one."""
    like = next((x for x in tensors if x.shape == y.shape), None)
    return y if like is None else place_like(y, like)
