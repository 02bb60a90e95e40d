"""Models trained on two processes, beside the same model on one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from harness.distributed.ranks import check, refusal
from support import matrix
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import multigrad as xg
from multigrad.compat.hook import attach_param_hooks

Tensor: TypeAlias = Any
RANK = int(os.environ["RANK"])
KINDS = ("elementwise", "norm", "random", "function", "params")
SCHEMES = ("ddp", "fsdp", "tensor", "dtensor")
MESHES: dict[str, Any] = {}


def start() -> None:
    torch.set_default_dtype(torch.float64)
    if not dist.is_initialized():  # by `torch_dtensors.py`, if it runs before
        dist.init_process_group("gloo")
    MESHES["one"] = init_device_mesh("cpu", (2,), mesh_dim_names=("split",))


def finish() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


# --- the model and its data ----------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.up = nn.Linear(6, 8)
        self.down = nn.Linear(8, 4)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))


def make(act: Callable[[Tensor], Tensor]) -> Net:
    torch.manual_seed(0)
    return Net(act)


def data() -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(1)
    return torch.randn(8, 6, generator=made), torch.randn(8, 4, generator=made)


def own(x: Tensor) -> Tensor:
    return x.chunk(2)[RANK]


def slope(upstream: Tensor, x: Tensor) -> Tensor:
    return upstream * (1 - x.abs() / 4).clamp(min=0)


ROUNDED = xg.function(lambda x: x.round(), slope)


def activation(kind: str, over: Any) -> Callable[[Tensor], Tensor]:
    if kind == "elementwise":
        return xg.activation("ReLU", "triangular", {"width": 2.0})
    if kind == "norm":
        return xg.activation("Softplus", "clip_norm", {"max_norm": 0.02}, over=over)
    if kind == "function":
        return ROUNDED
    return xg.activation("Softplus") if kind == "random" else torch.tanh


def entered(kind: str, over: Any, step: int) -> contextlib.AbstractContextManager[Any]:
    if kind == "random":
        return xg.use("full_jam", scope="activations", key=step, over=over)
    if kind == "params":
        return xg.use("clip_norm", params={"max_norm": 0.1}, scope="params")
    return contextlib.nullcontext()


# --- what is split, by scheme: the model, its input, and what its activations are parts of -------


def split(scheme: str, model: nn.Module) -> nn.Module:
    if scheme == "ddp":
        return DistributedDataParallel(model)
    if scheme == "fsdp":
        fully_shard(model.up, mesh=MESHES["one"])
        return fully_shard(model, mesh=MESHES["one"])
    if scheme == "tensor":
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        return parallelize_module(model, MESHES["one"], plan)
    return distribute_module(model, MESHES["one"])


def part(scheme: str, x: Tensor) -> Tensor:
    if scheme == "dtensor":
        return distribute_tensor(x, MESHES["one"], [Shard(0)])
    return x if scheme == "tensor" else own(x)


OVER = {"ddp": "global", "fsdp": "global", "tensor": (None, "split"), "dtensor": None}


def whole(x: Tensor) -> Tensor:
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def train(model: nn.Module, kind: str, over: Any, steps: int, **how: Any) -> list[Tensor]:
    """Return the parameters after so many steps; `scale`: of the loss, which DDP divides by 2."""
    scheme, scale = how.get("scheme"), how.get("scale", 1.0)
    x, target = data()
    if scheme is not None:
        x, target = part(scheme, x), part(scheme, target)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * how.get("rate", 1.0))
    for step in range(steps):
        optimizer.zero_grad()
        with entered(kind, over, step):
            loss = ((model(x) - target) ** 2).sum() / 8 * scale
        loss.backward()
        optimizer.step()
    return [whole(p).detach() for p in model.parameters()]


@check(scheme=SCHEMES, kind=KINDS)
def steps_end_where_one_device_does(scheme: str, kind: str) -> None:
    # A fault shows in the first; DDP makes its buckets anew after it, and each step draws anew.
    steps, over = 8, OVER[scheme]
    expected = train(make(activation(kind, None)), kind, None, steps)
    model = split(scheme, make(activation(kind, over)))
    # The mean over processes of losses that are parts of a sum is half of it: twice the rate, or
    # where a rule acts on that mean twice the loss.
    averages = scheme in ("ddp", "fsdp")
    how = {"scheme": scheme}
    if averages:
        how |= {"scale": 2.0} if kind == "params" else {"rate": 2.0}
    if scheme == "ddp" and kind == "params":
        attach_param_hooks(model, reduced=True)
    found = train(model, kind, over, steps, **how)
    raw = train(make(activation("params", None)), "none", None, 1)
    assert not torch.allclose(expected[0], raw[0])
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


# --- parameters of DistributedDataParallel -------------------------------------------------------


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return (100 * model(x)).pow(2).mean()


CLIP = {"rule": "clip_norm", "scope": "params"}


def clipped(x: Tensor, model: nn.Module | None = None) -> list[Tensor]:
    """Return one device's gradients under the rule."""
    model = make(torch.tanh) if model is None else model
    with xg.use(**CLIP):
        loss_of(model, x).backward()
    return [p.grad for p in model.parameters()]


