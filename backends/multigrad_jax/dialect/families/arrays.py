"""JAX's dialect, array family of `jax.numpy` and `jax.nn`; see `table.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy import special

from multigrad.capture.code.binding import Library
from multigrad.capture.dialects import numpy as np_dialect
from multigrad.capture.meanings import arrays, parts, places, reductions
from multigrad.capture.meanings.composites import is_whole
from multigrad.trace import trace
from multigrad.trace.trace import cast
from multigrad.trace.xp import all as xp

Tensor = Any
Handler = Callable[..., Any]
JAX = Library(jnp, {"lax": jax.lax, "nn": jax.nn, "special": special}, values={"keepdims": bool})


def converted(x: Tensor, dtype: Any) -> Tensor:
    return x if dtype is None else cast(x, dtype)


def logsumexp(a: Tensor, axis: Any = None, b: Any = None, keepdims: bool = False) -> Tensor:
    if b is not None:
        raise TypeError("logsumexp with b; write jnp.log(jnp.sum(b * jnp.exp(a)))")
    return xp.logsumexp(a, axis, keepdims)


def softmax(x: Tensor, /, axis: Any = -1) -> Tensor:
    """Of integers their differences, which wrap around where they have no sign."""
    if is_whole(x):
        powers = xp.exp(x - xp.max(x, axis, keepdims=True))
        return powers / xp.sum(powers, axis, keepdims=True)
    return xp.softmax(x, axis)


# --- shapes ---------------------------------------------------------------------------------------
def reshape(a: Tensor, shape: Any, order: str = "C") -> Tensor:
    if order != "C":
        raise TypeError(f"reshape in the order {order!r}; 'C' is known")
    return arrays.reshape(a, shape)


def ravel(a: Tensor, order: str = "C") -> Tensor:
    return reshape(a, -1, order)


def concatenate(arrays: Sequence[Tensor], axis: int | None = 0, dtype: Any = None) -> Tensor:
    return converted(xp.concatenate(arrays, axis), dtype)


def stack(arrays: Sequence[Tensor], axis: int = 0, out: None = None, dtype: Any = None) -> Tensor:
    return converted(xp.stack(arrays, axis), dtype)


def sort(a: Tensor, axis: int | None = -1, *, stable: bool = True, descending: bool = False) -> Any:
    if axis is None:
        return xp.sort(xp.reshape(a, -1), 0, descending)
    return xp.sort(a, axis, descending)


# --- products -------------------------------------------------------------------------------------
def matmul(
    a: Tensor, b: Tensor, *, precision: Any = None, preferred_element_type: Any = None
) -> Any:
    return converted(xp.matmul(a, b), preferred_element_type)


def dot(a: Tensor, b: Tensor, *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    return converted(arrays.np_dot(a, b), preferred_element_type)


def vdot(a: Tensor, b: Tensor, *, precision: Any = None) -> Tensor:
    return xp.vecdot(ravel(a), ravel(b))


def outer(a: Tensor, b: Tensor) -> Tensor:
    """A number counts as a vector of one element."""
    if isinstance(a, int | float):
        return xp.reshape(a * b, (1, -1))
    if isinstance(b, int | float):
        return xp.reshape(a * b, (-1, 1))
    return xp.outer(ravel(a), ravel(b))


# --- made like another ----------------------------------------------------------------------------
ALIASES: dict[Any, Any] = {
    **JAX.called(
        {
            arrays: """
                cumprod; cumsum; expand: broadcast_to; np_percentile: percentile; np_quantile:
                quantile
            """,
            np_dialect: "ptp; split",
            parts: "expand_dims; fliplr; flipud",
            reductions: """
                all; any; max: max amax; mean; min: min amin; nanmean; nansum; prod; std; sum; var
            """,
            places: "count_nonzero",
            trace: "cast: astype(copy=); copy_of: copy(order=)",
            __name__: "softmax: special.softmax",
            xp: """
                einsum(optimize=); full_like; glu: nn.glu; log_softmax: nn.log_softmax
                special.log_softmax; median; ones_like; permute_dims: transpose permute_dims;
                repeat; squeeze; tile; vecdot: vecdot linalg.vecdot; zeros_like: zeros_like
                empty_like
            """,
        }
    ),
    **JAX.taking_the_same(
        {
            np_dialect: "ndim; shape; size",
            __name__: """
                concatenate: concatenate concat; dot; logsumexp:
                nn.logsumexp special.logsumexp; matmul: matmul linalg.matmul; outer; ravel; reshape;
                nn.softmax; sort; stack; vdot
            """,
            xp: "matrix_transpose",
        }
    ),
}
