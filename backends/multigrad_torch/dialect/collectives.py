"""What torch's collectives mean in a rule: sums and maxima over the processes of a group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from multigrad.trace.xp import all as xp

Tensor = Any


def over_group(tensor: Tensor, op: Any, group: Any) -> Tensor:
    """Return the all-reduction of a symbol."""
    kinds, of_all = torch.distributed.ReduceOp, (None, torch.distributed.group.WORLD)
    named = None if group in of_all else group
    if op == kinds.SUM:
        return xp.all_sum(tensor, named)
    if op == kinds.MAX:
        return xp.all_max(tensor, named)
    if op == kinds.MIN:
        return -xp.all_max(-tensor, named)
    raise TypeError("all_reduce of another kind than SUM, MAX and MIN")


def all_reduce(tensor: Tensor, op: Any = None, group: Any = None, async_op: bool = False) -> None:
    """torch.distributed's, in place."""
    if async_op:
        raise TypeError("all_reduce with async_op=True")
    op = torch.distributed.ReduceOp.SUM if op is None else op
    tensor.update(over_group(tensor, op, group))


def all_reduce_anew(tensor: Tensor, op: Any = None, group: Any = None) -> Tensor:
    """torch.distributed.nn.functional's, whose gradient is one too."""
    return over_group(tensor, torch.distributed.ReduceOp.SUM if op is None else op, group)


def functional_all_reduce(*args: Any, **kwargs: Any) -> Any:
    """What torch.distributed._functional_collectives calls: its result is a class of its own."""
    raise TypeError(
        "_functional_collectives.all_reduce, whose result is no plain tensor: "
        "torch.distributed.nn.functional.all_reduce is captured, and xg.xp.all_sum"
    )


ALIASES: dict[Any, Callable[..., Any]] = {}
HIDDEN: dict[Any, Callable[..., Any]] = {}
PRIVATE: dict[Any, Callable[..., Any]] = {}
OUTSIDE: tuple[Callable[..., Any], ...] = ()
if torch.distributed.is_available():
    from torch.distributed.nn import functional

    ALIASES = {torch.distributed.all_reduce: all_reduce}
    PRIVATE = {torch.ops._c10d_functional.all_reduce: functional_all_reduce}
    HIDDEN = {functional.all_reduce: all_reduce_anew}
    # How many processes there are, and which one this is: not of a graph, which others may run.
    OUTSIDE = (torch.distributed.get_world_size, torch.distributed.get_rank)
