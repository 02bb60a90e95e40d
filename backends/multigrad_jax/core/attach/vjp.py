"""`xg.vjp` on jax, and what guards a derivative."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from multigrad.core.backend.values import run_on_tensors_alone
from multigrad.errors import GradientError

from ..compile import is_tracing_kept
from ..kernels.elementwise import is_tensor

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


# Whether `xg.jvp` runs what is called: a `custom_vjp` has no forward mode (jax 0.10).
PUSHING: ContextVar[bool] = ContextVar("multigrad_jax_pushing", default=False)
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
