"""The other ways in which JAX runs a custom gradient: forward mode, and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from multigrad.backend.finding.values import run_on_tensors_alone

from .attach import PUSHING
from .vjp import vjp

Tensor: TypeAlias = Any
Run: TypeAlias = Callable[[Sequence[Tensor]], list[Any]]
# Why there is none of the others.
LACKS = {
    "autocast": "JAX has no autocast",
    "kept": "what is kept are the arrays that fwd returns, of which jit drops those that are not "
    "read",
}


def jvp(
    run: Run, inputs: Sequence[Tensor], tangents: Sequence[Tensor | None]
) -> tuple[list[Any], list[Any]]:
    """Return what a function of arrays gives, and its tangents.

    Raises:
        NotImplementedError: there is a `jax.custom_vjp` in it, which has none.
    """
    given = [_tangent(t, x) for t, x in zip(tangents, inputs, strict=True)]
    token = PUSHING.set(True)
    try:
        outputs, found = jax.jvp(lambda *own: tuple(run(own)), tuple(inputs), tuple(given))
    except TypeError as error:
        if "custom_vjp" in str(error):
            raise NotImplementedError("a jax.custom_vjp has no forward mode") from error
        raise
    finally:
        PUSHING.reset(token)
    return list(outputs), list(found)


def _tangent(given: Any, x: Tensor) -> Any:
    """Return a tangent as jax takes it: zeros of no bytes for integers."""
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return np.zeros(x.shape, jax.dtypes.float0)
    return jnp.zeros_like(x) if given is None else given


def mapped(run: Run, inputs: Sequence[Tensor]) -> tuple[list[Any], Callable[..., Any]]:
    """As `vjp` does, of examples, which lie along the first axis of each array."""

    def of_each(own: Sequence[Tensor]) -> list[Any]:
        return run_on_tensors_alone(jax.vmap, run, own, is_array)

    return vjp(of_each, inputs)


def whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of arrays and of what is fixed as one program of XLA's."""

    def call(*args: Any) -> Any:
        fixed = [i for i, x in enumerate(args) if not any(map(is_array, jax.tree.leaves(x)))]
        return jax.jit(function, static_argnums=fixed)(*args)

    return call


def is_array(value: Any) -> bool:
    """Return whether a value is an array."""
    return isinstance(value, jax.Array)


def checkpointed(run: Run, inputs: Sequence[Tensor]) -> tuple[list[Any], Callable[..., Any]]:
    """As `vjp` does, under `jax.checkpoint`."""

    def recomputed(own: Sequence[Tensor]) -> list[Any]:
        return run_on_tensors_alone(jax.checkpoint, run, own, is_array)

    return vjp(recomputed, inputs)
