"""Exchanges between the replicas of `tf.distribute`; `replicas.py` has the rules in force in them.

Replicas have numbers and no axes. They exchange by `ReplicaContext.all_reduce`, which every
strategy has, in eager code and in graphs, for sums and means only: to gather, each replica adds a
stack of all rows that is zero but for its own. A DTensor is one whole array.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from multigrad.core.backend.rows import rows_of
from multigrad.engine import random as core
from multigrad.engine.ops.collectives import check_pairs
from multigrad.errors import GradientError, RuleValueError, UnsupportedOp

from .core.attach.host import ALONE
from .core.kernels.ops import dim
from .kernels.random import is_dtensor

Tensor: TypeAlias = tf.Tensor
Names: TypeAlias = tuple[str, ...] | None
FEW_BITS = (tf.float16, tf.bfloat16)


# --- exchanges, and the place of a key's draws ----------------------------------------------------
def replica_context(names: Names, of: Tensor) -> Any:
    """Return the replica context; None in a proof and for a DTensor, which are one shard."""
    if names is not None:
        raise RuleValueError(
            f"there is no mesh axis {', '.join(map(repr, names))} in TensorFlow: the replicas of "
            "tf.distribute have numbers, and no axes. over='global' means all of them"
        )
    if ALONE.get() or is_dtensor(of):
        return None
    context = tf.distribute.get_replica_context()
    if context is None:
        name = type(tf.distribute.get_strategy()).__name__
        raise GradientError(
            "a reduction over all shards is taken in each replica, and this code runs across them, "
            f"in the cross-replica context of {name} (its scope(), a merge_call, an update): call "
            "it inside the function that strategy.run(...) runs"
        )
    if not tf.distribute.has_strategy():
        raise GradientError(
            "a reduction over all shards needs replicas, and this code runs in none: call it "
            "inside strategy.run(...) of a tf.distribute strategy, or leave over= away. A "
            "DTensor in a tf.function is one whole array: leave over= away there too"
        )
    return context


def exchange(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the kernel of an exchange between replicas, which is the identity on a single one."""

    @functools.wraps(compute)
    def call(x: Any, of: Tensor, *, names: Names, **attrs: Any) -> Tensor:
        context = replica_context(names, of)
        if context is None:
            return x
        x = x if isinstance(x, tf.Tensor) else tf.convert_to_tensor(x, of.dtype)
        # sent as float32: rounded once, and not all collectives take bfloat16
        if x.dtype in FEW_BITS:
            return tf.cast(compute(context, tf.cast(x, tf.float32), **attrs), x.dtype)
        return compute(context, x, **attrs)

    return call


@exchange
def all_sum(context: Any, x: Tensor) -> Tensor:
    return context.all_reduce("SUM", x)


@exchange
def all_max(context: Any, x: Tensor) -> Tensor:
    return tf.reduce_max(gather(context, x), 0)


@exchange
def all_gather(context: Any, x: Tensor, *, axis: int) -> Tensor:
    return tf.concat(rows_of_replicas(context, gather(context, x)), axis)


@exchange
def reduce_scatter(context: Any, x: Tensor, *, axis: int) -> Tensor:
    # a tape's initial ones are on no device, which workers refuse
    total = context.all_reduce("SUM", tf.identity(x))
    return row_of_replica(context, split_for_replicas(context, total, axis))


@exchange
def all_to_all(context: Any, x: Tensor, *, axis: int, concat: int) -> Tensor:
    blocks = gather(context, split_for_replicas(context, x, axis))  # by source, then by target
    own_blocks = row_of_replica(context, tf.experimental.numpy.swapaxes(blocks, 0, 1))
    return tf.concat(rows_of_replicas(context, own_blocks), concat)


def ppermute(x: Tensor, of: Tensor, *, names: Names, pairs: Any) -> Tensor:
    context = replica_context(names, of)
    check_pairs(pairs, 1 if context is None else context.num_replicas_in_sync)
    if context is None:
        return x if pairs else tf.zeros_like(x)
    return permuted(x, of, names=names, pairs=pairs)


@exchange
def permuted(context: Any, x: Tensor, *, pairs: Any) -> Tensor:
    rows = rows_of_replicas(context, gather(context, x))
    sources = {target: source for source, target in pairs}
    zeros, numbers = tf.zeros_like(rows[0]), range(context.num_replicas_in_sync)
    return row_of_replica(context, [rows[sources[i]] if i in sources else zeros for i in numbers])


