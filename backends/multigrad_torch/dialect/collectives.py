"""torch's collectives in a rule: sums and maxima over a group's processes, exchanges of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.values import methods

Tensor = Any


def named_by(group: Any) -> Any:
    """Return the name of a group for `xg.xp`; a pair is a mesh and one of its dimensions."""
    if isinstance(group, tuple):
        mesh, dimension = group
        return mesh.get_group(dimension)
    return None if group in (None, torch.distributed.group.WORLD) else group


def over_group(tensor: Tensor, op: Any = None, group: Any = None) -> Tensor:
    """Record the all_reduce of torch.distributed.nn.functional, whose gradient is one as well."""
    kinds, process_group = torch.distributed.ReduceOp, named_by(group)
    if op in (None, kinds.SUM):
        return xp.all_sum(tensor, process_group)
    if op == kinds.MAX:
        return xp.all_max(tensor, process_group)
    # The op table has a maximum only.
    if op == kinds.MIN:
        return -xp.all_max(-tensor, process_group)
    raise TypeError("all_reduce of another kind than SUM, MAX and MIN")


def all_reduce(tensor: Tensor, op: Any = None, group: Any = None, async_op: bool = False) -> None:
    if async_op:
        raise TypeError("all_reduce with async_op=True")
    tensor.update(over_group(tensor, op, group))


def functional_all_reduce(*args: Any, **kwargs: Any) -> Any:
    """Refuse _functional_collectives.all_reduce, whose result is a tensor class of its own."""
    raise TypeError(
        "_functional_collectives.all_reduce, whose result is no plain tensor: "
        "torch.distributed.nn.functional.all_reduce is captured, and xg.xp.all_sum"
    )


def gather(self: Tensor, gather_dim: int, group: Any, tag: str = "") -> Tensor:
    return xp.all_gather(self, named_by(group), gather_dim)


def scatter(self: Tensor, reduceOp: str, scatter_dim: int, group: Any, tag: str = "") -> Tensor:
    if reduceOp.lower() != "sum":
        raise TypeError(f"reduce_scatter by {reduceOp!r}; sums have a gradient")
    return xp.reduce_scatter(self, named_by(group), scatter_dim)


def exchange(
    self: Tensor, output_split_sizes: Any, input_split_sizes: Any, group: Any, tag: str = ""
) -> Tensor:
    """Record all_to_all of parts of equal length."""
    if output_split_sizes or input_split_sizes:
        raise TypeError("all_to_all_single with sizes, which count processes; leave them None")
    return xp.all_to_all(self, named_by(group))


def exchange_into(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
) -> Tensor:
    """Record torch.distributed.nn.functional's; `output` is only memory for the result."""
    return exchange(input, output_split_sizes, input_split_sizes, group)


def counts_processes(*args: Any, **kwargs: Any) -> Any:
    """Refuse a collective on lists, with a tensor for each process."""
    raise TypeError(
        "a collective that takes or gives a list, a tensor for each process; "
        "_functional_collectives.all_gather_single_autograd and its like are captured (before "
        "torch 2.13 all_gather_tensor_autograd), and xg.xp.all_gather, reduce_scatter, all_to_all"
    )


HANDED = {
    "all_gather_tensor_autograd": gather,
    "all_gather_single_autograd": gather,
    "reduce_scatter_tensor_autograd": scatter,
    "reduce_scatter_single_autograd": scatter,
    "all_to_all_single_autograd": exchange,
    "wait_tensor": methods.identity,
}
ALIASES: dict[Any, Callable[..., Any]] = {}
PRIVATE: dict[Any, Callable[..., Any]] = {}
OUTSIDE: tuple[Callable[..., Any], ...] = ()
if torch.distributed.is_available():
    ALIASES = {torch.distributed.all_reduce: all_reduce}
    PRIVATE = {torch.ops._c10d_functional.all_reduce: functional_all_reduce}
    # The number of processes and this one's rank are not part of a graph, which others may run.
    OUTSIDE = (torch.distributed.get_world_size, torch.distributed.get_rank)


def of_functional() -> dict[Any, Callable[..., Any]]:
    from torch.distributed.nn import functional

    return {
        functional.all_reduce: over_group,
        functional.all_to_all_single: exchange_into,
        functional.all_gather: counts_processes,
        functional.reduce_scatter: counts_processes,
        functional.all_to_all: counts_processes,
    }


def of_functional_collectives() -> dict[Any, Callable[..., Any]]:
    from torch.distributed import _functional_collectives

    return {
        function: handler
        for name, handler in HANDED.items()
        if (function := getattr(_functional_collectives, name, None)) is not None
    }


# The rows are added when somebody has imported the module: a tenth of the time of our import.
COMPANIONS = {
    "torch.distributed.nn.functional": of_functional,
    "torch.distributed._functional_collectives": of_functional_collectives,
}
