"""`xg.vjp` on jax, and what guards a derivative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from multigrad.engine.backend.features import run_on_tensors_alone
from multigrad.errors import GradientError

from ..core.attach.render import custom_jvp, tangent_of
from ..core.kernels.elementwise import is_tensor

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
