"""The same training on one device and on two processes in PyTorch: DistributedDataParallel, FSDP2.

    python torch_ddp.py --one
    torchrun --standalone --nproc-per-node 2 torch_ddp.py       both ways; --ddp or --fsdp: one

What several processes take more than one stands under `several`. The exit code is 1 where they
do not train to the same weights. Needs: pip install 'multigrad-rules[torch]' scikit-learn
"""

import gc
import sys

import torch
import torch.distributed as dist
from digits import BATCH, RATE, compare, draw_weights, load_batches
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import multigrad as xg

CLIP = xg.get("clip_norm").with_params(max_norm=0.01)
NOISE = {"sigma": 1e-3}


def build(several):
    # A norm over the whole batch, of which each process has a part.
    clip = CLIP.over("global") if several else CLIP
    model = nn.Sequential(
        nn.Linear(64, 64, bias=False),
        xg.Activation("Heaviside", "triangular"),
        nn.Linear(64, 32, bias=False),
        xg.Activation("Tanh", clip),
        xg.Activation("Linear"),  # takes the rule of `use`
        nn.Linear(32, 10, bias=False),
    )
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), draw_weights(), strict=True):
            parameter.copy_(torch.from_numpy(weight.T))
    return model


def sum_gradients(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda reduced: reduced.value()[0])


def distribute(model, use_fsdp):
    """Sum the processes' gradients: each has its part of one mean, not a mean of its own."""
    if use_fsdp:
        for layer in (*(each for each in model if isinstance(each, nn.Linear)), model):
            sharded = fully_shard(layer)
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)
        return model
    model = DistributedDataParallel(model)
    model.register_comm_hook(None, sum_gradients)
    return model


def train(several=False, use_fsdp=False):
    rank, processes = (dist.get_rank(), dist.get_world_size()) if several else (0, 1)
    noise = xg.get("noise").over("global") if several else "noise"
    plain = build(several)
    model = distribute(plain, use_fsdp) if several else plain
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for step, (images, labels) in enumerate(load_batches()):
        own = slice(rank * BATCH // processes, (rank + 1) * BATCH // processes)
        images, labels = torch.from_numpy(images[own]), torch.from_numpy(labels[own]).long()
        optimizer.zero_grad()
        with xg.use(noise, NOISE, scope="activations", key=step):
            logits = model(images)
        loss = nn.functional.cross_entropy(logits, labels, reduction="sum") / BATCH
        loss.backward()
        # Here the gradients are those of the whole batch, so DDP's need no other norm; FSDP2's are
        # DTensors, of which a norm is global.
        gradients = [parameter.grad for parameter in model.parameters()]
        clipped = xg.apply_to_gradients(gradients, "clip_norm", {"max_norm": 0.2})
        for parameter, gradient in zip(model.parameters(), clipped, strict=True):
            parameter.grad = gradient
        optimizer.step()
        if several:
            dist.all_reduce(loss.detach())
        losses.append(loss.item())
    return losses, [whole(parameter) for parameter in plain.parameters()]


def whole(parameter):
    parameter = parameter.detach()
    return (parameter.full_tensor() if isinstance(parameter, DTensor) else parameter).numpy()


def main() -> int:
    torch.set_num_threads(1)
    one = train()
    if "--one" in sys.argv:
        print(f"one device: loss {one[0][0]:.4f} to {one[0][-1]:.4f}")
        return 0
    dist.init_process_group("gloo")
    ways = {"--ddp": "DistributedDataParallel", "--fsdp": "FSDP2"}
    is_same = True
    for way in [word for word in sys.argv if word in ways] or ways:
        several = train(several=True, use_fsdp=way == "--fsdp")
        if dist.get_rank() == 0:
            is_same &= compare(f"{ways[way]} on {dist.get_world_size()} processes", one, several)
    gc.collect()  # torch 2.13 may abort where the interpreter ends before a sharded model
    dist.destroy_process_group()
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
