"""The other modes of a custom gradient: forward mode, checkpoints, vmap, many gradients at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from multigrad.core.ir.graph import Graph
from multigrad.core.support.threads import set_within
from multigrad.engine.backend.features import run_on_tensors_alone

from ..core.attach.render import tangent_of
from ..core.kernels.elementwise import is_tensor
from .vjp import PUSHING, vjp

Tensor: TypeAlias = jax.Array
Run: TypeAlias = Callable[[Sequence[Tensor]], list[Any]]


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
