"""Masks as bits, eight to a byte, the first in the highest bit."""

from __future__ import annotations

import math
from typing import TypeAlias

import jax
import jax.numpy as jnp

Tensor: TypeAlias = jax.Array


def pack(mask: Tensor) -> Tensor:
    """Return the bits of a mask."""
    return jnp.packbits(mask)


def unpack(bits: Tensor, like: Tensor) -> Tensor:
    """Return the mask that was packed, of the shape of an array."""
    flat = jnp.unpackbits(bits, count=math.prod(like.shape))
    return flat.reshape(like.shape).astype(bool)
