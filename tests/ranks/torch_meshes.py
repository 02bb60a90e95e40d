"""Rules on a mesh of two dimensions: four processes."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from harness.distributed.ranks import check
from support.in_torch import Called
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import multigrad as xg

Tensor: TypeAlias = Any
MESHES: dict[str, Any] = {}
PLACEMENTS = {
    "both": (Shard(0), Shard(1)),
    "one_axis": (Shard(0), Shard(0)),
    "half": (Replicate(), Shard(1)),
}


def start() -> None:
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    MESHES["it"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))


def finish() -> None:
    dist.destroy_process_group()


def values() -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(0)
    return torch.randn(2, 6, 5, generator=made).unbind()


def gradient(act: Any, x: Tensor, grad_out: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(act(x), x, grad_out)[0]


@check(
    rule=("triangular", "clip_norm", "centralize", "noise"),
    placements=("both", "one_axis", "half"),
)
def rules_act_on_a_tensor_that_is_split_twice(rule: str, placements: str) -> None:
    x, grad_out = values()
    parts = [distribute_tensor(e, MESHES["it"], PLACEMENTS[placements]) for e in (x, grad_out)]
    act = xg.activation("Softplus")
    with xg.use(rule, key=3):
        expected = gradient(act, x, grad_out)
    with xg.use(rule, key=3), CommDebugMode() as comm:
        found = gradient(act, *parts)
    assert found.placements == PLACEMENTS[placements]
    if rule in ("triangular", "noise"):
        assert sum(comm.get_comm_counts().values()) == 0
    torch.testing.assert_close(found.full_tensor(), expected, rtol=1e-12, atol=1e-14)


@check()
def a_norm_over_two_dimensions_of_the_mesh_is_of_the_whole() -> None:
    _, grad_out = values()
    mesh = MESHES["it"]
    at = mesh.get_local_rank("data"), mesh.get_local_rank("model")
    part = grad_out.chunk(2, 0)[at[0]].chunk(2, 1)[at[1]]
    act = xg.activation("Linear", "clip_norm", over=("data", "model"))
    torch.testing.assert_close(gradient(act, part, part), part / grad_out.norm())
    quarter = grad_out.flatten()[:24].chunk(4)[dist.get_rank()]
    act = xg.activation("Linear", "clip_norm", axis_name=("data", "model"))
    expected = quarter / grad_out.flatten()[:24].norm()
    torch.testing.assert_close(gradient(act, quarter, quarter), expected)
    rows = grad_out.chunk(2, 0)[at[0]]
    act = xg.activation("Linear", "clip_norm", axis_name=mesh["data"])
    torch.testing.assert_close(gradient(act, rows, rows), rows / grad_out.norm())


@check()
def tensor_parallel_within_fully_sharded_data_parallel_trains_as_one_device() -> None:
    def make(over: Any) -> nn.Sequential:
        torch.manual_seed(0)
        act = xg.activation("Softplus", "clip_norm", {"max_norm": 0.02}, over=over)
        return nn.Sequential(nn.Linear(5, 8), Called(act), nn.Linear(8, 2))

    def train(model: nn.Module, x: Tensor, scale: float) -> list[Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(30):
            optimizer.zero_grad()
            with xg.use("clip_norm", params={"max_norm": 0.3}, scope="params"):
                loss = (model(x) - 1).pow(2).sum() * scale
            loss.backward()
            optimizer.step()
        params = [p.detach() for p in model.parameters()]
        return [p.full_tensor() if hasattr(p, "full_tensor") else p for p in params]

    x, mesh = values()[0], MESHES["it"]
    expected = train(make(None), x, 1.0)
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(make(("data", "model")), mesh["model"], plan)
    fully_shard(model, mesh=mesh["data"])
    model.set_gradient_divide_factor(1.0)  # parts of a sum
    found = train(model, x.chunk(2)[mesh.get_local_rank("data")], 1.0)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
