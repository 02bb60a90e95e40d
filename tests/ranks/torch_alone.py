"""Checks that need a group of processes and one process: a mesh of one, and the ranks of a larger
mesh played one after the other by a group that exchanges nothing.

They have a process of their own as those on several have: torch 2.13 may wait forever where a
DistributedDataParallel is freed after its group. The reducer then frees the group and joins its
threads while it holds the GIL, for which such a thread waits to free its last reduction.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from typing import Any, TypeAlias
from unittest import SkipTest

import numpy as np
import pytest
import torch
import torch.distributed as dist
from harness.distributed.ranks import check
from harness.models.attached import DOUBLES, GUIDES, make_net, registered_rules
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import multigrad as xg
from multigrad.compat.hook import attach_param_hooks, remove_param_hooks
from multigrad.engine import random as core
from multigrad_torch.core import versions
from multigrad_torch.kernels import random

Tensor: TypeAlias = Any
MESHES: dict[str, Any] = {}


def start() -> None:
    gc.freeze()  # what is imported is not looked at each time that a group is left
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    MESHES["one"] = init_device_mesh("cpu", (1,))


def finish() -> None:
    """What was made with the group is freed before it."""
    MESHES.clear()
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


# --- DistributedDataParallel ----------------------------------------------------------------------


@check()
def data_parallel_training_has_the_rules_and_loses_them() -> None:
    rules = {"relu": GUIDES, "head.1": DOUBLES, "stem": DOUBLES}
    with registered_rules():
        net, alone = make_net(), make_net()
        parallel = nn.parallel.DistributedDataParallel(net)
        plain = gradients(alone)
        with xg.attach(alone, rules):
            expected = gradients(alone)
        with xg.attach(net, rules):
            found = gradients(parallel)
        assert not torch.equal(expected[0], plain[0])
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(gradients(parallel), plain)


def gradients(model: Any) -> list[Any]:
    """Return the gradients of all parameters after one backward."""
    model.zero_grad()
    (model(torch.linspace(-2, 2, 20).reshape(5, 4)) ** 2).sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


# --- rules of scope "params" on parameters that are sharded ---------------------------------------


def two_layers() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))


def shard(model: Any, nested: bool = True) -> Any:
    """Shard a model by `fully_shard`; nested: its first layer by itself."""
    if not hasattr(torch.cpu.Stream, "record_event"):
        raise SkipTest(f"fully_shard of torch {torch.__version__} needs a GPU")
    from torch.distributed.fsdp import fully_shard

    if nested:
        fully_shard(model[0], mesh=MESHES["one"])
    return fully_shard(model, mesh=MESHES["one"])


def run(model: Any, **use: Any) -> list[Any]:
    """Return the gradients of a loss made under `use`, whole."""
    model.zero_grad()
    with xg.use(**use):
        loss = (100 * model(torch.arange(8.0).reshape(2, 4))).sum()
    loss.backward()
    grads = [p.grad for p in model.parameters()]
    return [(g.full_tensor() if hasattr(g, "full_tensor") else g).numpy() for g in grads]


def clipped() -> list[Any]:
    """Return what clip_norm by hand makes of the gradients."""
    grads = run(two_layers(), rule="clip_norm", scope="activations")
    return [g * min(1.0, 1.0 / np.linalg.norm(g)) for g in grads]


CLIP = {"rule": "clip_norm", "scope": "params"}


@check(nested=(False, True))
def rules_act_once_on_the_reduced_gradients_of_fully_shard(nested: bool) -> None:
    model = shard(two_layers(), nested)
    for _ in range(2):
        for ours, expected in zip(run(model, **CLIP), clipped(), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-5)
    raw = run(model, rule="clip_norm", scope="activations")
    assert max(np.linalg.norm(g) for g in raw) > 10.0


@check(before=(False, True))
def hooks_that_were_asked_for_reach_fully_shard_attached_before_or_after(before: bool) -> None:
    model = two_layers()
    if before:
        attach_param_hooks(model)
    shard(model)
    if not before:
        attach_param_hooks(model)
    for _ in range(2):
        for ours, expected in zip(run(model, rule="clip_norm"), clipped(), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-5)
    remove_param_hooks(model)
    assert max(np.linalg.norm(g) for g in run(model, rule="clip_norm")) > 10.0


@check()
def gradients_that_fully_shard_accumulates_are_refused() -> None:
    model = shard(two_layers())
    with xg.use(**CLIP):
        model(torch.ones(2, 4)).sum().backward()
        with pytest.raises(xg.GradientError, match=r"'Linear\.weight' of fully_shard.*zero_grad"):
            model(torch.ones(2, 4)).sum().backward()


@check()
def a_torch_whose_fully_shard_calls_no_hooks_is_refused() -> None:
    model = shard(two_layers())
    said = r"fully_shard needs torch>=2\.5.*apply_to_gradients"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(xg.GradientError, match=said):
        patch.setattr(versions, "RELEASE", (2, 4))
        run(model, **CLIP)
    state = vars(model._get_fsdp_state())
    (name,) = (each for each in state if each.startswith("_fsdp_param_group"))
    groups = state.pop(name)
    with pytest.raises(xg.MultigradError, match="does not tell the parameters of fully_shard"):
        run(model, **CLIP)
    state[name] = groups


@check(original=(False, True))
def fully_sharded_data_parallel_is_refused(original: bool) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    def wrap(model: Any) -> Any:
        device = torch.device("cpu")
        return FullyShardedDataParallel(model, device_id=device, use_orig_params=original)

    refused = pytest.raises(xg.GradientError, match=r"FullyShardedDataParallel.*apply_to_gradients")
    model = wrap(two_layers())
    with xg.use(**CLIP), refused:
        model(torch.ones(2, 4))
    with refused:
        attach_param_hooks(model)
    hooked = two_layers()
    attach_param_hooks(hooked)
    model = wrap(hooked)
    with xg.use("clip_norm"), refused:
        model(torch.ones(2, 4))


# --- the ranks of a larger mesh, which exchange nothing: a key gives each its part of the draws ---


WORLD = 4
KEY = (0, 7)
SHAPE = (6, 5, 8)
WHOLE = core.uniform(core.fold_in(KEY, 0), SHAPE, np.float32)


def drawn_by(act: Callable[..., Any], x: Any, over: Any = None, key: Any = 7) -> Any:
    """The gradient of ones under full_jam: what it draws."""
    x = x.detach().requires_grad_()
    with xg.use("full_jam", key=key, over=over):
        y = act(x)
    y.backward(y.detach() * 0 + 1)
    return x.grad


def as_rank(rank: int, shape: tuple[int, ...], names: tuple[str, ...] | None = None) -> Any:
    """Make this process a rank of a mesh, instead of the rank that it was."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    finish()  # torch finds a mesh by its name while it is there
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=WORLD)
    MESHES["fake"] = init_device_mesh("cpu", shape, mesh_dim_names=names)
    return MESHES["fake"]


