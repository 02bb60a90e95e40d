"""JAX's dialect, parts, diagonals, neighbors and products; see `capture.py`.

Most of jax.numpy's functions are made of others and recorded by these; here are those that compare
lengths, which one graph for all shapes does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from multigrad.capture import diagonals, nans, neighbors, numpy_parts, parts, products
from multigrad.tracing import xp_all as xp

from .capture_arrays import converted

Tensor = Any


def split(ary: Tensor, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    return [*parts.split(ary, indices_or_sections, axis)]


def array_split(ary: Tensor, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    return [*parts.array_split(ary, indices_or_sections, axis)]


def hsplit(ary: Tensor, indices_or_sections: Any) -> list[Tensor]:
    return [*parts.hsplit(ary, indices_or_sections)]


def vsplit(ary: Tensor, indices_or_sections: Any) -> list[Tensor]:
    return [*parts.vsplit(ary, indices_or_sections)]


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    return parts.unstack(x, axis)


def diag(v: Tensor, k: int = 0) -> Tensor:
    return diagonals.diag(v, k)


def diagflat(v: Tensor, k: int = 0) -> Tensor:
    return diagonals.diagflat(v, k)


def diagonal(a: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    return diagonals.diagonal(a, offset, axis1, axis2)


def linalg_diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    return diagonals.matrix_diagonal(x, offset)


def tensordot(
    a: Tensor,
    b: Tensor,
    axes: Any = 2,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Tensor:
    return converted(products.tensordot(a, b, axes), preferred_element_type)


def diff(a: Tensor, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Tensor:
    return neighbors.diff(a, n, axis, prepend, append)


def pad(array: Tensor, pad_width: Any, mode: str = "constant", **options: Any) -> Tensor:
    return numpy_parts.pad(array, pad_width, mode, **options)


def nansum(a: Tensor, axis: Any = None, *, keepdims: bool = False) -> Tensor:
    return nans.nansum(a, axis, keepdims)


def nanmean(a: Tensor, axis: Any = None, *, keepdims: bool = False) -> Tensor:
    return nans.nanmean(a, axis, keepdims)


# --- jax.lax --------------------------------------------------------------------------------------
def lax_slice(
    operand: Tensor, start_indices: Sequence[int], limit_indices: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    steps = strides or (1,) * len(start_indices)
    return xp.getitem(operand, tuple(map(slice, start_indices, limit_indices, steps)))


ALIASES: dict[Any, Any] = {
    jnp.split: split, jnp.array_split: array_split, jnp.hsplit: hsplit, jnp.vsplit: vsplit,
    jnp.unstack: unstack, jnp.diag: diag, jnp.diagflat: diagflat, jnp.diagonal: diagonal,
    jnp.linalg.diagonal: linalg_diagonal, jnp.tensordot: tensordot, jnp.diff: diff, jnp.pad: pad,
    jnp.nansum: nansum, jnp.nanmean: nanmean, jax.lax.slice: lax_slice,
}  # fmt: skip
METHODS: dict[str, Any] = {"diagonal": diagonal}
