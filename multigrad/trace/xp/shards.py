"""The dialect `xg.xp`, shards: reductions over the devices that an array is split over; see
`all.py`.
"""

from __future__ import annotations

from typing import Any

from ...graph import ops
from ...graph.support.shards import read_names
from ..trace import apply

Tensor = Any

__all__ = ["all_max", "all_sum"]


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
    names = None if axis_name is None else read_names(axis_name)
    return apply(ops.ALL_SUM, x, x if of is None else of, names=names)


def all_max(x: Tensor, axis_name: Any = None, *, of: Tensor = None) -> Tensor:
    """The largest x over shards, element by element; as `all_sum`.

    Examples:
        >>> @xg.register("unit_max")
        ... def unit_max(ctx, grad_out, tin):
        ...     return grad_out / xp.all_max(xp.max(xp.abs(grad_out)))
        >>> unit_max(None, np.array([3.0, -4.0]), None)
        array([ 0.75, -1.  ])
    """
    names = None if axis_name is None else read_names(axis_name)
    return apply(ops.ALL_MAX, x, x if of is None else of, names=names)
