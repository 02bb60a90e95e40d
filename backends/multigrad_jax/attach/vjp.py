"""`xg.vjp` on jax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from multigrad.errors import GradientError

Tensor = Any


def vjp(
    run: Callable[[Sequence[Tensor]], list[Any]], inputs: Sequence[Tensor]
) -> tuple[list[Any], Callable[[Sequence[Any]], list[Tensor | None]]]:
    """Return what a function of arrays gives, and the map from cotangents to one gradient per
    input.
    """
    inputs = [jnp.asarray(x) for x in inputs]
    others: dict[int, Any] = {}

    def arrays_only(*given: Tensor) -> list[Any]:
        outputs = run(given)
        for i, y in enumerate(outputs):
            if not isinstance(y, jax.Array):
                others[i] = y
        return [y for y in outputs if isinstance(y, jax.Array)]

    arrays, pull = jax.vjp(arrays_only, *inputs)
    rest = iter(arrays)
    count = len(arrays) + len(others)
    outputs = [others[i] if i in others else next(rest) for i in range(count)]

    def pullback(cotangents: Sequence[Any]) -> list[Tensor | None]:
        given = [
            _cotangent(c, y)
            for c, y in zip(cotangents, outputs, strict=True)
            if isinstance(y, jax.Array)
        ]
        return [None if g.dtype == jax.dtypes.float0 else g for g in pull(given)]

    return outputs, pullback


def forbid_derivative(message: str) -> Callable[[Tensor], Tensor]:
    """Return the identity, which raises where a derivative of it is taken."""

    @jax.custom_jvp
    def once(x: Tensor) -> Tensor:
        return x

    @once.defjvp
    def refuse(primals: Any, tangents: Any) -> Any:
        raise GradientError(message)

    return once


def refuse_gradient(message: str) -> Callable[[Any], Any]:
    """Return the identity on a number, which refuses an array whose derivative is taken."""
    once = forbid_derivative(message)

    def refuse(number: Any) -> Any:
        return once(number) if isinstance(number, jax.Array) else number

    return refuse


def _cotangent(given: Any, output: Tensor) -> Any:
    """Return a cotangent as jax takes it: zeros of no bytes for integers."""
    if not jnp.issubdtype(output.dtype, jnp.inexact):
        import numpy as np

        return np.zeros(output.shape, jax.dtypes.float0)
    return jnp.zeros_like(output) if given is None else jnp.asarray(given, output.dtype)


def note_use(tensor: Tensor, outputs: Sequence[Any]) -> Callable[[], bool] | None:
    """Return that a trace, whose tracers are its own, may be one of a derivative."""
    return is_still_there if isinstance(tensor, jax.core.Tracer) else None


def is_still_there() -> bool:
    return True
