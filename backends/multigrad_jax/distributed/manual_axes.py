"""The manual axes of `shard_map`: over which of them values vary, and gradients that vary alike.

jax's own ops let an argument that all shards share vary where another one varies; the transpose of
that sums its gradient over the shards. `custom_vjp` and loops (jax 0.10) do not, and `custom_vjp`
takes no gradient that varies less than its input. This module does both.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

import jax

from ..versions import primal_of

if TYPE_CHECKING:
    from multigrad.backend import Emitted

Tensor: TypeAlias = Any
Axes: TypeAlias = frozenset[str]
_in_forward: ContextVar[bool] = ContextVar("in_forward", default=False)


def is_manual() -> bool:
    """Return whether code is in a `shard_map`, or a `pmap`."""
    return bool(jax.sharding.get_abstract_mesh().manual_axes)


def mapped() -> tuple[str, ...]:
    """Return the mesh axes over which the code that runs now is mapped."""
    return tuple(jax.sharding.get_abstract_mesh().manual_axes)


def is_tracked() -> bool:
    """Return whether types say over which axes a value varies (`check_vma`)."""
    # with check_vma=False even an axis index does not vary, by its type
    return any(varying(jax.lax.axis_index(name)) for name in mapped())


def is_in_forward() -> bool:
    """Return whether the forward of a custom function runs now, and not a gradient."""
    return _in_forward.get()


def varying(x: Any) -> Axes:
    """Return the axes over which a value varies, as far as jax tracks it (`check_vma`)."""
    return jax.typeof(x).manual_axis_type.varying


def vary(x: Tensor, axes: Axes) -> Tensor:
    """Return the same numbers with a type that varies over these axes too."""
    more = tuple(sorted(axes - varying(x)))
    return jax.lax.pcast(x, more, to="varying") if more else x


def vary_alike(tensors: Sequence[Tensor], others: Sequence[Any] = ()) -> tuple[Tensor, ...]:
    """Let tensors vary over every axis over which one of them, or of the others, varies."""
    if not is_manual():
        return tuple(tensors)
    given = [x for x in jax.tree.leaves((tensors, others)) if not isinstance(x, str | bytes)]
    axes: Axes = frozenset().union(*map(varying, given))
    return tuple(vary(x, axes) for x in tensors)


@jax.tree_util.register_static
class Varying(tuple[Axes, ...]):
    """The axes over which each input varies, among the residuals."""


def vary_as(gradients: tuple[Any, ...], inputs: Varying) -> tuple[Any, ...]:
    """Let the gradients of the inputs, which come first, vary as the inputs do."""
    first, rest = gradients[: len(inputs)], gradients[len(inputs) :]
    pairs = zip(first, inputs, strict=True)
    return (*(None if g is None else vary(g, axes) for g, axes in pairs), *rest)


def in_shards(native: Any, emitted: Emitted) -> Callable[..., Any]:
    """Return a custom function for shards: its inputs vary alike, and its gradients as they do."""
    if isinstance(native, jax.custom_jvp):
        return _alike(native, len(emitted.names.inputs))
    written = [inspect.unwrap(f) for f in (primal_of(native), native.fwd, native.bwd)]
    # the emitted code calls the function by name, so it is run again in a namespace that holds this
    # one
    own, count = dict(written[0].__globals__), len(emitted.names.inputs)
    plain, forward, backward = (within(own, f) for f in written)

    def run(*given: Any) -> Any:
        reset = _in_forward.set(True)
        try:
            return plain(*given)
        finally:
            _in_forward.reset(reset)

    run.__name__ = native.__name__
    function = jax.custom_vjp(run)
    own[emitted.names.identifier] = function

    def keep(*given: Tensor) -> Any:
        outputs, residuals = forward(*given)
        return outputs, (residuals, Varying(map(varying, given[:count])))

    def pull_back(kept: Any, cotangents: Any) -> Any:
        return vary_as(backward(kept[0], cotangents), kept[1])

    function.defvjp(keep, pull_back)
    return _alike(function, count)


def _alike(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    def call(*given: Any) -> Any:
        return function(*vary_alike(given[:count], given[count:]), *given[count:])

    return call


def within(namespace: dict[str, Any], function: Any) -> Any:
    """Return an emitted function with another namespace for its globals."""
    own = types.FunctionType(function.__code__, namespace, function.__name__, function.__defaults__)
    own.__kwdefaults__ = function.__kwdefaults__
    return own
