"""torch's kernels of the ops over shards, on process groups.

Each takes `names`, those of the groups to exchange over, and most take `of`, a tensor that tells
whether the exchange is needed: a DTensor is one array over all processes already. The exchanges are
torch's functional collectives: compilers can read them, and they have derivatives of any order.
"""

from __future__ import annotations

import gc
import threading
from functools import cache, lru_cache
from typing import Any, TypeAlias

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from multigrad.backend import Group, rows_of
from multigrad.core.trace.active_rules import CHECKED, compare, note_for_ranks
from multigrad.engine import random as core
from multigrad.engine.ops.collectives import check_pairs
from multigrad.errors import GradientError, RuleValueError

from .core import dynamo
from .core.state import is_distributed
from .dtensors import from_parts, refuse_partial, to_parts
from .kernels.arrays import wide

Tensor: TypeAlias = torch.Tensor
# Dimensions of meshes, or process groups; None: the default group.
Names: TypeAlias = tuple[str, ...] | None
COMMS = torch.ops._c10d_functional


# --- groups by their names ------------------------------------------------------------------------
@dynamo.assume_constant_result
def group_names(names: Names) -> tuple[str, ...]:
    """Return torch's names of the process groups with these names; None means the default group."""
    dist = torch.distributed
    if not dist.is_available() or not dist.is_initialized():
        raise GradientError(
            "a reduction over all shards needs a process group, and this process is in none: call "
            "torch.distributed.init_process_group first, or leave over= and axis_name= away"
        )
    # Registers the collectives' derivatives; takes 60 ms.
    from torch.distributed import _functional_collectives  # noqa: F401

    if names is None:
        return (dist.group.WORLD.group_name,)
    return tuple([group_of(name) for name in names])


def group_of(name: str) -> str:
    """Return torch's name of a group: a dimension of an entered mesh, a group, or any mesh's."""
    meshes = torch.distributed.device_mesh._mesh_resources.mesh_stack
    for mesh in reversed(meshes):
        if name in (mesh.mesh_dim_names or ()):
            return mesh.get_group(name).group_name
    process_groups = torch.distributed.distributed_c10d._world.pg_map
    groups = frozenset([group.group_name for group in process_groups])
    if name in groups:
        return name
    return find_in_meshes(name, groups)


# New groups mean a new search.
@cache
def find_in_meshes(name: str, groups: frozenset[str]) -> str:
    """Return the group of the only mesh dimension of a name."""
    kind = torch.distributed.device_mesh.DeviceMesh
    # torch lists no meshes, so the garbage collector does.
    meshes = [each for each in gc.get_objects() if type(each) is kind and each.mesh_dim_names]
    groups_by_dim: dict[str, set[str]] = {}
    for mesh in meshes:
        for each in mesh.mesh_dim_names:
            if (group := mesh.get_group(each).group_name) in groups:
                groups_by_dim.setdefault(each, set()).add(group)
    names = groups_by_dim.get(name, set())
    if len(names) == 1:
        return names.pop()
    if names:
        raise RuleValueError(
            f"several meshes have a dimension {name!r}: run forward and backward inside `with "
            f"mesh:`, or name the group: axis_name=mesh[{name!r}]"
        )
    raise RuleValueError(
        f"there is no mesh dimension or process group {name!r}; the dimensions of meshes are "
        f"{sorted(groups_by_dim)}, the groups {sorted(groups)}"
    )


def check_names(x: Tensor, names: Names) -> None:
    """Raise an error for a name that is no dimension of a DTensor's mesh."""
    refuse_partial("a reduction over shards", x)
    dims = x.device_mesh.mesh_dim_names or ()
    for name in names or ():
        if name not in dims and group_of(name) not in x.device_mesh._dim_group_names:
            raise RuleValueError(
                f"the mesh of a DTensor has no dimension {name!r}; its dimensions are {dims}"
            )


# --- the ops --------------------------------------------------------------------------------------
def exchange(x: Tensor, kind: str, names: Names) -> Tensor:
    """Return the all-reduction of x, a "sum" or "max", over groups, one after another."""
    for group in group_names(names):
        reduction = COMMS.all_reduce(x.contiguous(), kind, group)
        x = COMMS.wait_tensor(reduction)
    return x