def assert_grads(model: nn.Module, expected: list[Tensor]) -> None:
    for p, grad in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, grad, rtol=1e-9, atol=1e-12)


@check(
    options=("", "static_graph", "find_unused_parameters", "gradient_as_bucket_view"),
    attached=("before", "after"),
)
def rules_act_on_the_mean_over_replicas_if_asked_to(options: str, attached: str) -> None:
    x, model = data()[0], make(torch.tanh)
    if attached == "before":
        attach_param_hooks(model, reduced=True)
    ddp = DistributedDataParallel(model, **({options: True} if options else {}))
    if attached == "after":
        attach_param_hooks(ddp, reduced=True)
    expected = clipped(x)
    for _ in range(3):  # a static graph reduces otherwise at first, and buckets are made anew
        ddp.zero_grad()
        with xg.use(**CLIP):
            loss = loss_of(ddp, own(x))
        loss.backward()
        assert_grads(model, expected)


@check()
def rules_act_on_each_replicas_own_gradient_unless_asked_to() -> None:
    x, ddp = data()[0], DistributedDataParallel(make(torch.tanh))
    with xg.use(**CLIP):
        loss_of(ddp, own(x)).backward()
    halves = [clipped(each) for each in x.chunk(2)]
    assert_grads(ddp.module, [(a + b) / 2 for a, b in zip(*halves, strict=True)])


@check(hook=("allreduce_hook", "fp16_compress_hook"))
def rules_act_after_a_communication_hook_that_exists(hook: str) -> None:
    x, ddp = data()[0], DistributedDataParallel(make(torch.tanh))
    ddp.register_comm_hook(None, getattr(default_hooks, hook))
    attach_param_hooks(ddp, reduced=True)
    with xg.use(**CLIP):
        loss_of(ddp, own(x)).backward()
    rough = hook.startswith("fp16")
    for p, grad in zip(ddp.parameters(), clipped(x), strict=True):
        torch.testing.assert_close(p.grad, grad, rtol=1e-2 if rough else 1e-9, atol=1e-3)
        assert abs(p.grad.norm() - 1.0) < 1e-12


@check(bucket_view=(False, True))
def gradients_accumulated_without_reduction_are_clipped_once_as_their_sum(
    bucket_view: bool,
) -> None:
    x, ddp = (
        data()[0],
        DistributedDataParallel(make(torch.tanh), gradient_as_bucket_view=bucket_view),
    )
    attach_param_hooks(ddp, reduced=True)
    first, second = own(x).chunk(2)
    for _ in range(2):
        ddp.zero_grad()
        with xg.use(**CLIP):
            with ddp.no_sync():
                loss_of(ddp, first).backward()
            loss_of(ddp, second).backward()
        alone = make(torch.tanh)
        (2 * loss_of(alone, x)).backward()
        expected = [p.grad / max(1.0, p.grad.norm().item()) for p in alone.parameters()]
        assert_grads(ddp.module, expected)
        loss_of(ddp, second)  # without a rule in force nothing acts
    with xg.use(**CLIP):
        loss = loss_of(ddp, second)
    said = refusal(loss.backward)
    assert "cannot act on the reduced gradient of parameter 'Linear." in said, said
    assert "no_sync" in said and "zero_grad(set_to_none=True)" in said, said