# A stack has a row for each replica, in the order of their numbers.
def rows_of_replicas(context: Any, stack: Tensor) -> list[Tensor]:
    return tf.unstack(stack, context.num_replicas_in_sync)


def row_of_replica(context: Any, rows: Any) -> Tensor:
    """Return this replica's row, by a mask: its number is symbolic in a graph."""
    is_own = is_own_row(context, len(rows[0].shape))
    return tf.reduce_sum(tf.where(is_own, rows, tf.zeros([], rows[0].dtype)), 0)


def split_for_replicas(context: Any, x: Tensor, axis: int) -> Tensor:
    """Stack the equal parts along an axis, of which each replica gets one."""
    return tf.stack(tf.split(x, context.num_replicas_in_sync, axis))


def gather(context: Any, x: Tensor) -> Tensor:
    """Stack the replicas' tensors, as a sum of stacks with one row each."""
    # Not `all_gather` (TensorFlow 2.21), which traces a function at each eager call: 100 ms.
    is_own = is_own_row(context, len(x.shape))
    return context.all_reduce("SUM", tf.where(is_own, x, tf.zeros([], x.dtype)))


def is_own_row(context: Any, rank: int) -> Tensor:
    """Return a mask of the rows of a stack, with `rank` axes of length 1 after the first."""
    numbers = tf.reshape(tf.range(context.num_replicas_in_sync), [-1] + [1] * rank)
    return numbers == context.replica_id_in_sync_group


def all_dim(x: Tensor, *, axis: int, names: Names) -> Any:
    context = replica_context(names, x)
    if context is None:
        return dim(x, axis=axis)
    length = context.all_reduce("SUM", tf.cast(tf.shape(x)[axis], tf.float64))
    # in a graph a float64, which meets numbers of both kinds
    return int(length) if tf.executing_eagerly() else length


def place_key(key: Any, like: Tensor, *, split: Any) -> Any:
    """Place a key by the number of elements of the replicas before this one."""
    contexts = {
        axis: replica_context(n or None, like) for axis, n in enumerate(split) if n is not None
    }
    starts: list[Any] = [0] * len(like.shape)
    sizes = [tf.shape(like, tf.int64)[i] if n is None else n for i, n in enumerate(like.shape)]
    for axis, context in contexts.items():
        if context is not None:
            starts[axis], sizes[axis] = place_of(context, sizes[axis])
    return core.place(key, starts, sizes) if any(contexts.values()) else key


def place_of(context: Any, length: Any) -> tuple[Any, Any]:
    """Return the elements along an axis before this replica, and in all; ints if eager."""
    number = context.replica_id_in_sync_group
    if not tf.executing_eagerly() and isinstance(length, int) and is_alike(context, length):
        return tf.cast(number, tf.int64) * length, context.num_replicas_in_sync * length
    # replicas may have different lengths: they exchange them
    lengths = gather(context, tf.cast(length, tf.int64))
    start, total = tf.reduce_sum(lengths[:number]), tf.reduce_sum(lengths)
    return (int(start), int(total)) if tf.executing_eagerly() else (start, total)


def is_alike(context: Any, length: int) -> bool:
    """Return whether all replicas have this length."""

    @tf.autograph.experimental.do_not_convert
    def are_alike(strategy: Any, lengths: Any) -> bool:
        is_one_worker = len(strategy.extended.worker_devices) == strategy.num_replicas_in_sync
        return is_one_worker and len({*strategy.experimental_local_results(lengths)}) == 1

    try:
        return context.merge_call(are_alike, args=(length,))
    # A function traced within a replica cannot ask: known lengths count as alike.
    except RuntimeError:
        return True


def to_shard(x: Tensor) -> Tensor:
    if is_dtensor(x):
        layout = tf.experimental.dtensor.fetch_layout(x)
        raise UnsupportedOp(
            f"over='shard' of a DTensor of layout {layout.sharding_specs}: TensorFlow runs every "
            "op on the whole array. Run on tf.distribute's replicas, or leave over= away"
        )
    return x


def from_shard(x: Tensor, like: Tensor) -> Tensor:
    return x


# By name: a function that is imported here may not be called like an op.
OPS = rows_of(globals())