def cut_by_chunks(x: np.ndarray, cuts: tuple[tuple[int, int, int], ...]) -> np.ndarray:
    """Cut by `torch.chunk` from left to right: (axis, the rank's coordinate, the mesh's length)."""
    for axis, coordinate, size in cuts:
        step = -(-x.shape[axis] // size)
        x = np.take(x, range(x.shape[axis])[coordinate * step : (coordinate + 1) * step], axis)
    return x


@check(axes=((0, 0), (0, 1), (2, 0), (1, 1), (None, 2), (1, None)))
def a_distributed_tensor_draws_its_part_and_exchanges_nothing(
    axes: tuple[int | None, int | None],
) -> None:
    Replicate, Shard = dtensors().Replicate, dtensors().Shard
    for rank in range(WORLD):
        mesh = as_rank(rank, (2, 2))
        coordinates = divmod(rank, 2)
        cuts = tuple((i, at, 2) for i, at in zip(axes, coordinates, strict=True) if i is not None)
        expected = cut_by_chunks(WHOLE, cuts)
        placements = [Replicate() if i is None else Shard(i) for i in axes]
        x = of_parts(torch.zeros(expected.shape), mesh, placements)
        with dtensors(".debug").CommDebugMode() as exchanged:
            found = random.uniform_like(random.fold_in(KEY, 0), x)
        assert exchanged.get_total_counts() == 0
        assert (found.placements, found.shape) == (x.placements, x.shape)
        np.testing.assert_array_equal(found.to_local(), expected)


def dtensors(module: str = "") -> Any:
    """The module of DTensors, which is private before torch 2.5, or one in it."""
    from multigrad_torch.core.versions import DTENSORS

    return importlib.import_module(DTENSORS + module)


def of_parts(local: Any, mesh: Any, placements: list[Any], shape: tuple[int, ...] = SHAPE) -> Any:
    """The DTensor of which this rank has a part."""
    strides = tuple(core.strides(shape))
    return dtensors().DTensor.from_local(
        local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=strides
    )


@check()
def shards_without_elements_and_of_fewer_rows_draw_their_part() -> None:
    for rank in range(WORLD):
        mesh = as_rank(rank, (4,))
        expected = cut_by_chunks(WHOLE, ((1, rank, 4),))  # 2, 2, 1 and 0 of 5
        x = of_parts(torch.zeros(expected.shape), mesh, [dtensors().Shard(1)])
        found = random.uniform_like(random.fold_in(KEY, 0), x)
        np.testing.assert_array_equal(found.to_local(), expected)
        assert found.shape == SHAPE


@check()
def a_dimension_that_is_sharded_by_the_second_mesh_dimension_first_draws_so() -> None:
    kinds = dtensors(".placement_types")
    if not hasattr(kinds, "_StridedShard"):
        raise SkipTest("torch has such shards from 2.5 on")
    whole = core.uniform(core.fold_in(KEY, 0), (8, 3), np.float32)
    for rank in range(WORLD):  # as fully_shard leaves what tensor parallelism has split
        mesh = as_rank(rank, (2, 2))
        placements = [kinds._StridedShard(0, split_factor=2), kinds.Shard(0)]
        x = of_parts(torch.zeros(2, 3), mesh, placements, (8, 3))
        found = random.uniform_like(random.fold_in(KEY, 0), x)
        first = {0: 0, 1: 4, 2: 2, 3: 6}[rank]
        np.testing.assert_array_equal(found.to_local(), whole[first : first + 2])


@check()
def a_local_tensor_that_its_placement_does_not_give_is_refused() -> None:
    x = of_parts(torch.zeros(3, 2), as_rank(0, (4,)), [dtensors().Shard(0)], (6, 2))
    with pytest.raises(xg.GradientError, match=r"\(3, 2\), not \(2, 2\).*distribute_tensor first"):
        random.uniform_like(KEY, x)


SPECS = {
    "global": ("global", ((0, "ab"),)),
    "rows": (("a",), ((0, "a"),)),
    "columns": ((None, None, "b"), ((2, "b"),)),
    "blocks": (("b", None, "a"), ((0, "b"), (2, "a"))),
    "two names": ((None, None, ("b", "a")), ((2, "ba"),)),
}


def cut_by_spec(x: Any, cuts: Any, coordinates: dict[str, int]) -> Any:
    for axis, names in cuts:
        index, number = 0, 1
        for name in names:
            index, number = index * 2 + coordinates[name], number * 2
        length = x.shape[axis] // number
        x = np.take(x, range(index * length, (index + 1) * length), axis)
    return x


@check(spec=("global", "rows", "columns", "blocks", "two names"), way=("eager", "compiled"))
def each_rank_of_torch_draws_its_part(spec: str, way: str) -> None:
    over, cuts = SPECS[spec]
    shape = (8, 5, 8)
    whole = core.uniform(core.fold_in(KEY, 0), shape, np.float32)
    for rank in (3,) if way == "compiled" else range(WORLD):
        as_rank(rank, (2, 2), ("a", "b"))
        expected = cut_by_spec(whole, cuts, dict(zip("ab", divmod(rank, 2), strict=True)))
        act = xg.activation("Linear")
        torch._dynamo.reset()  # it counts all callable objects as one function
        run = torch.compile(act, backend="aot_eager", fullgraph=True) if way == "compiled" else act
        found = drawn_by(run, torch.zeros(expected.shape), over)
        np.testing.assert_array_equal(found, expected)


@check()
def a_part_is_drawn_again_by_a_second_backward() -> None:
    as_rank(2, (4,))
    x = torch.zeros(2, 3, requires_grad=True)
    with xg.use("full_jam", key=7, over="global"):
        y = xg.activation("Linear")(x)
    first, second = (torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for _ in range(2))
    expected = core.uniform(core.fold_in(KEY, 0), (8, 3), np.float32)[4:6]
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_array_equal(second, expected)


@check()
def a_part_under_vmap_and_grad_of_torch_is_the_same_for_each_example() -> None:
    as_rank(2, (4,))
    act = xg.activation("Linear")
    with xg.use("full_jam", key=7, over="global"):
        found = torch.func.vmap(torch.func.grad(lambda x: act(x).sum()))(torch.zeros(3, 2, 5))
    expected = core.uniform(core.fold_in(KEY, 0), (8, 5), np.float32)[4:6]
    np.testing.assert_array_equal(found, np.broadcast_to(expected, (3, 2, 5)))
