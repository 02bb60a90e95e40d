"""JAX's kernels of the ops over shards: the mapped axes of `shard_map`, `pmap` and `vmap`.

Under automatic sharding an array is whole, so that no axis is mapped and each op is the identity.
"""

from __future__ import annotations

import functools
import math
import threading
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from multigrad.backend import Group, rows_of
from multigrad.errors import GradientError, RuleValueError
from multigrad.graph import random as core
from multigrad.graph.ops.arrays.collectives import check_pairs

from ..kernels import random
from ..versions import distributed
from . import manual_axes

Tensor: TypeAlias = Any
Names: TypeAlias = tuple[str, ...] | None
FEW_BITS = (jnp.float16, jnp.bfloat16)


def axes_of(of: Tensor, names: Names) -> tuple[str, ...]:
    """Return the mapped axes to exchange over: those named, or those over which `of` varies.

    A mesh axis over which nothing is mapped is left out: an array is whole along it.

    Raises:
        RuleValueError: there is no axis of that name.
    """
    if names is None:
        mapped = manual_axes.mapped()
        if not mapped:
            refuse_own_process(of)
        own = manual_axes.varying(of)
        return tuple(n for n in mapped if n in own) if manual_axes.is_tracked() else mapped
    return tuple(name for name in names if is_mapped(name, of))


def refuse_own_process(x: Tensor) -> None:
    """Raise for a concrete array of one process of several: the other processes take no part."""
    if isinstance(x, jax.core.Tracer) or not isinstance(x, jax.Array) or jax.process_count() == 1:
        return
    if x.is_fully_addressable:
        raise GradientError(
            f"over='global' of a {jax.typeof(x).str_short()} that is process "
            f"{jax.process_index()}'s own, one of {jax.process_count()}: make one array of all "
            "processes' parts, jax.make_array_from_process_local_data(sharding, x), or leave over= "
            "away"
        )


def is_mapped(name: str, of: Tensor) -> bool:
    """Return whether code is mapped over an axis; False for an automatic axis of a mesh."""
    mapped = manual_axes.mapped()
    if name in mapped:
        return True
    meshes = (jax.sharding.get_abstract_mesh(), jax.typeof(of).sharding.mesh)
    known = dict.fromkeys(each for mesh in meshes for each in mesh.axis_names)
    if name in known:
        return False
    try:
        jax.lax.axis_size(name)  # of a vmap
    except NameError:
        pass
    else:
        return True
    there = f"there are {list(known)}" if known else "there is none here"
    raise RuleValueError(
        f"no axis {name!r} is mapped over where a {jax.typeof(of).str_short()} is met; {there}. "
        f"Use the rule inside jax.shard_map over a mesh with an axis {name!r}, or leave the "
        "axis away: under automatic sharding an array is whole"
    )


def all_sum(x: Tensor, of: Tensor, *, names: Names) -> Tensor:
    axes = axes_of(of, names)
    if not axes:
        return x
    refuse_shared("a sum is taken over", x, axes)
    return own_result(jax.lax.psum(x, axes), axes)


def all_max(x: Tensor, of: Tensor, *, names: Names) -> Tensor:
    axes = axes_of(of, names)
    shared = shared_over(x, axes)
    # the maximum of equal values is the value itself
    axes = tuple(name for name in axes if name not in shared)
    return own_result(largest(x, axes), axes) if axes else x


def all_gather(x: Tensor, of: Tensor, *, names: Names, axis: int) -> Tensor:
    axes = axes_of(of, names)
    return jax.lax.all_gather(x, axes, axis=axis % x.ndim, tiled=True) if axes else x


def reduce_scatter(x: Tensor, of: Tensor, *, names: Names, axis: int) -> Tensor:
    axes = axes_of(of, names)
    if not axes:
        return x
    refuse_shared("a sum is taken over", x, axes)
    # a sum of many shards in 16 bits would round at each step
    whole = x.astype(jnp.float32) if x.dtype in FEW_BITS else x
    part = jax.lax.psum_scatter(whole, axes, scatter_dimension=axis % x.ndim, tiled=True)
    return part.astype(x.dtype)


def all_to_all(x: Tensor, of: Tensor, *, names: Names, axis: int, concat: int) -> Tensor:
    axes = axes_of(of, names)
    if not axes:
        return x
    return jax.lax.all_to_all(x, axes, axis % x.ndim, concat % x.ndim, tiled=True)


def ppermute(x: Tensor, of: Tensor, *, names: Names, pairs: Any) -> Tensor:
    axes = axes_of(of, names)
    number = math.prod(map(jax.lax.axis_size, axes))
    check_pairs(pairs, number)
    if not axes:
        return x if pairs else jnp.zeros_like(x)
    if len(pairs) == number or set(axes) <= {*manual_axes.mapped()}:
        return jax.lax.ppermute(x, axes, pairs)
    # A vmap (jax 0.10) takes only whole permutations: idle shards are paired, and then dropped.
    sources, targets = zip(*pairs, strict=True) if pairs else ((), ())
    idle = ([i for i in range(number) if i not in used] for used in (sources, targets))
    came = jax.lax.ppermute(x, axes, [*pairs, *zip(*idle, strict=True)])
    own = jax.lax.axis_index(axes)
    return jnp.where(jnp.isin(own, jnp.asarray(targets, own.dtype)), came, jnp.zeros_like(x))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def largest(x: Tensor, axes: tuple[str, ...]) -> Tensor:
    """Return the maximum over shards; `jax.lax.pmax` has no derivative."""
    return jax.lax.pmax(x, axes)


