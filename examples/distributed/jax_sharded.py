"""The same training on one device and on several in JAX: sharded arrays, shard_map, processes.

    python jax_sharded.py --one
    python jax_sharded.py                 two devices of one process: automatic sharding, shard_map
    python jax_sharded.py --processes     two processes of one device each, by jax.distributed

The devices are parts of this machine's CPU; on a pod they are those that jax finds. The exit code
is 1 where several do not train to the weights of one. Needs: pip install 'multigrad-rules[jax]'
scikit-learn
"""

import os
import socket
import subprocess
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
RANK = "MULTIGRAD_EXAMPLE_RANK"
if RANK not in os.environ:  # each process that is started below has one device
    os.environ["JAX_NUM_CPU_DEVICES"] = "2"

import jax
import jax.numpy as jnp
from digits import BATCH, RATE, compare, draw_weights, load_batches
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import multigrad as xg

CLIP = xg.get("clip_norm").with_params(max_norm=0.01)
NOISE = {"sigma": 1e-3}


def build_loss(over=None):
    """Return the loss of a part of a batch; `over` says that it is one, where jax does not know."""
    spike = xg.activation("Heaviside", "triangular")
    clipped = xg.activation("Tanh", CLIP.over(over))
    taken = xg.activation("Linear")  # takes the rule of `use`

    def compute_loss(weights, images, labels, key):
        first, second, third = weights
        with xg.use("noise", NOISE, scope="activations", key=key, over=over):
            logits = taken(clipped(spike(images @ first) @ second)) @ third
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)
        return -chosen.sum() / BATCH

    return compute_loss


def update(weights, gradients):
    """Step along the gradients of the whole batch."""
    clipped = xg.apply_to_gradients(gradients, "clip_norm", {"max_norm": 0.2})
    return [weight - RATE * gradient for weight, gradient in zip(weights, clipped, strict=True)]


def build_step():
    """Return a step as one device takes it, and as jax shards it: by where its arguments lie."""
    differentiate = jax.value_and_grad(build_loss())

    @jax.jit
    def step(weights, images, labels, key):
        loss, gradients = differentiate(weights, images, labels, key)
        return update(weights, gradients), loss

    return step


def build_mapped_step(mesh):
    """Return the same for shard_map, in which code sees its shard: here the rule must be told."""
    differentiate = jax.value_and_grad(build_loss(over=P("data")))

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=(P(), P("data"), P("data"), P()), out_specs=P())
    def step(weights, images, labels, key):
        loss, gradients = differentiate(weights, images, labels, key)
        # The gradients of what all shards share are summed by jax itself.
        return update(weights, gradients), jax.lax.psum(loss, "data")

    return step


def train(step, mesh=None):
    weights, losses = draw_weights(), []
    if mesh is not None:
        weights = jax.device_put(weights, NamedSharding(mesh, P()))
    for i, batch in enumerate(load_batches()):
        if mesh is not None:
            batch = jax.device_put(batch, NamedSharding(mesh, P("data")))
        weights, loss = step(weights, *batch, jax.random.key(i))
        losses.append(float(loss))
    return losses, weights


def main() -> int:
    if "--processes" in sys.argv and RANK not in os.environ:
        return start_processes()
    rank = int(os.environ.get(RANK, "0"))
    if RANK in os.environ:
        jax.distributed.initialize(os.environ["MULTIGRAD_EXAMPLE_COORDINATOR"], 2, rank)
    one = train(build_step())
    if "--one" in sys.argv:
        print(f"one device: loss {one[0][0]:.4f} to {one[0][-1]:.4f}")
        return 0
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    ways = {"automatic sharding": build_step(), "shard_map": build_mapped_step(mesh)}
    is_same = True
    for way, step in ways.items():
        several = train(step, mesh)
        title = f"{way} on 2 devices of {jax.process_count()} process(es)"
        if rank == 0:
            is_same &= compare(title, one, several)
    return 0 if is_same else 1


def start_processes() -> int:
    """Start this script twice, as a cluster's launcher does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    environment = {**os.environ, "MULTIGRAD_EXAMPLE_COORDINATOR": coordinator}
    environment["JAX_NUM_CPU_DEVICES"] = "1"
    processes = [
        subprocess.Popen([sys.executable, *sys.argv], env={**environment, RANK: str(rank)})
        for rank in range(2)
    ]
    return max(process.wait() for process in processes)


if __name__ == "__main__":
    sys.exit(main())
