"""Reductions over the processes of a group, eagerly and compiled, of tensors that are parts."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from harness.distributed.ranks import check, refusal
from torch.distributed import _functional_collectives as functional
from torch.distributed import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import multigrad as xg
from multigrad import xp

Tensor: TypeAlias = Any
RANK = int(os.environ["RANK"])
MESHES: dict[str, Any] = {}


def start() -> None:
    dist.init_process_group("gloo")
    MESHES["one"] = init_device_mesh("cpu", (2,), mesh_dim_names=("data",))
    MESHES["two"] = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicas", "columns"))


def finish() -> None:
    dist.destroy_process_group()


def own(x: Tensor, dim: int = 0) -> Tensor:
    """Return this process's part."""
    return x.chunk(2, dim)[RANK].clone()


def values() -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(0)
    return torch.randn(2, 6, 4, generator=made).unbind()


def gradient(f: Callable[[Tensor], Tensor], x: Tensor, grad_out: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(f(x), x, grad_out)[0]


def named(how: str) -> dict[str, Any]:
    given = {
        "global": {"over": "global"},
        "name": {"axis_name": "data"},
        "spec": {"over": ("replicas", None)},
        "group": {"axis_name": dist.group.WORLD},
        "mesh": {"axis_name": MESHES["one"]},
        "dimension": {"axis_name": MESHES["two"]["replicas"]},
    }
    return given[how]


@check(how=("global", "name", "spec", "group", "mesh", "dimension"))
def a_norm_of_the_whole_is_one_number_of_each_process(how: str) -> None:
    x, grad_out = values()
    expected = gradient(xg.activation("Linear", "clip_norm"), x, grad_out)
    act = xg.activation("Linear", "clip_norm", **named(how))
    with CommDebugMode() as comm:
        found = gradient(act, own(x), own(grad_out))
    assert sum(comm.get_comm_counts().values()) == 1
    torch.testing.assert_close(found, own(expected))


@check(rule=("normalize", "centralize", "clip_rms"), dim=(0, 1))
def reductions_are_those_of_the_whole(rule: str, dim: int) -> None:
    x, grad_out = values()
    expected = gradient(xg.activation("ReLU", rule), x, grad_out)
    act = xg.activation("ReLU", rule, over=("data",) if dim == 0 else (None, "data"))
    found = gradient(act, own(x, dim), own(grad_out, dim))
    torch.testing.assert_close(found, own(expected, dim))


@check(rule=("normalize", "centralize"))
def compiled_code_exchanges_what_eager_code_does(rule: str) -> None:
    x, grad_out = values()
    act = xg.activation("ReLU", rule, over=(None, "data"))
    compiled = torch.compile(act, backend="aot_eager", fullgraph=True)
    found = gradient(compiled, own(x, 1), own(grad_out, 1))
    torch.testing.assert_close(found, gradient(act, own(x, 1), own(grad_out, 1)))


@check()
def uneven_parts_count_by_their_elements() -> None:
    whole = torch.arange(12.0).reshape(6, 2)
    part = whole.split([5, 1])[RANK]

    def centered(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out - grad_out.mean(0, keepdim=True)

    expected = gradient(xg.activation("Linear", centered), whole, whole)
    found = gradient(xg.activation("Linear", centered, over="global"), part, part)
    torch.testing.assert_close(found, expected.split([5, 1])[RANK])


@check()
def sums_and_maxima_pass_edge_values_in_every_dtype() -> None:
    nan, inf = float("nan"), float("inf")
    x = [[nan, -0.0, -inf, inf, 1.0], [1.0, 0.0, -inf, -inf, 2.0]]
    largest = [nan, 0.0, -inf, inf, 2.0]
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        given = torch.tensor(x[RANK], dtype=dtype)
        found = xp.all_max(given)
        assert found.dtype == dtype
        assert torch.equal(
            found.nan_to_num(7.0), torch.tensor(largest, dtype=dtype).nan_to_num(7.0)
        )
        total = torch.tensor(x, dtype=dtype).sum(0)
        assert torch.equal(xp.all_sum(given).nan_to_num(7.0), total.nan_to_num(7.0))
    small = torch.tensor([256.0 if RANK else 1.0], dtype=torch.bfloat16)
    assert xp.all_sum(small, "data").item() == 256.0  # rounded once
    assert xp.all_sum(torch.ones(0, 3)).shape == (0, 3)
    assert xp.all_max(torch.tensor(float(RANK))).item() == 1.0


@check()
def derivatives_of_any_order_are_those_of_one_process() -> None:
    whole = torch.tensor([[1.0, 3.0], [1.0, 2.0]], requires_grad=True)

    def first(loss: Tensor, x: Tensor) -> Tensor:
        return torch.autograd.grad(loss, x, create_graph=True)[0]

    # Each process has a loss of its own; the derivatives are of their sum.
    mine = whole.detach()[RANK].requires_grad_()
    expected = first((whole.sum(0) ** 3).sum() * 2, whole)
    found = first((xp.all_sum(mine) ** 3).sum(), mine)
    torch.testing.assert_close(found, expected[RANK])
    expected = first((expected**2).sum(), whole)
    torch.testing.assert_close(first((found**2).sum(), mine), expected[RANK])
    expected = first((whole.amax(0) ** 2).sum() * 2, whole)
    torch.testing.assert_close(first((xp.all_max(mine) ** 2).sum(), mine), expected[RANK])


# --- tensors that are handed around ---------------------------------------------------------------
def handed(kind: str, x: Tensor) -> Tensor:
    """Ours."""
    if kind == "all_gather":
        return xp.all_gather(x, "data", 1)
    if kind == "reduce_scatter":
        return xp.reduce_scatter(x, "data", -1)
    if kind == "all_to_all":
        return xp.all_to_all(x, "data", 1, 0)
    return xp.ppermute(x, {"ring": [(0, 1), (1, 0)], "one way": [(0, 1)]}[kind], "data")


def handed_by_torch(kind: str, x: Tensor) -> Tensor:
    """The same by torch's own, with their own derivatives."""
    world = dist.group.WORLD
    if kind == "all_gather":
        return functional.all_gather_tensor_autograd(x, 1, world)
    if kind == "reduce_scatter":
        return functional.reduce_scatter_tensor_autograd(x, "sum", x.ndim - 1, world)
    if kind == "all_to_all":
        parts = torch.stack(x.chunk(2, 1))
        received = functional.all_to_all_single_autograd(parts, None, None, world)
        return received.reshape(-1, x.shape[1] // 2)
    gathered = functional.all_gather_tensor_autograd(x.unsqueeze(0), 0, world)
    if kind == "ring":
        return gathered[1 - RANK]
    return gathered[0] if RANK else gathered[0] * 0


KINDS = ("all_gather", "reduce_scatter", "all_to_all", "ring", "one way")


def two_orders(f: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """Return a value, its gradient for cotangents of this process's own, and a second one."""
    x = x.clone().requires_grad_()
    y = f(x * x)
    weights = torch.arange(float(y.numel())).reshape(y.shape) + RANK
    (first,) = torch.autograd.grad((y * y * weights).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((first * first).sum(), x)
    return [y.detach(), first.detach(), second]


@check(kind=KINDS, way=("plain", "activation", "compiled"))
def what_processes_hand_around_has_the_values_and_gradients_of_torchs_own(
    kind: str, way: str
) -> None:
    x = values()[0] + RANK
    expected = two_orders(lambda x: handed_by_torch(kind, x), x)
    ours = xg.activation(lambda x: handed(kind, x))
    act = {"plain": lambda x: handed(kind, x), "activation": ours, "compiled": ours}[way]
    if way == "compiled":
        compiled = torch.compile(act, backend="aot_eager", fullgraph=True)
        given = x.clone().requires_grad_()
        y = compiled(given)
        torch.testing.assert_close(y.detach(), handed(kind, x))
        found = torch.autograd.grad(y, given, torch.ones_like(y) * (RANK + 1))[0]
        given = x.clone().requires_grad_()
        y = handed_by_torch(kind, given)
        by_torch = torch.autograd.grad(y, given, torch.ones_like(y) * (RANK + 1))[0]
        torch.testing.assert_close(found, by_torch)
        return
    for found, value in zip(two_orders(act, x), expected, strict=True):
        torch.testing.assert_close(found, value)


def gathered(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
    whole = functional.all_gather_tensor_autograd(tin, 0, dist.group.WORLD)
    return functional.reduce_scatter_tensor_autograd(whole * 0.5, "sum", 0, (MESHES["one"], 0))


def exchanged(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
    sent = nn.all_to_all_single(torch.empty_like(tin), tin)
    return functional.all_to_all_single_autograd(sent, None, None, dist.group.WORLD) * 1.0


def listed(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
    return nn.all_gather(tin)[0]


@check(rule=("gathered", "exchanged", "listed"))
def rules_that_hand_tensors_around_in_torchs_words_are_captured_or_refused(rule: str) -> None:
    x, grad_out = values()
    x = x + RANK
    xg.register(rule, native=False, override=True)(globals()[rule])
    act = xg.activation("Linear", rule)
    if rule == "listed":
        said = refusal(gradient, act, x, grad_out)
        assert "all_gather" in said and "a tensor for each process" in said, said
        return
    torch.testing.assert_close(gradient(act, x, grad_out), x)
    assert "all_" in str(xg.show(rule))


@check()
def parts_that_do_not_come_out_even_and_shards_that_are_not_there_are_refused() -> None:
    x = torch.ones(3, 2)
    said = refusal(xp.reduce_scatter, x)
    assert "reduce_scatter cuts axis 0 of a tensor of shape (3, 2)" in said, said
    said = refusal(xp.ppermute, x, [(0, 2)])
    assert "names shard 2, and there are 2 shards" in said, said
    said = refusal(xp.all_to_all, x, ("replicas", "columns"))
    assert "name one" in said, said


@check()
def a_rule_that_sums_over_shards_by_itself_is_captured() -> None:
    def own_norm(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out / xp.sqrt(xp.all_sum(xp.sum(grad_out * grad_out), "data", of=grad_out))

    x, grad_out = values()
    found = gradient(xg.activation("Linear", own_norm), own(x), own(grad_out))
    torch.testing.assert_close(found, own(grad_out / grad_out.norm()))


def sum_anew(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out / nn.all_reduce((grad_out * grad_out).sum()).sqrt()


def sum_in_place(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
    total = (grad_out * grad_out).sum()
    dist.all_reduce(total, group=dist.group.WORLD)
    return grad_out / total.sqrt()


def functional_sum(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
    total = functional.all_reduce((grad_out * grad_out).sum(), "sum", dist.group.WORLD)
    return grad_out / total.sqrt()


def per_process(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
    total = (grad_out * grad_out).sum()
    dist.all_reduce(total)
    return grad_out / (total * (dist.get_world_size() / 2)).sqrt()


@check(rule=("sum_anew", "sum_in_place", "functional_sum", "per_process"))
def rules_written_with_torchs_collectives_are_captured_or_refused_by_name(rule: str) -> None:
    x, grad_out = values()
    act = xg.activation("Linear", xg.register(rule, native=NATIVE.get(rule))(globals()[rule]))
    found = gradient(act, own(x), own(grad_out))
    torch.testing.assert_close(found, own(grad_out / grad_out.norm()))
    if rule not in NATIVE:
        assert "all_sum" in xg.show(rule)
        return
    xg.unregister(rule)
    xg.register(rule, native=False)(globals()[rule])
    said = refusal(gradient, xg.activation("Linear", rule), own(x), own(grad_out))
    assert NAMED[rule] in said, said


NATIVE = {"functional_sum": True, "per_process": True}
NAMED = {
    "functional_sum": "torch.distributed.nn.functional.all_reduce is captured",
    "per_process": "torch.distributed.get_world_size",
}


class Extremes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Tensor:
        low, high = grad_out.min(), grad_out.max()
        dist.all_reduce(low, dist.ReduceOp.MIN)
        dist.all_reduce(high, op=dist.ReduceOp.MAX)
        return (grad_out - low) / (high - low)


@check()
def an_autograd_function_that_exchanges_extremes_is_captured() -> None:
    x, grad_out = values()
    f = xg.from_autograd_function(Extremes)
    low, high = grad_out.min(), grad_out.max()
    found = gradient(f, own(x), own(grad_out))
    torch.testing.assert_close(found, own((grad_out - low) / (high - low)))
    assert xg.show(f).count("all_max") == 2


@check(over=("shard", "global"))
def a_distributed_tensor_is_one_array_unless_its_shards_are_meant(over: str) -> None:
    x, grad_out = values()
    given = [distribute_tensor(each, MESHES["one"], [Shard(0)]) for each in (x, grad_out)]
    found = gradient(xg.activation("Linear", "clip_norm", over=over), *given)
    assert found.placements == (Shard(0),)
    expected = grad_out / grad_out.norm() if over == "global" else own(grad_out)
    if over == "shard":
        torch.testing.assert_close(found.to_local(), expected / expected.norm())
    else:
        torch.testing.assert_close(found.full_tensor(), expected)


@check(distributed=(False, True))
def names_that_do_not_exist_are_refused_with_those_that_do(distributed: bool) -> None:
    x, grad_out = values()
    if distributed:
        x, grad_out = (distribute_tensor(e, MESHES["one"], [Shard(0)]) for e in (x, grad_out))
    act = xg.activation("Linear", "clip_norm", axis_name="rows")
    said = refusal(gradient, act, x, grad_out)
    assert said.startswith("RuleValueError"), said
    assert "'rows'" in said and "['columns', 'data', 'replicas']" in said, said


@check()
def a_name_of_several_meshes_is_refused_outside_of_them() -> None:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("columns", "rest"))
    act, (x, grad_out) = xg.activation("Linear", "clip_norm", axis_name="columns"), values()
    said = refusal(gradient, act, x, grad_out)
    assert "several meshes have a dimension 'columns'" in said, said
    assert "axis_name=mesh['columns']" in said, said
    with mesh:
        found = gradient(act, x, grad_out)
    torch.testing.assert_close(found, grad_out / grad_out.norm())


@check()
def outside_of_a_group_it_is_said_what_to_call() -> None:
    MESHES.clear()
    dist.barrier()
    dist.destroy_process_group()
    act = xg.activation("Linear", "clip_norm", over="global")
    try:
        said = refusal(gradient, act, *values())
    finally:
        store = dist.FileStore(f"{os.environ['RANKS_FOLDER']}/again", 2)
        dist.init_process_group("gloo", store=store, rank=RANK, world_size=2)
    assert said.startswith("GradientError"), said
    assert "torch.distributed.init_process_group" in said, said
