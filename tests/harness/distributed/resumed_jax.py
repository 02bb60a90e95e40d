"""A training that is interrupted twice: on four devices, on two, on one; jax and optax. Run as a
script, on four devices of `forced_devices.forced`. The first interruption is survived by
NumPy's arrays, the second by orbax, which flax brings along.

Prints as JSON how far each leg's end is from a training on one device without an interruption.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import multigrad as xg
import multigrad.compat.optax

LEGS = ((4, 0, 4), (2, 4, 7), (1, 7, 9))  # devices, and which steps
STEPS = LEGS[-1][2]
rng = np.random.default_rng(20261122)
X = rng.normal(size=(STEPS, 8, 4)).astype("float32")
Y = rng.normal(size=(STEPS, 8, 4)).astype("float32")


class Network(nnx.Module):
    """Spikes under a rule with a schedule, and a weight quantized by a step that is learned."""

    def __init__(self, width: Any) -> None:
        rngs = nnx.Rngs(0)
        self.first = nnx.Linear(4, 8, rngs=rngs)
        self.spikes = xg.activation("Heaviside", "triangular", {"width": width})
        self.last = nnx.Linear(8, 4, rngs=rngs)
        self.step = nnx.Param(jnp.asarray(0.1))

    def __call__(self, x: Any) -> Any:
        weight = xg.estimators.lsq(self.last.kernel[...], self.step[...], bits=3)
        return self.spikes(self.first(x)) @ weight + self.last.bias[...]


class Training:
    """A model on so many devices, with its optimizer and its schedule."""

    def __init__(self, devices: int) -> None:
        self.mesh = jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])
        self.width = xg.schedule.linear(3.0, 0.5, steps=20)
        self.graph, variables = nnx.split(Network(self.width))
        self.structure = jax.tree.structure(variables)
        limit = optax.linear_schedule(1.0, 0.1, 20)
        self.optimizer = optax.chain(
            multigrad.optax.apply_rule("clip_norm", {"max_norm": limit}),
            multigrad.optax.apply_rule("full_jam", key=3),
            optax.adam(0.05),
        )
        self.params = self.place(nnx.to_pure_dict(variables))
        self.state = self.place(self.optimizer.init(self.params))
        self.update = xg.jit(self.make_update())

    def place(self, tree: Any) -> Any:
        """Shard what has two axes over the devices; all else is on each of them."""

        def put(leaf: Any) -> Any:
            spec = P("data") if np.ndim(leaf) == 2 else P()
            return jax.device_put(leaf, NamedSharding(self.mesh, spec))

        return jax.tree.map(put, tree)

    def make_update(self) -> Any:
        def loss(params: Any, x: Any, y: Any) -> Any:
            variables = jax.tree.unflatten(self.structure, jax.tree.leaves(params))
            return ((nnx.merge(self.graph, variables)(x) - y) ** 2).mean()

        def update(params: Any, state: Any, x: Any, y: Any) -> Any:
            grads = jax.grad(loss)(params, x, y)
            updates, state = self.optimizer.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        return update

    def run(self, first: int, last: int) -> None:
        for step in range(first, last):
            x, y = self.place((X[step], Y[step]))
            self.params, self.state = self.update(self.params, self.state, x, y)
            self.width.step()

    def tree(self) -> Any:
        return {"params": self.params, "state": self.state, "width": self.width.state_dict()}

    def take(self, tree: Any) -> None:
        self.params, self.state = tree["params"], tree["state"]
        self.width.load_state_dict(tree["width"])


def by_arrays(tree: Any, folder: Path) -> Any:
    """Save the leaves as NumPy's arrays; return what loads them into another training."""
    np.savez(folder / "leaves.npz", *map(np.asarray, jax.tree.leaves(tree)))

    def load(training: Training) -> Any:
        held = np.load(folder / "leaves.npz")
        own = training.tree()
        tree = jax.tree.unflatten(jax.tree.structure(own), [held[name] for name in held.files])
        placed = training.place({"params": tree["params"], "state": tree["state"]})
        return {**tree, **placed}

    return load


def by_orbax(tree: Any, folder: Path) -> Any:
    """Save by orbax, shard by shard; return what loads into another training's shards."""
    from orbax.checkpoint import StandardCheckpointer

    with StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "tree", tree)

    def load(training: Training) -> Any:
        with StandardCheckpointer() as checkpointer:
            return checkpointer.restore(folder / "tree", training.tree())

    return load


def leaves(training: Training) -> list[Any]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves((training.params, training.state))]


def main() -> None:
    whole, load, rows = Training(1), None, []
    for (devices, first, last), save in zip(LEGS, (by_arrays, by_orbax, None), strict=True):
        training = Training(devices)
        if load is not None:
            training.take(load(training))
        training.run(first, last)
        whole.run(first, last)
        on = training.params["first"]["kernel"].sharding.device_set
        gap = [
            float(np.abs(a.astype(float) - b.astype(float)).max())
            for a, b in zip(leaves(training), leaves(whole), strict=True)
        ]
        rows.append({"gap": max(gap), "devices": len(on), "count": training.width.count})
        if save is not None:
            load = save(training.tree(), Path(tempfile.mkdtemp()))
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main()
