"""The manual axes of `shard_map`: over which of them a value varies, and custom functions there.

Under `check_vma` the type of a value says over which mesh axes it varies, that is, differs from
shard to shard. jax's own ops let an argument that all shards share vary where another one varies;
the transpose of that sums its gradient over the shards. `custom_vjp` and loops (jax 0.10) do not,
and `custom_vjp` takes no gradient that varies less than its input: `in_shards` and `vary_alike` do
both. Protected by `tests/distributed/test_devices_jax.py`, which runs `tests/ranks/jax_shards.py`.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

import jax

from . import versions

if TYPE_CHECKING:
    from multigrad.backend import Emitted

Tensor: TypeAlias = Any
Axes: TypeAlias = frozenset[str]
# Whether the primal of a custom function runs, whose exchanges `own_result` leaves as they are.
_in_forward: ContextVar[bool] = ContextVar("in_forward", default=False)


def is_manual() -> bool:
    """Return whether code is in a `shard_map`, or a `pmap`."""
    return bool(jax.sharding.get_abstract_mesh().manual_axes)


def mapped_axes() -> tuple[str, ...]:
    """Return the mesh axes over which the code that runs now is mapped."""
    return tuple(jax.sharding.get_abstract_mesh().manual_axes)


def with_axes(run: Callable[[], Any], names: tuple[str, ...], size: int = 1) -> Any:
    """Run a function under mapped axes of these names; none of its values are mapped."""
    results: list[Any] = []

    def call(_: int) -> int:
        results[:] = [run()]
        return 0

    for name in names:
        call = jax.vmap(call, in_axes=None, out_axes=None, axis_name=name, axis_size=size)
    call(0)
    return results[0]


def is_tracked() -> bool:
    """Return whether types say over which axes a value varies (`check_vma`)."""
    # With check_vma=False even an axis index does not vary, by its type.
    return any(varying(jax.lax.axis_index(name)) for name in mapped_axes())


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
    leaves = [x for x in jax.tree.leaves((tensors, others)) if not isinstance(x, str | bytes)]
    axes: Axes = frozenset().union(*map(varying, leaves))
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
    count = len(emitted.names.inputs)
    if isinstance(native, jax.custom_jvp):
        return _alike(native, count)
    written = [inspect.unwrap(f) for f in (versions.primal_of(native), native.fwd, native.bwd)]
    # The emitted `fwd` calls the function by its name. All three run in a namespace where that name
    # is the function below.
    namespace = dict(written[0].__globals__)
    primal, fwd, bwd = (within(namespace, f) for f in written)

    def run(*arguments: Any) -> Any:
        reset = _in_forward.set(True)
        try:
            return primal(*arguments)
        finally:
            _in_forward.reset(reset)

    run.__name__ = native.__name__
    function = jax.custom_vjp(run)
    namespace[emitted.names.identifier] = function

    # `_in_forward` is set in `run` alone, from which the outputs of `fwd` come too. What `fwd`
    # exchanges besides is for residuals, which are each shard's own, as all that `bwd` computes.
    def keep(*arguments: Tensor) -> Any:
        outputs, residuals = fwd(*arguments)
        return outputs, (residuals, Varying(map(varying, arguments[:count])))

    def pull_back(residuals: Any, cotangents: Any) -> Any:
        emitted_residuals, inputs = residuals
        return vary_as(bwd(emitted_residuals, cotangents), inputs)

    function.defvjp(keep, pull_back)
    return _alike(function, count)


def _alike(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Return a function whose first `count` arguments vary alike when `function` gets them."""

    def call(*arguments: Any) -> Any:
        return function(*vary_alike(arguments[:count], arguments[count:]), *arguments[count:])

    return call


def within(namespace: dict[str, Any], function: Any) -> Any:
    """Return an emitted function with another namespace for its globals."""
    copy = types.FunctionType(
        function.__code__, namespace, function.__name__, function.__defaults__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def own_result(x: Tensor, axes: tuple[str, ...]) -> Tensor:
    """Let a result vary over the axes again, so that each shard has a cotangent of its own.

    To jax the result of an exchange is one value, whose cotangent is the sum over all shards. In
    the forward of a custom function it stays so.
    """
    if _in_forward.get() or not is_tracked():
        return x
    return vary(x, frozenset(axes).intersection(mapped_axes()))
