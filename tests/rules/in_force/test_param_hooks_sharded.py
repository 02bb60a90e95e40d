"""Rules of scope "params" on parameters that are sharded over processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

pytestmark = pytest.mark.needs("torch")

Tensor: TypeAlias = Any


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    """A mesh of one process."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def two_layers() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))


def shard(model: Any, mesh: Any, nested: bool = True) -> Any:
    """Shard a model by `fully_shard`; nested: its first layer by itself."""
    import torch

    if not hasattr(torch.cpu.Stream, "record_event"):
        pytest.skip(f"fully_shard of torch {torch.__version__} needs a GPU")
    from torch.distributed.fsdp import fully_shard

    if nested:
        fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def run(model: Any, **use: Any) -> list[Any]:
    """Return the gradients of a loss made under `use`, whole."""
    import torch

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


@pytest.mark.parametrize("nested", [False, True])
def test_rules_act_once_on_the_reduced_gradients_of_fully_shard(mesh: Any, nested: bool) -> None:
    model = shard(two_layers(), mesh, nested)
    for _ in range(2):
        for ours, expected in zip(run(model, **CLIP), clipped(), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-5)
    raw = run(model, rule="clip_norm", scope="activations")
    assert max(np.linalg.norm(g) for g in raw) > 10.0


@pytest.mark.parametrize("before", [False, True])
def test_hooks_that_were_asked_for_reach_fully_shard_attached_before_or_after(
    mesh: Any, before: bool
) -> None:
    from multigrad.compat.hook import attach_param_hooks, remove_param_hooks

    model = two_layers()
    if before:
        attach_param_hooks(model)
    shard(model, mesh)
    if not before:
        attach_param_hooks(model)
    for _ in range(2):
        for ours, expected in zip(run(model, rule="clip_norm"), clipped(), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-5)
    remove_param_hooks(model)
    assert max(np.linalg.norm(g) for g in run(model, rule="clip_norm")) > 10.0


def test_gradients_that_fully_shard_accumulates_are_refused(mesh: Any) -> None:
    import torch

    model = shard(two_layers(), mesh)
    with xg.use(**CLIP):
        model(torch.ones(2, 4)).sum().backward()
        with pytest.raises(xg.GradientError, match=r"'Linear\.weight' of fully_shard.*zero_grad"):
            model(torch.ones(2, 4)).sum().backward()


def test_a_torch_whose_fully_shard_calls_no_hooks_is_refused(
    mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from multigrad_torch import versions

    model = shard(two_layers(), mesh)
    monkeypatch.setattr(versions, "RELEASE", (2, 4))
    with pytest.raises(
        xg.GradientError, match=r"fully_shard needs torch>=2\.5.*apply_to_gradients"
    ):
        run(model, **CLIP)
    monkeypatch.undo()
    state = vars(model._get_fsdp_state())
    (name,) = (each for each in state if each.startswith("_fsdp_param_group"))
    groups = state.pop(name)
    with pytest.raises(xg.MultigradError, match="does not tell the parameters of fully_shard"):
        run(model, **CLIP)
    state[name] = groups


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("original", [False, True])
def test_fully_sharded_data_parallel_is_refused(mesh: Any, original: bool) -> None:
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel

    from multigrad.compat.hook import attach_param_hooks

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
