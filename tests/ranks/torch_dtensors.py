"""Rules and Functions on DTensors of two processes, beside the same on one tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from harness.distributed.ranks import check, refusal
from support import matrix
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import multigrad as xg

Tensor: TypeAlias = Any
PLACEMENTS = {"first": Shard(0), "last": Shard(1), "everywhere": Replicate()}
# What a rule asks for, by the axis that is sharded: a reduction over the last axis alone, a norm.
ASKED = {
    "triangular": (0, 0),
    "arctan": (0, 0),
    "clip_value": (0, 0),
    "clip_norm": (1, 1),
    "centralize": (0, 1),
}


def start() -> None:
    dist.init_process_group("gloo")
    mesh()


def mesh() -> Any:
    if "it" not in MESH:
        MESH["it"] = init_device_mesh("cpu", (2,), mesh_dim_names=("data",))
    return MESH["it"]


MESH: dict[str, Any] = {}


def finish() -> None:
    dist.destroy_process_group()


def distribute(x: Tensor, placement: str) -> Tensor:
    return distribute_tensor(x, mesh(), [PLACEMENTS[placement]])


def values(rows: int = 6, columns: int = 4) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(0)
    return torch.randn(2, rows, columns, generator=made).unbind()


def gradient(f: Callable[[Tensor], Tensor], x: Tensor, grad_out: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    y = f(x)
    return y.detach(), torch.autograd.grad(y, x, grad_out)[0]


def assert_as_whole(found: Tensor, expected: Tensor, placement: str) -> None:
    assert found.placements == (PLACEMENTS[placement],), found.placements
    torch.testing.assert_close(found.full_tensor(), expected, rtol=1e-6, atol=1e-7)


def counted(comm: Any) -> dict[str, int]:
    return {str(op).rpartition(".")[2]: count for op, count in comm.get_comm_counts().items()}


@check(
    rule=("triangular", "arctan", "clip_value", "clip_norm", "centralize"),
    placement=("first", "last", "everywhere"),
)
def rules_ask_for_their_reductions_alone_and_keep_placements(rule: str, placement: str) -> None:
    act, (x, grad_out) = xg.activation("ReLU", rule), values()
    output, expected = gradient(act, x, grad_out)
    inputs = distribute(x, placement), distribute(grad_out, placement)
    with CommDebugMode() as comm:
        y, found = gradient(act, *inputs)
    reductions = 0 if placement == "everywhere" else ASKED[rule][placement == "last"]
    assert counted(comm) == ({"all_reduce": reductions} if reductions else {})
    assert_as_whole(y, output, placement)
    assert_as_whole(found, expected, placement)
    # Of a parameter.
    with xg.use(rule, scope="params"):
        bare = xg.apply_to_gradients([inputs[1]])[0]
        assert_as_whole(bare, xg.apply_to_gradients([grad_out])[0], placement)


@check(rule=("triangular", "clip_norm", "centralize"), dim=(0, 1))
def uneven_shards_give_what_the_whole_gives(rule: str, dim: int) -> None:
    act, (x, grad_out) = xg.activation("Heaviside", rule), values(5, 3)
    output, expected = gradient(act, x, grad_out)
    placement = ("first", "last")[dim]
    y, found = gradient(act, distribute(x, placement), distribute(grad_out, placement))
    assert_as_whole(y, output, placement)
    assert_as_whole(found, expected, placement)
    one = torch.ones(1, 1)  # the second process has none of it
    y, found = gradient(act, distribute(one, placement), distribute(one, placement))
    assert_as_whole(found, gradient(act, one, one)[1], placement)


@check(order=("transposed", "expanded"))
def elements_lie_in_memory_in_any_order(order: str) -> None:
    act, (x, grad_out) = xg.activation("ReLU", "arctan"), values()
    _, expected = gradient(act, x.T, grad_out.T if order == "transposed" else torch.ones(4, 6))
    given = distribute(x, "first").T
    if order == "transposed":
        upstream = distribute(grad_out, "first").T
    else:
        upstream = distribute(torch.ones(1, 6), "last").expand(4, 6)
    y, found = gradient(act, given, upstream)
    assert y.stride() == given.stride() and y.to_local().stride() == given.to_local().stride()
    assert_as_whole(found, expected, "last")
    assert found.sum(0).placements == (Shard(0),)
    torch.testing.assert_close((found.contiguous() * 1).full_tensor(), expected)


@check(forward=("Heaviside", "ReLU", "Softplus"), dtype=("float32", "bfloat16"))
def fast_kernels_of_large_parts_give_what_the_whole_gives(forward: str, dtype: str) -> None:
    x, grad_out = (each.to(getattr(torch, dtype)) for each in values(400, 100))
    for rule in ("rectangular", "triangular", "arctan"):
        act = xg.activation(forward, rule)
        output, expected = gradient(act, x, grad_out)
        y, found = gradient(act, distribute(x, "first"), distribute(grad_out, "first"))
        assert y.placements == found.placements == (Shard(0),)
        assert torch.equal(y.full_tensor(), output)
        assert torch.equal(found.full_tensor(), expected)


@check(kind=("function", "autograd", "native"))
def functions_run_on_their_parts(kind: str) -> None:
    def slope(upstream: Tensor, x: Tensor) -> Tensor:
        return upstream / (1 + x.abs()) ** 2

    class Spike(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return (x > 0).to(x.dtype)

        @staticmethod
        def backward(ctx: Any, grad_out: Tensor) -> Tensor:
            return slope(grad_out, *ctx.saved_tensors)

    if kind == "autograd":
        f = xg.from_autograd_function(Spike)
    else:
        native = True if kind == "native" else None
        f = xg.function(lambda x: (x > 0) * 1.0, slope, native=native)
    x, grad_out = values()
    output, expected = gradient(f, x, grad_out)
    inputs = distribute(x, "first"), distribute(grad_out, "first")
    with CommDebugMode() as comm:
        y, found = gradient(f, *inputs)
    assert counted(comm) == {}
    assert_as_whole(y, output, "first")
    assert_as_whole(found, expected, "first")


@check()
def a_function_of_weights_gives_whole_gradients() -> None:
    product = xg.function(lambda x, w: x @ w, lambda g, x, w: (g @ w.T, x.T @ g))
    (x, _), (w, _) = values(), values(4, 4)
    xs, ws = distribute(x, "first").requires_grad_(), distribute(w, "everywhere").requires_grad_()
    product(xs, ws).sum().backward()
    assert_as_whole(xs.grad, torch.ones(6, 4) @ w.T, "first")
    assert_as_whole(ws.grad, x.T @ torch.ones(6, 4), "everywhere")


@check(rule=("arctan", "clip_norm"))
def gradients_of_gradients_are_those_of_the_whole(rule: str) -> None:
    act = xg.activation("Linear", rule)

    def second(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (first,) = torch.autograd.grad((act(x) * x).sum(), x, create_graph=True)
        return torch.autograd.grad((first * first).sum(), x)[0]

    x = values()[0]
    assert_as_whole(second(distribute(x, "first")), second(x), "first")


@check(rule=("triangular", "clip_norm", "centralize"))
def compiled_code_gives_what_eager_code_gives(rule: str) -> None:
    act, (x, grad_out) = xg.activation("ReLU"), values()
    compiled = torch.compile(lambda x: act(x) * 2, backend="aot_eager")
    with xg.use(rule):
        _, expected = gradient(lambda x: act(x) * 2, x, grad_out)
        _, found = gradient(compiled, distribute(x, "last"), distribute(grad_out, "last"))
    assert_as_whole(found, expected, "last")


@check(kind=("rule", "function", "native", "gradient", "compiled"))
def partial_tensors_are_refused(kind: str) -> None:
    x = DTensor.from_local(torch.ones(4, 3), mesh(), [Partial()])
    act = xg.activation("ReLU", "triangular")
    if kind == "gradient":
        said = refusal(xg.apply_to_gradients, [x], "triangular")
    elif kind == "compiled":
        said = refusal(torch.compile(act, backend="aot_eager"), x)
    elif kind == "rule":
        said = refusal(act, x)
    else:
        native = True if kind == "native" else None
        said = refusal(xg.function(lambda x: x * 2, lambda g, x: g, native=native), x)
    assert said.startswith("GradientError"), said
    assert "placements [Partial('sum')]" in said, said
    assert "x.redistribute(placements=[Replicate()])" in said, said


@check()
def a_partial_cotangent_is_added_up_before_a_rule_sees_it() -> None:
    act, (x, grad_out) = xg.activation("Linear", "clip_value", params={"limit": 1.5}), values()
    partial = DTensor.from_local(grad_out, mesh(), [Partial()])
    _, found = gradient(act, distribute(x, "everywhere"), partial)
    assert_as_whole(found, gradient(act, x, 2 * grad_out)[1], "everywhere")


@check()
def plain_tensors_beside_distributed_ones_are_refused() -> None:
    f = xg.function(lambda x, w: x * w, lambda g, x, w: (g * w, g * x))
    said = refusal(f, distribute(values()[0], "first"), torch.ones(4))
    assert "distribute_tensor(x, mesh, [Replicate()])" in said, said


@check()
def constant_arrays_of_a_rule_are_the_same_on_each_process() -> None:
    def weigh(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out * torch.tensor([1.0, 2.0, 3.0, 4.0])

    act, (x, grad_out) = xg.activation("Linear", weigh), values()
    _, expected = gradient(act, x, grad_out)
    _, found = gradient(act, distribute(x, "last"), distribute(grad_out, "last"))
    assert_as_whole(found, expected, "last")


@check()
def an_op_that_has_no_meaning_on_shards_is_refused_by_name() -> None:
    def mixed(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return torch.nn.functional.conv1d(grad_out[None], torch.ones(4, 4, 1))[0]

    x = distribute(values(4, 4)[0], "first").requires_grad_()
    y = xg.activation("Linear", mixed)(x)
    said = refusal(y.sum().backward)
    assert said.startswith("UnsupportedOp: mixed under Linear"), said
    assert "placements [Shard(1)]" in said, said
    assert "redistribute(placements=[Replicate(), ...])" in said, said


@check(rule=("full_jam", "noise"), placement=("first", "last", "everywhere"))
def a_key_draws_for_the_whole_and_nothing_is_exchanged(rule: str, placement: str) -> None:
    x, grad_out = values(7, 5)

    def act(x: Tensor) -> Tensor:
        with xg.use(rule, key=7):
            return xg.activation("Linear")(x)

    _, expected = gradient(act, x, grad_out)
    inputs = distribute(x, placement), distribute(grad_out, placement)
    with CommDebugMode() as comm:
        _, found = gradient(act, *inputs)
    assert comm.get_total_counts() == 0, counted(comm)
    assert_as_whole(found, expected, placement)


@check(compiled=(False, True))
def without_a_key_processes_of_other_seeds_agree_on_one_draw(compiled: bool) -> None:
    torch.manual_seed(dist.get_rank())
    act = xg.activation("Linear", "full_jam")
    act = torch.compile(act, backend="aot_eager") if compiled else act
    for placement in PLACEMENTS:
        x = distribute(torch.ones(4, 6), placement)
        drawn = gradient(act, x, x)[1].full_tensor()
        first = drawn.clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, drawn) and len(drawn.unique()) == 24, (placement, drawn)


@check()
def plain_tensors_draw_by_the_seed_of_each_process_or_their_part_by_a_key() -> None:
    rank, part = dist.get_rank(), torch.ones(2, 3)
    torch.manual_seed(rank)
    _, own = gradient(xg.activation("Linear", "full_jam"), part, part)
    with xg.use("full_jam", key=7):
        _, whole = gradient(xg.activation("Linear"), torch.ones(4, 3), torch.ones(4, 3))
    with CommDebugMode() as comm, xg.use("full_jam", key=7, over="global"):
        _, found = gradient(xg.activation("Linear"), part, part)
    assert comm.get_total_counts() == 0, counted(comm)
    assert torch.equal(found, whole[2 * rank : 2 * rank + 2])
    both = [torch.empty_like(own) for _ in range(2)]
    dist.all_gather(both, own)
    assert len(torch.stack(both).unique()) == 12


# --- each kind of rule, as docs/support.md says it ------------------------------------------------
@check(transform=("DTensor",))
def each_kind_of_rule(transform: str) -> None:
    wrong = matrix.wrong("torch", transform)
    assert wrong == {}, wrong
