"""JAX's dialect, parts, diagonals, neighbors and products; see `table.py`.

Most of jax.numpy's functions are made of others and recorded by these; here are those that compare
lengths, which one graph for all shapes does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from multigrad.capture.dialects import numpy_parts
from multigrad.capture.meanings import diagonals, neighbors, parts, products
from multigrad.trace.xp import all as xp

from .arrays import JAX, converted

Tensor = Any


def split(ary: Tensor, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    return [*parts.split(ary, indices_or_sections, axis)]


def array_split(ary: Tensor, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    return [*parts.array_split(ary, indices_or_sections, axis)]


def hsplit(ary: Tensor, indices_or_sections: Any) -> list[Tensor]:
    return [*parts.hsplit(ary, indices_or_sections)]


def vsplit(ary: Tensor, indices_or_sections: Any) -> list[Tensor]:
    return [*parts.vsplit(ary, indices_or_sections)]


def tensordot(
    a: Tensor,
    b: Tensor,
    axes: Any = 2,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Tensor:
    return converted(products.tensordot(a, b, axes), preferred_element_type)


# --- jax.lax --------------------------------------------------------------------------------------
def lax_slice(
    operand: Tensor,
    start_indices: Sequence[int],
    limit_indices: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Tensor:
    steps = strides or (1,) * len(start_indices)
    return xp.getitem(operand, tuple(map(slice, start_indices, limit_indices, steps)))


ALIASES: dict[Any, Any] = {
    **JAX.called(
        {
            diagonals: "diag; diagflat; diagonal; matrix_diagonal: linalg.diagonal",
            neighbors: "diff",
            parts: "unstack",
        }
    ),
    **JAX.taking_the_same(
        {numpy_parts: "pad", __name__: "array_split; hsplit; split; tensordot; vsplit"}
    ),
    jax.lax.slice: lax_slice,
}
METHODS: dict[str, Any] = {"diagonal": ALIASES[jnp.diagonal]}