def all_sum(x: Tensor, of: Tensor, *, names: Names) -> Tensor:
    if is_whole(x, of, names):
        return x
    return exchange(wide(x), "sum", names).to(x.dtype)


def all_max(x: Tensor, of: Tensor, *, names: Names) -> Tensor:
    return x if is_whole(x, of, names) else Largest.apply(x, names)


class Largest(torch.autograd.Function):
    """The maximum over shards; ties share the gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, names: Names) -> Tensor:
        if not x.is_floating_point():
            return exchange(x, "max", names)
        # Gloo's maximum drops NaN, so a second row says where one is.
        is_nan = torch.isnan(x)
        numbers = torch.where(is_nan, -torch.inf, wide(x))
        largest, has_nan = exchange(torch.stack([numbers, is_nan.to(numbers.dtype)]), "max", names)
        return torch.where(has_nan > 0, torch.nan, largest).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)
        ctx.names = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore
        x, largest = ctx.saved_tensors
        is_largest = (x == largest).to(x.dtype)
        # One exchange for both sums, in a dtype wide enough to count ties.
        ties, total = exchange(torch.stack([wide(is_largest), wide(grad)]), "sum", ctx.names)
        return (is_largest * (total / ties)).to(x.dtype), None


def all_gather(x: Tensor, of: Tensor, *, names: Names, axis: int) -> Tensor:
    if is_whole(x, of, names):
        return x
    # The last group's rank varies fastest, so its parts are joined first.
    for group in reversed(group_names(names)):
        parts = COMMS.all_gather_into_tensor(x.contiguous(), size_of(group), group)
        x = joined(COMMS.wait_tensor(parts), size_of(group), axis)
    return x


def reduce_scatter(x: Tensor, of: Tensor, *, names: Names, axis: int) -> Tensor:
    if is_whole(x, of, names):
        return x
    sums = wide(x)
    for group in group_names(names):
        parts = cut(sums, size_of(group), axis, "reduce_scatter")
        reduction = COMMS.reduce_scatter_tensor(parts, "sum", size_of(group), group)
        sums = COMMS.wait_tensor(reduction)
    return sums.to(x.dtype)


def all_to_all(x: Tensor, of: Tensor, *, names: Names, axis: int, concat: int) -> Tensor:
    if is_whole(x, of, names):
        return x
    group = single_group("all_to_all", names)
    number = size_of(group)
    parts = cut(x, number, axis, "all_to_all")
    lengths = [parts.shape[0] // number] * number
    incoming = COMMS.all_to_all_single(parts, lengths, lengths, group)
    return joined(COMMS.wait_tensor(incoming), number, concat)


def ppermute(x: Tensor, of: Tensor, *, names: Names, pairs: Any) -> Tensor:
    """Send x to one process and receive as much from one; zeros if no pair names this process."""
    if is_whole(x, of, names):
        check_pairs(pairs, 1)
        return x if pairs else torch.zeros_like(x)
    group = single_group("ppermute", names)
    rank, number = rank_among(names)
    check_pairs(pairs, number)
    lengths_out, lengths_in = [0] * number, [0] * number
    for source, target in pairs:
        if source == rank:
            lengths_out[target] = x.numel()
        if target == rank:
            lengths_in[source] = x.numel()
    flat = x.reshape(-1) if any(lengths_out) else x.reshape(-1)[:0]
    incoming = COMMS.all_to_all_single(flat.contiguous(), lengths_in, lengths_out, group)
    incoming = COMMS.wait_tensor(incoming)
    # The empty sum keeps the exchange in the graph: backward must take part in it, too.
    return incoming.reshape(x.shape) if any(lengths_in) else incoming.sum() + torch.zeros_like(x)


def is_whole(x: Tensor, of: Tensor, names: Names) -> bool:
    """Return whether one of the tensors is a DTensor, which is one array over all processes."""
    for each in (of, x):
        if is_distributed(each):
            check_names(each, names)
            return True
    return False


def single_group(op: str, names: Names) -> str:
    group, *surplus = group_names(names)
    if surplus:
        raise RuleValueError(
            f"{op} over {names} is one over several process groups, which torch does not have: "
            "name one, or make a group of all their processes and give that, axis_name=group"
        )
    return group


def size_of(group: str) -> int:
    return torch.distributed.distributed_c10d._get_group_size_by_name(group)


def joined(parts: Tensor, number: int, axis: int) -> Tensor:
    """Return parts that are stacked along the first axis, joined along another."""
    return parts if axis == 0 else torch.cat(parts.chunk(number), axis)


def cut(x: Tensor, number: int, axis: int, op: str) -> Tensor:
    """Return an axis cut into equal parts, which are stacked along the first axis."""
    if x.shape[axis] % number:
        raise RuleValueError(
            f"{op} cuts axis {axis} of a tensor of shape {tuple(x.shape)} into a part for each of "
            f"{number} processes, which {x.shape[axis]} elements cannot be: pad it to a multiple"
        )
    return x.contiguous() if axis == 0 else torch.cat(x.chunk(number, axis))


def all_dim(x: Tensor, *, axis: int, names: Names) -> Any:
    """Return the length of an axis in the whole array; a tensor in compiled code."""
    if is_distributed(x):
        check_names(x, names)
        return x.shape[axis]
    length = torch.full((), x.shape[axis], dtype=torch.int64, device=x.device)
    total = exchange(length, "sum", names)
    return total if torch.compiler.is_compiling() else int(total)


def place_key(key: Any, like: Tensor, *, split: Any) -> Any:
    """Place a key by this rank's part of the whole; a DTensor's draw is placed later.

    `split` has for each axis the names of its groups, () for the default one, None if it is whole.
    """
    axes = [(axis, names or None) for axis, names in enumerate(split) if names is not None]
    if is_distributed(like):
        for _, names in axes:
            check_names(like, names)
        return key
    if CHECKED and not torch.compiler.is_compiling():
        note_for_ranks(f"draws for a part of shape {tuple(like.shape)}")
    starts, whole_shape = [0] * like.ndim, [*like.shape]
    for axis, names in axes:
        rank, number = rank_among(names)
        starts[axis] = rank * whole_shape[axis]
        whole_shape[axis] = number * whole_shape[axis]
    return core.place(key, starts, whole_shape)


@dynamo.assume_constant_result
def rank_among(names: Names) -> tuple[int, int]:
    """Return this process's rank among those of all groups, the last fastest, and their number."""
    rank, number = 0, 1
    resolve = torch.distributed.distributed_c10d._resolve_process_group
    for group in map(resolve, group_names(names)):
        rank_in_group, size = group.rank(), group.size()
        if rank_in_group < 0:
            raise GradientError(f"this process is not in the process group of {names}")
        rank, number = rank * size + rank_in_group, number * size
    return rank, number


