"""Sums and exchanges over the shards of an array, for `xg.xp`; see `all.py`.

A shard is the part of an array that one device holds. On one device each function has one shard.
"""

from __future__ import annotations

from operator import index
from typing import Any

from ....core import ops
from ....core.ir.op import Op
from ....core.trace.trace import apply, one_axis
from ....errors import RuleValueError
from ...support.shards import read_names

Tensor = Any

__all__ = [
    "all_gather", "all_max", "all_sum", "all_to_all", "ppermute", "reduce_scatter",
]  # fmt: skip


def all_sum(x: Tensor, axis_name: Any = None, *, of: Tensor = None) -> Tensor:
    """The sum of x over shards, element by element; each shard gets it.

    Examples:
        >>> @xg.register("unit_norm")
        ... def unit_norm(ctx, grad_out, tin):
        ...     return grad_out / xp.sqrt(xp.all_sum(xp.sum(grad_out * grad_out)))
        >>> unit_norm(None, np.array([3.0, 4.0]), None)  # of one device: its own sum
        array([0.6, 0.8])

    Args:
        axis_name: mesh axes or a group: a name of jax's or of a torch mesh's dimension, a tuple of
            them, or a torch process group. None: every shard (torch: the default group; jax: the
            mapped axes over which the array differs; TensorFlow: all replicas). An array that is
            one object over all devices, as under jax's automatic sharding or as a torch DTensor,
            has one shard.
        of: the array that is split, where it is not x: what was computed from it may be a number.
    """
    return _over_shards(ops.ALL_SUM, x, axis_name, of)


def all_max(x: Tensor, axis_name: Any = None, *, of: Tensor = None) -> Tensor:
    """The largest x over shards, element by element; as `all_sum`.

    Examples:
        >>> @xg.register("unit_max")
        ... def unit_max(ctx, grad_out, tin):
        ...     return grad_out / xp.all_max(xp.max(xp.abs(grad_out)))
        >>> unit_max(None, np.array([3.0, -4.0]), None)
        array([ 0.75, -1.  ])
    """
    return _over_shards(ops.ALL_MAX, x, axis_name, of)


def all_gather(x: Tensor, axis_name: Any = None, axis: int = 0, *, of: Tensor = None) -> Tensor:
    """The parts of all shards, joined along an axis in the order of shards; each gets all of them.

    Like `jax.lax.all_gather(..., tiled=True)`. As in every exchange between shards, each shard's
    result has its own cotangent, and the gradient is that of the sum of all shards' losses, JAX's
    convention: here `reduce_scatter` of the cotangents. If every shard computes the same loss,
    divide it by their number. NaN goes where its element goes.

    Examples:
        >>> x = np.array([[1.0, 2.0]])
        >>> xp.all_gather(x, axis=1)  # of one device: its own part
        array([[1., 2.]])

    Args:
        axis_name: as of `all_sum`.
        axis: along which the parts are joined; they have one shape.
        of: as of `all_sum`.

    Raises:
        TraceError: the result's shape is asked for while a rule or a Function is captured: its
            graph is one for any number of shards.
    """
    return _over_shards(ops.ALL_GATHER, x, axis_name, of, axis=one_axis(x, axis))


def reduce_scatter(x: Tensor, axis_name: Any = None, axis: int = 0, *, of: Tensor = None) -> Tensor:
    """The sum of x over shards, of which each shard gets its own part along an axis.

    As `jax.lax.psum_scatter(..., tiled=True)`; as many parts as shards, of one length. Its gradient
    is `all_gather` of the cotangents, see there; 16-bit floats are added in float32.

    Examples:
        >>> xp.reduce_scatter(np.array([1.0, 2.0]))
        array([1., 2.])
    """
    return _over_shards(ops.REDUCE_SCATTER, x, axis_name, of, axis=one_axis(x, axis))


def all_to_all(
    x: Tensor, axis_name: Any = None, axis: int = 0, concat: int = 0, *, of: Tensor = None
) -> Tensor:
    """x cut along an axis into a part for each shard; those received, joined along `concat`.

    As `jax.lax.all_to_all(x, axis_name, axis, concat, tiled=True)`. Its gradient is the same of the
    cotangents with the axes swapped, see `all_gather`.

    Examples:
        >>> xp.all_to_all(np.array([[1.0, 2.0]]), axis=1, concat=0)
        array([[1., 2.]])
    """
    axes = {"axis": one_axis(x, axis), "concat": one_axis(x, concat)}
    return _over_shards(ops.ALL_TO_ALL, x, axis_name, of, **axes)


def ppermute(x: Tensor, pairs: Any, axis_name: Any = None, *, of: Tensor = None) -> Tensor:
    """For pairs (source, target), the source's x at the target; zeros where none sends.

    As `jax.lax.ppermute`. Its gradient is the way back, by the inverse permutation, see
    `all_gather`: an x that is sent to nobody has gradient 0.

    Examples:
        >>> xp.ppermute(np.array([1.0, 2.0]), [(0, 0)])
        array([1., 2.])

    Args:
        pairs: of numbers of shards, from 0 in the order of the axis or group; each at most once as
            source and once as target.

    Raises:
        RuleValueError: they are not, or name a shard that is not there.
    """
    checked_pairs = tuple(tuple(map(index, pair)) for pair in pairs)
    if not ops.PPERMUTE.attrs["pairs"].legal(checked_pairs):
        raise RuleValueError(
            f"ppermute takes pairs (source, target) of shards, each at most once on each side, as "
            f"[(0, 1), (1, 0)], not {pairs!r:.80}"
        )
    return _over_shards(ops.PPERMUTE, x, axis_name, of, pairs=checked_pairs)


def _over_shards(op: Op, x: Tensor, axis_name: Any, of: Tensor, **attrs: Any) -> Tensor:
    names = None if axis_name is None else read_names(axis_name)
    return apply(op, x, x if of is None else of, names=names, **attrs)
