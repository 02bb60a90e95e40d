"""What each function of JAX means, family by family: for rules that call it, and for the primitives
of a jaxpr that are it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from multigrad.capture.code.binding import named

from ...kernels import ops
from . import arrays, elementwise, linalg, places, slopes

Tensor = Any


def placed(x: Tensor, device: Any = None, **options: Any) -> Tensor:
    """A rule stays where its input is."""
    return x


ALIASES: dict[Any, Callable[..., Any]] = {
    **named(ops.NAMES, jnp, lax=jax.lax, nn=jax.nn, special=jax.scipy.special),
    jax.device_put: placed,
    **elementwise.ALIASES,
    **arrays.ALIASES,
    **linalg.ALIASES,
    **places.ALIASES,
    **slopes.ALIASES,
}
