"""The loop of `training/in_torch.py`, each batch split over processes by DistributedDataParallel.

A rank's loss is its part of the batch's mean and gradients are summed, so that what reaches a rule
is what reaches it on one device. DDP's own mean of gradients would make every cotangent as many
times larger as there are ranks, which a rule that bounds a norm takes for another gradient.
"""

import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import multigrad as xg

from ..task import ActivationName, EpochReport, Task, Weights, backward_rule, batches, shared_rule
from ..training.in_torch import build, predict

PATIENCE = timedelta(seconds=60)


def join(folder: Path, rank: int, devices: int) -> None:
    """Meet the other ranks, by a file in `folder`."""
    torch.set_num_threads(1)
    if devices > 1:
        store = dist.FileStore(str(folder / "store"), devices)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=devices, timeout=PATIENCE
        )


def train(
    task: Task, forward: ActivationName, rule: str | None, devices: int, report: EpochReport
) -> tuple[Weights, list[float]]:
    """Train with SGD; return the weights, and the seconds of each step."""
    model = build(task.weights, xg.Activation(forward))
    is_sharded = devices > 1
    rank = dist.get_rank() if is_sharded else 0
    run = split(model) if is_sharded else model
    optimizer = torch.optim.SGD(model.parameters(), lr=task.learning_rate)
    seconds = []
    with shared_rule(rule) if is_sharded else backward_rule(rule):
        for order in task.orders:
            total = torch.zeros(())
            for x, labels in batches(task, order):
                start = time.perf_counter()
                own = slice(rank, None, devices)
                optimizer.zero_grad()
                logits, targets = run(torch.from_numpy(x[own])), torch.from_numpy(labels[own])
                loss = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
                (loss / len(labels)).backward()
                optimizer.step()
                total += loss.detach()
                seconds.append(time.perf_counter() - start)
            if is_sharded:
                dist.all_reduce(total)
            report(total.item() / len(order), predict(model, task.test_x))
    arrays = (parameter.detach().numpy().T for parameter in model.parameters())
    return tuple(map(np.ascontiguousarray, arrays)), seconds


def split(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model as each rank calls it; gradients are summed over the ranks."""
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    parallel.register_comm_hook(None, sum_gradients)
    return parallel


# DDP looks at the annotations of a hook, which must be no strings.
def sum_gradients(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda reduced: reduced.value()[0])
