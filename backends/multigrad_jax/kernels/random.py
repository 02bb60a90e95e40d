"""Random draws on jax, by jax.random's threefry and the normal transform shared by all backends.

Keys are made with `impl="threefry2x32"` and drawn in the partitionable layout whatever the user's
configuration, so that the numbers equal those of the other backends.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding

from multigrad.core.backend.contract import Draws
from multigrad.core.ir.op import Op
from multigrad.core.support.lazy_modules import NEEDS_ENGINE, provided
from multigrad.engine import random as shared
from multigrad.engine.ops import draws as ops
from multigrad.errors import RuleError, RuleValueError

from ..core.attach.render import key_words
from ..core.versions import kinds_of_traces

Tensor: TypeAlias = jax.Array

IMPLEMENTATION = "threefry2x32"


def fold_in(key: Tensor, n: Tensor) -> Tensor:
    """Return the n-th key of a key: two Python ints if all is known, or an array of two uint32."""
    if isinstance(key, shared.PlacedKey):
        return shared.PlacedKey(fold_in(key.key, n), key.start, key.whole)
    if isinstance(key, tuple) and not isinstance(n, jax.Array):
        return shared.fold_in(key, n)
    return jax.random.key_data(jax.random.fold_in(wrap(key), n))


def uniform_like(key: Tensor, x: Tensor) -> Tensor:
    """Return uniforms in [0, 1) of x's shape, dtype and device, those of `jax.random.uniform`."""
    shared.check_dtype(x.dtype.name)
    if isinstance(key, shared.PlacedKey):
        return draw_part("uniform", key, x)
    return place_like(draw_placed(draw_uniform, key_words(key), x), x)


def normal_like(key: Tensor, x: Tensor) -> Tensor:
    """Return standard normals of x's shape, dtype and device; float32 as `jax.random.normal`."""
    shared.check_dtype(x.dtype.name)
    if isinstance(key, shared.PlacedKey):
        return draw_part("normal", key, x)
    return place_like(draw_placed(draw_normal, key_words(key), x), x)


@provided
def draw_part(distribution: str, key: shared.PlacedKey, x: Tensor) -> Tensor:
    """Draw the part that x is of a whole array."""
    raise RuleError(f"a draw of a shard's part of an array {NEEDS_ENGINE}")


def draw_key() -> Tensor:
    """Raise, as jax has no global generator."""
    raise RuleError(
        "a random rule needs a key on jax, which has no global generator: pass key=..., "
        "e.g. xg.use(rule, key=jax.random.key(0))"
    )


def key_pair(key: Tensor) -> Tensor:
    """Return the two uint32 words of a jax key, typed or raw, concrete or traced."""
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        name = str(jax.random.key_impl(key))
        if name != IMPLEMENTATION:
            raise RuleValueError(
                f"key is a {name} key; random rules take {IMPLEMENTATION} keys, so that every "
                f"backend draws the same: jax.random.key(0, impl={IMPLEMENTATION!r})"
            )
        key = jax.random.key_data(key)
    if key.shape != (2,) or not jnp.issubdtype(key.dtype, jnp.integer):
        raise RuleValueError(
            f"key is {key.dtype} of shape {key.shape}; expected one key: jax.random.key(0), "
            "or two uint32"
        )
    return key.astype(jnp.uint32)


@partial(jax.jit, static_argnames=("shape", "dtype", "sharding"))
def draw_uniform(
    words: Tensor, shape: tuple[int, ...], dtype: Any, sharding: NamedSharding | None = None
) -> Tensor:
    with jax.threefry_partitionable(True):
        return jax.random.uniform(wrap(words), shape, dtype, out_sharding=sharding)


@partial(jax.jit, static_argnames=("shape", "dtype", "sharding"))
def draw_normal(
    words: Tensor, shape: tuple[int, ...], dtype: Any, sharding: NamedSharding | None = None
) -> Tensor:
    is_double = dtype == jnp.float64
    draw_dtype = jnp.dtype(jnp.float64 if is_double else jnp.float32)
    uniform = draw_uniform(words, shape, draw_dtype, sharding)
    return shared.normal_from_uniform(uniform, jnp, is_double).astype(dtype)


def wrap(key: Tensor) -> Tensor:
    return jax.random.wrap_key_data(key_words(key), impl=IMPLEMENTATION)


def place_like(draw: Tensor, x: Tensor) -> Tensor:
    """Move a concrete draw to x's devices; under a trace the compiler places it."""
    if isinstance(x, jax.core.Tracer) or isinstance(draw, jax.core.Tracer):
        return draw
    if draw.sharding == x.sharding:
        return draw
    return jax.device_put(draw, x.sharding)


# --- draws for an array that is sharded -----------------------------------------------------------
def draw_placed(draw: Callable[..., Tensor], words: Tensor, x: Tensor) -> Tensor:
    """Draw for the whole of x on its devices, each device its part."""
    if isinstance(x, jax.core.Tracer):
        sharding = jax.typeof(x).sharding
        # explicit axes must be named to the draw, which cannot infer them from the words
        names_sharding = AxisType.Explicit in sharding.mesh.axis_types and is_staged()
        return draw(words, x.shape, x.dtype, sharding if names_sharding else None)
    if isinstance(words, jax.core.Tracer) or not is_split(x):
        return draw(words, x.shape, x.dtype)
    return compile_draw(draw, x.shape, x.dtype, x.sharding)(words)


@lru_cache(maxsize=256)
def compile_draw(
    draw: Callable[..., Tensor], shape: tuple[int, ...], dtype: Any, sharding: NamedSharding
) -> Callable[[Tensor], Tensor]:
    """Return a compiled draw for a sharded array, of which each device draws its part alone."""
    kinds = {*sharding.mesh.axis_types}

    def run(words: Tensor) -> Tensor:
        with jax.sharding.use_abstract_mesh(sharding.mesh.abstract_mesh):
            if kinds == {AxisType.Explicit}:
                return draw(words, shape, dtype, sharding)
            draws = draw(words, shape, dtype)
            # without the constraint each device draws the whole and cuts its part
            if kinds == {AxisType.Auto}:
                return jax.lax.with_sharding_constraint(draws, sharding)
            return draws

    return jax.jit(run, out_shardings=sharding)


def is_split(x: Tensor) -> bool:
    """Return whether a concrete array is spread over the devices of a mesh."""
    sharding: Any = getattr(x, "sharding", None)
    return isinstance(sharding, NamedSharding) and not sharding.is_fully_replicated


def is_staged() -> bool:
    """Return whether code is traced for a compiler now, which knows the devices."""
    return kinds_of_traces()[0] == "DynamicJaxprTrace"


DRAWS = Draws(draw_key=draw_key, fold_in=fold_in, key_pair=key_pair)
OPS: dict[Op, Callable[..., Any]] = {
    ops.FOLD_IN: fold_in,
    ops.UNIFORM_LIKE: uniform_like,
    ops.NORMAL_LIKE: normal_like,
}
