"""JAX's part of an ejected file: the `custom_vjp` function, and keys and draws for users.

The functions below are copied as source into the ejected file, in place of the backend's own
(`forms`), so they may name only what can be written into it or what `modules` lists. Tested by
`tests/functions/documents/test_eject_in_frameworks.py`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special

from multigrad.backend import Ejection, Emitted
from multigrad.engine import random as core

from .core.attach import render as attach_render
from .core.kernels import ops as kernels
from .kernels import random

Tensor: TypeAlias = jax.Array


def render(emitted: Emitted) -> str:
    """Return the source of the custom function.

    If it draws random numbers, it is wrapped in a function that accepts any kind of key
    (`read_key`).
    """
    if "key" not in emitted.names.params:
        return attach_render.render(emitted)
    params = [each for each in emitted.names.params if each != "key"]
    return attach_render.render_around(emitted, [*params, "read_key(key)"])


def array(like: Tensor, *, dtype: Any, value: Any) -> Tensor:
    """A constant array in a dtype."""
    return jnp.asarray(value.astype(jnp.dtype(dtype)))


# --- keys and draws -------------------------------------------------------------------------------
def draw_key() -> Tensor:
    """Raise, as JAX has no global generator."""
    raise TypeError("a key is needed to draw: key=jax.random.key(0), an int, or two uint32 words")


def read_key(key: Any) -> Tensor:
    """Return the two words of a key: an int as `jax.random.key(n)`, a typed key, or two words."""
    if key is None:
        return draw_key()
    if isinstance(key, int):
        key = (0, key & core.WORD_MASK)
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        if str(jax.random.key_impl(key)) != "threefry2x32":
            raise ValueError(f"{key} is no threefry2x32 key")
        key = jax.random.key_data(key)
    words = jnp.asarray(key, jnp.uint32)
    if words.shape != (2,):
        raise ValueError(f"a key is an int, a jax key or two words of 32 bits, not {key!r}")
    return words


def fold_in(key: Tensor, n: int) -> Tensor:
    """Return the n-th key derived from a key."""
    return jax.random.key_data(jax.random.fold_in(random.wrap(key), n))


def uniform_like(key: Tensor, x: Tensor) -> Tensor:
    """Uniforms in [0, 1) of x's shape, dtype and device."""
    return random.place_like(random.draw_uniform(key, x.shape, x.dtype), x)


def normal_like(key: Tensor, x: Tensor) -> Tensor:
    """Standard normals of x's shape, dtype and device."""
    return random.place_like(random.draw_normal(key, x.shape, x.dtype), x)


def staged(run: Any) -> Any:
    """Return a function that jax traces once, and writes inline."""
    return jax.jit(run, inline=True)


EJECTION = Ejection(
    render=render,
    modules={
        "jnp": jnp,
        "jax": jax,
        "jax.lax": jax.lax,
        "jax.nn": jax.nn,
        "jax.random": jax.random,
        "jax.tree_util": jax.tree_util,
        "jax.dtypes": jax.dtypes,
        "special": special,
        "np": np,
    },
    namespace={"read_key": read_key},
    forms={
        kernels.array: array,
        random.draw_key: draw_key,
        random.fold_in: fold_in,
        random.normal_like: normal_like,
        random.uniform_like: uniform_like,
        attach_render.staged: staged,
    },
)