def to_shard(x: Tensor) -> Tensor:
    if is_distributed(x):
        refuse_partial("a rule on each shard", x)
    return to_parts(x)


def from_shard(x: Tensor, like: Tensor) -> Tensor:
    return from_parts(x, like)


OPS = rows_of(globals())


# --- the processes that MULTIGRAD_CHECK_RANKS compares --------------------------------------------
# Before each `optimizer.step()` they exchange text through the store of the default process group;
# `trace/ranks.py` says what is compared.


def ranks_of(distributed: Any) -> Group | None:
    """Return the ranks of the default process group; None for one rank."""
    # Comparisons are made by the main thread only.
    if threading.current_thread() is not threading.main_thread():
        return None
    return group_on(distributed, distributed.distributed_c10d._get_default_store())


# Of the latest store only.
@lru_cache(maxsize=1)
def group_on(distributed: Any, store: Any) -> Group | None:
    """Return the ranks of the default process group, which write to its store and read from it."""
    if distributed.get_world_size() <= 1:
        return None

    def look(key: str) -> str | None:
        return store.get(key).decode() if store.check([key]) else None

    def drop(key: str) -> None:
        # The file of a FileStore only grows, by deletions too.
        if not isinstance(store, distributed.FileStore):
            store.delete_key(key)

    return Group(
        rank=distributed.get_rank(),
        size=distributed.get_world_size(),
        put=store.set,
        look=look,
        drop=drop,
        timeout=lambda: store.timeout.total_seconds(),
    )


@dynamo.disable
def before_update(optimizer: Any, args: Any, kwargs: Any) -> None:
    compare("optimizer.step()")


if CHECKED:
    register_optimizer_step_pre_hook(before_update)
