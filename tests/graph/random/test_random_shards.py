"""A key gives the same draws for the whole array however it is sharded, on every engine.

The ranks of torch are played one after the other by a group that exchanges nothing, which shows
that draws by a key need nothing of each other.
"""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.graph import random as core

KEY = (0, 7)
WORLD = 4
SHAPE = (6, 5, 8)
WHOLE = core.uniform(core.fold_in(KEY, 0), SHAPE, np.float32)


def drawn_by(act: Callable[..., Any], x: Any, over: Any = None, key: Any = 7) -> Any:
    """The gradient of ones under full_jam: what it draws."""
    x = x.detach().requires_grad_()
    with xg.use("full_jam", key=key, over=over):
        y = act(x)
    y.backward(y.detach() * 0 + 1)
    return x.grad


@pytest.fixture
def as_rank() -> Iterator[Callable[..., Any]]:
    """Makes this process a rank of a torch mesh, in the place of the rank that it was."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    held: list[Any] = []

    def leave() -> None:
        held.clear()
        if dist.is_initialized():
            dist.destroy_process_group()

    def enter(rank: int, shape: tuple[int, ...], names: tuple[str, ...] | None = None) -> Any:
        from torch.distributed.device_mesh import init_device_mesh

        leave()
        if names is not None:
            gc.collect()  # torch finds a mesh by its name while it is there
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=WORLD)
        held.append(init_device_mesh("cpu", shape, mesh_dim_names=names))
        return held[0]

    yield enter
    leave()


def cut_by_chunks(x: np.ndarray, cuts: tuple[tuple[int, int, int], ...]) -> np.ndarray:
    """Cut by `torch.chunk` from left to right: (axis, the rank's coordinate, the mesh's length)."""
    for axis, coordinate, size in cuts:
        step = -(-x.shape[axis] // size)
        x = np.take(x, range(x.shape[axis])[coordinate * step : (coordinate + 1) * step], axis)
    return x


# --- torch ---


@pytest.mark.needs("torch")
@pytest.mark.parametrize("axes", [(0, 0), (0, 1), (2, 0), (1, 1), (None, 2), (1, None)], ids=str)
def test_a_distributed_tensor_draws_its_part_and_exchanges_nothing(
    as_rank: Any, axes: tuple[int | None, int | None]
) -> None:
    import torch

    from multigrad_torch.kernels import random

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
    from multigrad_torch.versions import DTENSORS

    return importlib.import_module(DTENSORS + module)


def of_parts(local: Any, mesh: Any, placements: list[Any], shape: tuple[int, ...] = SHAPE) -> Any:
    """The DTensor of which this rank has a part."""
    import torch

    strides = tuple(core.strides(shape))
    return dtensors().DTensor.from_local(
        local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=strides
    )


@pytest.mark.needs("torch")
def test_shards_without_elements_and_of_fewer_rows_draw_their_part(as_rank: Any) -> None:
    import torch

    from multigrad_torch.kernels import random

    for rank in range(WORLD):
        mesh = as_rank(rank, (4,))
        expected = cut_by_chunks(WHOLE, ((1, rank, 4),))  # 2, 2, 1 and 0 of 5
        x = of_parts(torch.zeros(expected.shape), mesh, [dtensors().Shard(1)])
        found = random.uniform_like(random.fold_in(KEY, 0), x)
        np.testing.assert_array_equal(found.to_local(), expected)
        assert found.shape == SHAPE


@pytest.mark.needs("torch")
def test_a_dimension_that_is_sharded_by_the_second_mesh_dimension_first_draws_so(
    as_rank: Any,
) -> None:
    import torch

    from multigrad_torch.kernels import random

    kinds = dtensors(".placement_types")
    if not hasattr(kinds, "_StridedShard"):
        pytest.skip("torch has such shards from 2.5 on")
    whole = core.uniform(core.fold_in(KEY, 0), (8, 3), np.float32)
    for rank in range(WORLD):  # as fully_shard leaves what tensor parallelism has split
        mesh = as_rank(rank, (2, 2))
        placements = [kinds._StridedShard(0, split_factor=2), kinds.Shard(0)]
        x = of_parts(torch.zeros(2, 3), mesh, placements, (8, 3))
        found = random.uniform_like(random.fold_in(KEY, 0), x)
        first = {0: 0, 1: 4, 2: 2, 3: 6}[rank]
        np.testing.assert_array_equal(found.to_local(), whole[first : first + 2])


@pytest.mark.needs("torch")
def test_a_local_tensor_that_its_placement_does_not_give_is_refused(as_rank: Any) -> None:
    import torch

    from multigrad_torch.kernels import random

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


@pytest.mark.needs("torch")
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_each_rank_of_torch_draws_its_part(as_rank: Any, spec: str, compiled: bool) -> None:
    import torch

    over, cuts = SPECS[spec]
    shape = (8, 5, 8)
    whole = core.uniform(core.fold_in(KEY, 0), shape, np.float32)
    for rank in (3,) if compiled else range(WORLD):
        as_rank(rank, (2, 2), ("a", "b"))
        expected = cut_by_spec(whole, cuts, dict(zip("ab", divmod(rank, 2), strict=True)))
        act = xg.activation("Linear")
        torch._dynamo.reset()  # it counts all callable objects as one function
        run = torch.compile(act, backend="aot_eager", fullgraph=True) if compiled else act
        found = drawn_by(run, torch.zeros(expected.shape), over)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.needs("torch")
def test_a_part_is_drawn_again_by_a_second_backward(as_rank: Any) -> None:
    import torch

    as_rank(2, (4,))
    x = torch.zeros(2, 3, requires_grad=True)
    with xg.use("full_jam", key=7, over="global"):
        y = xg.activation("Linear")(x)
    first, second = (torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for _ in range(2))
    expected = core.uniform(core.fold_in(KEY, 0), (8, 3), np.float32)[4:6]
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_array_equal(second, expected)


@pytest.mark.needs("torch")
def test_a_part_under_vmap_and_grad_of_torch_is_the_same_for_each_example(as_rank: Any) -> None:
    import torch

    as_rank(2, (4,))
    act = xg.activation("Linear")
    with xg.use("full_jam", key=7, over="global"):
        found = torch.func.vmap(torch.func.grad(lambda x: act(x).sum()))(torch.zeros(3, 2, 5))
    expected = core.uniform(core.fold_in(KEY, 0), (8, 5), np.float32)[4:6]
    np.testing.assert_array_equal(found, np.broadcast_to(expected, (3, 2, 5)))


# --- TensorFlow: several devices, which are made when it starts; jax: `ranks/jax_shards.py` ---


def run(script: str) -> None:
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


@pytest.mark.needs("tensorflow")
def test_each_replica_of_tensorflow_draws_its_part() -> None:
    run("""
        import numpy as np
        import tensorflow as tf

        import multigrad as xg
        from multigrad.graph import random as core

        cpu = tf.config.list_physical_devices("CPU")[0]
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        act = xg.activation("Linear")
        whole = core.uniform(core.fold_in((0, 7), 0), (7, 12), np.float32)

        def draw(x):
            with xg.use("full_jam", key=7, over="global"):
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = act(x)
            return tape.gradient(y, x)

        def on_replicas(draw):
            return lambda values: strategy.run(draw, args=(values,))

        def of_unknown_length(x):
            return draw(tf.boolean_mask(x, x[:, 0] < 1))

        def parts(rows):
            def of(context):
                first = context.replica_id_in_sync_group == 0
                return tf.zeros([rows if first else 7 - rows, 12])

            return strategy.experimental_distribute_values_from_function(of)

        cases = (
            (on_replicas(draw), 4),
            (tf.function(on_replicas(draw)), 4),
            (tf.function(on_replicas(of_unknown_length)), 5),
        )
        for f, rows in cases:
            drawn = np.concatenate(strategy.experimental_local_results(f(parts(rows))))
            np.testing.assert_array_equal(drawn, whole)

        def halves(context):
            return tf.zeros([3, 12])

        values = strategy.experimental_distribute_values_from_function(halves)
        compiled = tf.function(on_replicas(tf.function(draw, jit_compile=True)))
        drawn = np.concatenate(strategy.experimental_local_results(compiled(values)))
        np.testing.assert_array_equal(drawn, whole[:6])
        graph = tf.function(on_replicas(draw)).get_concrete_function(values).graph
        names = {op.type for op in graph.get_operations()}
        assert not any("Collective" in name or "Nccl" in name for name in names), names
    """)
