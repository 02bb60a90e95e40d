"""One process of `figures/devices.py`: it takes the steps of a job, interleaved, on the clock.

Every process takes them in the same order, so that what they exchange meets. The network has three
layers; a batch is what one device gets.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import multigrad as xg
from bench.cases import Effort
from bench.harness import make_training
from bench.measure import Clocked, run_clocked_race
from multigrad.command.options import prepare_environment

Tensor = Any
Step = Callable[[], Any]
JOB, RESULT = "job.json", "result.json"
UNITS, RATE = 512, 1e-3
WARM_UPS = 5
PATIENCE = timedelta(seconds=120)


def choose_rule(kind: str, over: Any) -> Any:
    """Return the rule that is measured: of single elements, or a norm of the whole batch."""
    if kind == "elementwise":
        return "triangular"
    return xg.get("clip_norm").with_params(max_norm=1e-3).over(over)


# --- torch ----------------------------------------------------------------------------------------


def prepare_torch(job: dict[str, Any], folder: Path, rank: int) -> None:
    """Meet the other ranks."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), job["devices"])
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=job["devices"], timeout=PATIENCE
    )


def torch_step(job: dict[str, Any], kind: str) -> Step:
    import torch
    from torch.distributed.fsdp import fully_shard

    nn: Any = torch.nn
    weights, x, y = make_training(job["batch"], UNITS)
    layers: list[Any] = []
    for weight in weights:
        layers += [nn.Linear(*weight.shape, bias=False)]
        rule = None if kind == "none" else choose_rule(kind, "global")
        layers += [nn.ReLU() if rule is None else xg.Activation("ReLU", rule)]
        with torch.no_grad():
            layers[-2].weight.copy_(torch.from_numpy(weight.T))
    model = nn.Sequential(*layers[:-1])
    if job["way"] == "DDP":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        for layer in (*layers[:-1:2], model):
            fully_shard(layer)
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step() -> None:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()

    return step


# --- jax ------------------------------------------------------------------------------------------


def jax_step(job: dict[str, Any], kind: str) -> Step:
    import jax
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    weights, x, y = make_training(job["batch"] * job["devices"], UNITS)
    mesh = jax.make_mesh((job["devices"],), ("data",), axis_types=(AxisType.Auto,))
    is_mapped = job["way"] == "shard_map"
    rule = None if kind == "none" else choose_rule(kind, P("data") if is_mapped else None)
    act = jax.nn.relu if rule is None else xg.activation("ReLU", rule)

    def compute_loss(weights: Any, x: Tensor, y: Tensor) -> Tensor:
        hidden = act(act(x @ weights[0]) @ weights[1])
        return ((hidden @ weights[2] - y) ** 2).sum() / (len(y) * job["devices"])

    def train(weights: Any, x: Tensor, y: Tensor) -> Any:
        grads = jax.grad(compute_loss)(weights, x, y)
        return [w - RATE * g for w, g in zip(weights, grads, strict=True)]

    if is_mapped:
        specs = (P(), P("data"), P("data"))
        train = jax.shard_map(train, mesh=mesh, in_specs=specs, out_specs=P())
    run = jax.jit(train)
    weights = jax.device_put(weights, NamedSharding(mesh, P()))
    x, y = jax.device_put((x, y), NamedSharding(mesh, P("data")))

    def step() -> None:
        nonlocal weights
        weights = jax.block_until_ready(run(weights, x, y))

    return step


# --- TensorFlow -----------------------------------------------------------------------------------


def prepare_tensorflow(job: dict[str, Any], folder: Path, rank: int) -> None:
    """Make devices of the processor."""
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    devices = [tf.config.LogicalDeviceConfiguration()] * job["devices"]
    tf.config.set_logical_device_configuration(cpu, devices)


@functools.cache
def make_strategy(devices: int) -> Any:
    """Return the one strategy: the collectives of two have the same numbers, and meet."""
    import tensorflow as tf

    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(devices)])


def tensorflow_step(job: dict[str, Any], kind: str) -> Step:
    import tensorflow as tf

    arrays, x, y = make_training(job["batch"], UNITS)
    strategy = make_strategy(job["devices"])
    with strategy.scope():
        mean = tf.VariableAggregation.MEAN
        weights = [tf.Variable(w, aggregation=mean) for w in arrays]
    x, y = tf.constant(x), tf.constant(y)
    act: Any = tf.nn.relu
    if kind != "none":
        act = xg.activation("ReLU", choose_rule(kind, "global"))

    def train() -> Tensor:
        with tf.GradientTape() as tape:
            hidden = act(act(x @ weights[0]) @ weights[1])
            loss = tf.reduce_mean((hidden @ weights[2] - y) ** 2)
        grads: Any = tape.gradient(loss, weights)
        replica: Any = tf.distribute.get_replica_context()
        grads = replica.all_reduce(tf.distribute.ReduceOp.MEAN, grads)
        for weight, grad in zip(weights, grads, strict=True):
            weight.assign_sub(RATE * grad)
        return loss

    run = tf.function(lambda: strategy.run(train))

    def step() -> None:
        strategy.experimental_local_results(run())[0].numpy()

    return step


# --- the job --------------------------------------------------------------------------------------

PREPARED = {"torch": prepare_torch, "tensorflow": prepare_tensorflow}
BUILT = {"torch": torch_step, "jax": jax_step, "tensorflow": tensorflow_step}


def end_with_parent() -> None:
    """End this process as soon as the one that started it is gone, however that ended."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


def main(folder: Path, rank: int) -> None:
    """Measure a job; rank 0 writes what came of it."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    prepare_environment()
    job = json.loads((folder / JOB).read_text(encoding="utf-8"))
    if job["framework"] in PREPARED:
        PREPARED[job["framework"]](job, folder, rank)
    steps = {kind: Clocked(BUILT[job["framework"]](job, kind)) for kind in job["rules"]}
    for step in [*steps.values()] * WARM_UPS:
        step()
    race = run_clocked_race(steps, Effort.of_rounds(job["steps"]))
    if rank == 0:
        base, *others = job["rules"]
        result = {
            "ratios": {kind: race.compare(kind, base) for kind in others},
            "wall": {kind: statistics.median(step.wall[WARM_UPS:]) for kind, step in steps.items()},
            "worked": {kind: race.summarize(kind).median / 1e6 for kind in steps},
        }
        unfinished = folder / f"{RESULT}.part"
        unfinished.write_text(json.dumps(result), encoding="utf-8")
        os.replace(unfinished, folder / RESULT)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
    os._exit(0)  # torch 2.13 may abort where the interpreter ends before a sharded model