@largest.defjvp
def largest_jvp(axes: tuple[str, ...], primals: Any, tangents: Any) -> tuple[Tensor, Tensor]:
    (x,), (tangent,) = primals, tangents
    y = largest(x, axes)
    # ties share the cotangent equally
    chosen = (x == y).astype(x.dtype)
    return y, jax.lax.psum(chosen * tangent, axes) / jax.lax.psum(chosen, axes)


def shared_over(x: Tensor, axes: tuple[str, ...]) -> list[str]:
    """Return the axes over which a value is known to be equal on all shards."""
    if not manual_axes.is_tracked():
        return []
    own, mapped = manual_axes.varying(x), manual_axes.mapped()
    return [name for name in axes if name in mapped and name not in own]


def refuse_shared(what: str, x: Tensor, axes: tuple[str, ...]) -> None:
    """Raise for a value that is equal on all shards where each should have its own part."""
    shared = shared_over(x, axes)
    if shared:
        raise RuleValueError(
            f"{what} the shards of mesh axes {shared} of a {jax.typeof(x).str_short()} that all of "
            "them share, which is no part of an array. Leave over= or axis_name= away for it "
            "(gradients of shared weights are summed already), or give each shard its own: "
            "jax.lax.pcast(x, axis_name, to='varying')"
        )


def own_result(x: Tensor, axes: tuple[str, ...]) -> Tensor:
    """Let a result vary over the axes again, so that each shard has a cotangent of its own.

    To jax the result of an exchange is one value, whose cotangent is the sum over all shards. In
    the forward of a custom function it stays so.
    """
    if manual_axes.is_in_forward() or not manual_axes.is_tracked():
        return x
    return manual_axes.vary(x, frozenset(axes).intersection(manual_axes.mapped()))


def all_dim(x: Tensor, *, axis: int, names: Names) -> int:
    return x.shape[axis] * math.prod(jax.lax.axis_size(name) for name in axes_of(x, names))


def place_key(key: Any, like: Tensor, *, split: Any) -> Any:
    """Return a key with this device's position along the mapped axes, if there are any."""
    axes = [() if names is None else axes_of(like, names or None) for names in split]
    if not any(axes):
        return key
    shape, start = like.shape, random.wide(0)
    numbers = [jax.lax.axis_size(names) for names in axes] + [1] * (len(shape) - len(axes))
    whole = tuple(length * number for length, number in zip(shape, numbers, strict=True))
    strides = core.strides(whole)
    for axis, names in enumerate(axes):
        if names:
            refuse_shared("parts are drawn of", like, names)
            index = jax.lax.axis_index(names).astype(jnp.uint32)
            step = shape[axis] * strides[axis]
            start = random.add(start, random.multiply(index, step, numbers[axis]))
    return core.PlacedKey(key, start, whole)


def to_shard(x: Tensor) -> Tensor:
    mesh = jax.typeof(x).sharding.mesh
    if manual_axes.is_manual() or mesh.size == 1:
        return x
    raise RuleValueError(
        f"over='shard' needs the shard in hand, and under automatic sharding jax shows the whole "
        f"{jax.typeof(x).str_short()} on a mesh {dict(mesh.shape)}: use the rule inside "
        "jax.shard_map, or leave over= away for the whole array"
    )


def from_shard(x: Tensor, like: Tensor) -> Tensor:
    return x


OPS = rows_of(globals())


# --- the processes of `jax.distributed`, which MULTIGRAD_CHECK_RANKS compares ---------------------
KEYS = "multigrad/"  # the prefix of our keys
SECONDS = 100.0  # jax (0.10) takes a silent process for dead after this time, by default
MISSING = "NOT_FOUND"


def group() -> Group | None:
    """Return the processes of `jax.distributed.initialize`; None without several."""
    state = distributed.global_state
    if state.client is None or (state.num_processes or 1) < 2:
        return None
    # only the main thread's calls have an order that all processes share
    if threading.current_thread() is not threading.main_thread():
        return None
    return make_group(state.client, state.process_id, state.num_processes)


@functools.lru_cache(1)
def make_group(client: Any, rank: int, size: int) -> Group:
    def put(key: str, text: str) -> None:
        client.key_value_set(KEYS + key, text)

    def look(key: str) -> str | None:
        try:
            return client.key_value_try_get(KEYS + key)
        except jax.errors.JaxRuntimeError as error:
            if MISSING in str(error):
                return None
            raise

    def drop(key: str) -> None:
        client.key_value_delete(KEYS + key)

    return Group(rank=rank, size=size, put=put, look=look, drop=drop, timeout=lambda: SECONDS)
