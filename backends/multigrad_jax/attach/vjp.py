"""`xg.vjp` on jax, and the other modes of a custom gradient: forward mode, checkpoints, vmap, many
gradients at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from multigrad.backend.values import run_on_tensors_alone
from multigrad.errors import GradientError
from multigrad.graph.support.threads import set_within

from ..compile import is_tracing_kept
from ..kernels.elementwise import is_tensor

if TYPE_CHECKING:
    from multigrad.backend import Graph

Tensor: TypeAlias = jax.Array
Run: TypeAlias = Callable[[Sequence[Tensor]], list[Any]]


def vjp(
    run: Run, inputs: Sequence[Tensor]
) -> tuple[list[Any], Callable[[Sequence[Any]], list[Tensor | None]]]:
    """Return the outputs of a function of arrays, and a pullback to one gradient per input."""
    pull: Any = None

    def differentiated(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arrays: Tensor) -> Any:
            nonlocal pull
            results, pull = jax.vjp(function, *arrays)
            return results

        return call

    outputs = run_on_tensors_alone(differentiated, run, [*map(jnp.asarray, inputs)], is_tensor)

    def pullback(cotangents: Sequence[Any]) -> list[Tensor | None]:
        pairs = zip(cotangents, outputs, strict=True)
        upstream = [tangent_of(c, y) for c, y in pairs if is_tensor(y)]
        return [None if g.dtype == jax.dtypes.float0 else g for g in pull(upstream)]

    return outputs, pullback


# Whether a trace is for a proof, which interprets the jaxpr and never compiles it.
REHEARSED: ContextVar[bool] = ContextVar("multigrad_jax_rehearsed", default=False)


def custom_jvp(compute: Callable[..., Any]) -> Any:
    """Return a `jax.custom_jvp` function that a `scan` keeps where it is differentiated.

    The derivative of a `scan` (jax 0.10) has the bare primal in place of the function, so that a
    second derivative would be the primal's. A checkpoint is left whole there: so the primal, where
    jax stages it out, is the same function in a checkpoint, which recomputes nothing.
    """
    inside = jax.custom_jvp(compute)
    policy = jax.checkpoint_policies.everything_saveable
    whole = jax.checkpoint(inside, prevent_cse=False, policy=policy)

    @functools.wraps(compute)
    def primal(*args: Any) -> Any:
        is_kept = is_tracing_kept() and not REHEARSED.get()
        return (whole if is_kept else compute)(*args)

    function = jax.custom_jvp(primal)
    define = function.defjvp

    def defjvp(rule: Callable[..., Any], symbolic_zeros: bool = False) -> Callable[..., Any]:
        inside.defjvp(rule, symbolic_zeros)
        return define(rule, symbolic_zeros)

    function.defjvp = defjvp
    return function


def forbid_derivative(message: str) -> Callable[[Tensor], Tensor]:
    """Return the identity, which raises where a derivative of it is taken."""

    @custom_jvp
    def once(x: Tensor) -> Tensor:
        return x

    @once.defjvp
    def refuse(primals: Any, tangents: Any) -> Any:
        raise GradientError(message)

    return once


def refuse_gradient(message: str) -> Callable[[Any], Any]:
    guard = forbid_derivative(message)

    def refuse(number: Any) -> Any:
        return guard(number) if isinstance(number, jax.Array) else number

    return refuse


def tangent_of(given: Any, x: Tensor) -> Any:
    """Return a tangent or cotangent of an array; float0, of no bytes, for an integer."""
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return np.zeros(x.shape, jax.dtypes.float0)
    return jnp.zeros_like(x) if given is None else jnp.asarray(given, x.dtype)


def many(
    graph: Graph, emit: Callable[[Graph], Callable[..., Any]], in_place: bool
) -> Callable[[Sequence[Tensor], Sequence[Any]], list[Tensor] | None] | None:
    rule = emit(graph)

    def act(gradients: list[Tensor], values: tuple[Any, ...]) -> list[Tensor]:
        return [rule(gradient, *values) for gradient in gradients]

    compiled = jax.jit(act)

    def run(gradients: Sequence[Tensor], values: Sequence[Any]) -> list[Tensor] | None:
        if any(isinstance(each, jax.core.Tracer) for each in gradients):
            return None  # the trace around it compiles them
        # one program cannot take arrays of several devices
        if len({frozenset(each.devices()) for each in gradients}) > 1:
            return None
        return compiled(list(gradients), tuple(values))

    return run


# Whether `xg.jvp` runs what is called: a `custom_vjp` has no forward mode (jax 0.10).
PUSHING: ContextVar[bool] = ContextVar("multigrad_jax_pushing", default=False)
# The modes that jax lacks, with the reason.
LACKS = {
    "autocast": "JAX has no autocast",
    "kept": "what is kept are the arrays that fwd returns, of which jit drops those that are not "
    "read",
}


def jvp(
    run: Run, inputs: Sequence[Tensor], tangents: Sequence[Tensor | None]
) -> tuple[list[Any], list[Any]]:
    """Return the outputs of a function of arrays, and their tangents."""
    moves = tuple(map(tangent_of, tangents, inputs))
    try:
        with set_within(PUSHING, True):
            outputs, changes = jax.jvp(lambda *primals: tuple(run(primals)), tuple(inputs), moves)
    except TypeError as error:
        if "custom_vjp" in str(error):
            raise NotImplementedError("a jax.custom_vjp has no forward mode") from error
        raise
    return list(outputs), list(changes)


def mapped(run: Run, inputs: Sequence[Tensor]) -> tuple[list[Any], Callable[..., Any]]:
    """Return the same as `vjp`, with the function mapped over the first axis of each array."""

    return vjp(lambda xs: run_on_tensors_alone(jax.vmap, run, xs, is_tensor), inputs)


def whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function compiled as one XLA program, with arguments that are not arrays fixed."""

    def call(*args: Any) -> Any:
        argnums = [i for i, x in enumerate(args) if not any(map(is_tensor, jax.tree.leaves(x)))]
        return jax.jit(function, static_argnums=argnums)(*args)

    return call


def checkpointed(run: Run, inputs: Sequence[Tensor]) -> tuple[list[Any], Callable[..., Any]]:
    return vjp(lambda xs: run_on_tensors_alone(jax.checkpoint, run, xs, is_tensor), inputs)


def jit_vmap_grad(run: Run, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of the product with the cotangents, of a batch of one, compiled."""
    wrt = tuple(i for i, x in enumerate(inputs) if jnp.issubdtype(x.dtype, jnp.floating))

    def product(*xs: Tensor) -> Tensor:
        return sum(jnp.sum(y * c) for y, c in zip(run(xs), cotangents, strict=True))

    gradients = jax.jit(jax.vmap(jax.grad(product, wrt)))(*[x[None] for x in inputs])
    return [gradient[0] for gradient in gradients]


TRANSFORMS = {"jit(vmap(grad))": jit_vmap_grad}