@check()
def parameters_that_one_replica_alone_uses_get_the_rule_on_all() -> None:
    class Either(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if len(x) == 3 else self.down(torch.ones(8)) * x.sum()

    torch.manual_seed(0)
    model = Either(torch.tanh)
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    attach_param_hooks(ddp, reduced=True)
    x = torch.ones(3 + RANK, 6)
    with xg.use(**CLIP):
        loss_of(ddp, x).backward()
    assert abs(model.up.weight.grad.norm() - 1.0) < 1e-12
    grads = [p.grad for p in model.parameters()]
    dist.all_reduce(torch.cat([g.flatten() for g in grads]))
    together = [g.clone() for g in grads]
    for each, grad in zip(together, grads, strict=True):
        dist.all_reduce(each)
        torch.testing.assert_close(each, 2 * grad)


@check()
def random_rules_of_replicated_parameters_need_a_key() -> None:
    x, ddp = data()[0], DistributedDataParallel(make(torch.tanh))
    attach_param_hooks(ddp, reduced=True)
    with xg.use("noise", scope="params"):
        loss = loss_of(ddp, own(x))
    said = refusal(loss.backward)
    assert "without a key each process would draw other numbers" in said, said
    ddp.zero_grad()
    with xg.use("noise", scope="params", key=3):
        loss = loss_of(ddp, own(x))
    loss.backward()
    alone = make(torch.tanh)
    with xg.use("noise", scope="params", key=3):
        loss = loss_of(alone, x)
    loss.backward()
    assert_grads(ddp.module, [p.grad for p in alone.parameters()])


@check()
def hooks_of_another_kind_are_refused_and_an_error_leaves_none_waiting() -> None:
    x, ddp = data()[0], DistributedDataParallel(make(torch.tanh))
    hooks = attach_param_hooks(ddp)
    assert "remove_param_hooks" in refusal(lambda: attach_param_hooks(ddp, reduced=True))
    hooks.remove()
    attach_param_hooks(ddp, reduced=True)
    ddp.module.act = failing = Failing()
    with xg.use(**CLIP), ddp.no_sync():
        loss = loss_of(ddp, own(x))
    try:
        loss.backward()
    except ValueError:
        failing.fails = False
    ddp.zero_grad()
    with xg.use(**CLIP):
        loss_of(ddp, own(x)).backward()
    assert_grads(ddp.module, clipped(x))


class Failing(nn.Module):
    """tanh, whose backward fails: parameters behind it were reached, those before it were not."""

    fails = True

    def fail(self, grad: Tensor) -> None:
        if self.fails:
            raise ValueError("in backward")

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(x)
        y.register_hook(self.fail)
        return y


@check(scheme=("ddp", "fsdp"))
def gradients_of_a_finished_backward_are_reduced(scheme: str) -> None:
    x, model = data()[0], split(scheme, make(torch.tanh))
    loss_of(model, own(x)).backward()
    ruled = xg.apply_to_gradients([p.grad for p in model.parameters()], "clip_norm")
    for mine, theirs in zip(ruled, clipped(x), strict=True):
        torch.testing.assert_close(whole(mine), theirs, rtol=1e-9, atol=1e-12)


# --- tensor and sequence parallel, pipelines -----------------------------------------------------


@check(rule=("triangular", "centralize"))
def sequence_parallel_layers_give_what_one_device_does(rule: str) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(6)
            self.net = make(xg.activation("GELU", rule, over=OF_COLUMNS.get(rule)))

        def forward(self, x: Tensor) -> Tensor:
            return self.net(SHARP(self.norm(x)))

    torch.manual_seed(0)
    alone, x = Block(), data()[0].reshape(2, 4, 6).requires_grad_()
    with xg.use(**CLIP):
        loss_of(alone, x).backward()
    expected = [x.grad, *(p.grad for p in alone.parameters())]
    torch.manual_seed(0)
    plan = {
        "norm": SequenceParallel(use_local_output=False),
        "net": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "net.up": ColwiseParallel(),
        "net.down": RowwiseParallel(),
    }
    model = parallelize_module(Block(), MESHES["one"], plan)
    split_x = distribute_tensor(x.detach(), MESHES["one"], [Shard(1)]).requires_grad_()
    with xg.use(**CLIP):
        loss_of(model, split_x).backward()
    assert split_x.grad.placements == (Shard(1),)
    found = [split_x.grad, *(p.grad for p in model.parameters())]
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(whole(mine), theirs, rtol=1e-9, atol=1e-12)


SHARP = xg.activation("Linear", "arctan")
OF_COLUMNS = {"centralize": (None, None, "split")}


@check(schedule=("gpipe", "1f1b"))
def stages_of_a_pipeline_give_what_one_device_does(schedule: str) -> None:
    class Last(nn.Module):
        def __init__(self, down: nn.Module) -> None:
            super().__init__()
            self.down, self.act = down, xg.activation("Tanh")

        def forward(self, x: Tensor) -> Tensor:
            return self.down(self.act(x))

    x, target = data()
    net, alone = make(torch.tanh), make(xg.activation("Tanh"))
    mine = nn.Sequential(net.up) if RANK == 0 else Last(net.down)
    stage = PipelineStage(mine, RANK, 2, torch.device("cpu"))
    kind = ScheduleGPipe if schedule == "gpipe" else Schedule1F1B
    run = kind(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss, scale_grads=False)
    with xg.use("triangular"):
        for some, wanted in zip(x.chunk(4), target.chunk(4), strict=True):
            nn.functional.mse_loss(alone(some), wanted).backward()
        run.step(x) if RANK == 0 else run.step(target=target)
    layer = alone.up if RANK == 0 else alone.down
    for p, theirs in zip(mine.parameters(), layer.parameters(), strict=True):
        torch.testing.assert_close(p.grad, theirs.grad, rtol=1e-9, atol=1e-12)


@check()
def a_rule_adds_no_communication_to_tensor_parallel_layers() -> None:
    counts = []
    for act in (torch.relu, activation("elementwise", None)):
        model = split("tensor", make(act))
        with CommDebugMode() as comm:
            loss_of(model, data()[0]).backward()
        counts.append({str(op): n for op, n in comm.get_comm_counts().items()})
    assert counts[0] == counts[1], counts


# --- each kind of rule, as docs/support.md says it ------------------------------------------------
@check(transform=("DistributedDataParallel", "FSDP2 (`fully_shard`)"))
def each_kind_of_rule(transform: str) -> None:
    wrong = matrix.wrong("torch", transform)
    assert wrong == {}, wrong
