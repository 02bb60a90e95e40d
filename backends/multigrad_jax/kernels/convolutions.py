"""JAX's rows of the family of convolutions, each function named as its op."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from multigrad.backend import rows_of

from .elementwise import accumulated

Tensor = Any
Ints = tuple[int, ...]


def windows(x: Tensor, *, sizes: Ints, strides: Ints, dilations: Ints) -> Tensor:
    first = x.ndim - len(sizes)
    for i, (size, stride, dilation) in enumerate(zip(sizes, strides, dilations, strict=True)):
        count = (x.shape[first + i] - dilation * (size - 1) - 1) // stride + 1
        places = stride * jnp.arange(count)[:, None] + dilation * jnp.arange(size)
        x = jnp.moveaxis(jnp.take(x, places, first + i), first + i + 1, -1)
    return x


def unwindows(x: Tensor, like: Tensor, **attrs: Any) -> Tensor:
    values = accumulated(x)
    shape = jax.ShapeDtypeStruct(like.shape, values.dtype)
    (sums,) = jax.linear_transpose(lambda given: windows(given, **attrs), shape)(values)
    return sums.astype(x.dtype)


def conv(x: Tensor, w: Tensor, *, strides: Ints, dilations: Ints, groups: int) -> Tensor:
    return lax.conv_general_dilated(
        x, w, strides, "VALID", rhs_dilation=dilations, feature_group_count=groups
    )


def conv_left(cotangent: Tensor, w: Tensor, like: Tensor, **attrs: Any) -> Tensor:
    given, kernels = accumulated(cotangent), accumulated(w)
    shape = jax.ShapeDtypeStruct(like.shape, given.dtype)
    (result,) = jax.linear_transpose(lambda x: conv(x, kernels, **attrs), shape)(given)
    return result.astype(cotangent.dtype)


def conv_right(x: Tensor, cotangent: Tensor, like: Tensor, **attrs: Any) -> Tensor:
    seen, given = accumulated(x), accumulated(cotangent)
    shape = jax.ShapeDtypeStruct(like.shape, given.dtype)
    (result,) = jax.linear_transpose(lambda w: conv(seen, w, **attrs), shape)(given)
    return result.astype(cotangent.dtype)


OPS = rows_of(vars())
