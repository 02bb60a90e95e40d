"""Our uniform draws beside those of the framework itself: ratios, float32, the draw alone.

`python tools/bench draws [NAME ...]`, with names of frameworks; each draws 1e6 numbers, on
its default threads. Ours are `jax.random.uniform`'s bits everywhere. Both run interleaved; a ratio
is of the fastest of many calls, as what else runs on a machine only adds. The key is an argument:
a compiler may draw for a constant one while it compiles.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from multigrad.backend.finding.discovery import load_backend
from multigrad.backend.tensors.values import read_key
from multigrad.bench.cases import check_backend_name
from multigrad.bench.harness import keep_memory
from multigrad.graph import ops

Draw = Callable[[], Any]
SIZE = 1_000_000
ROUNDS = 60
KEY = np.array([0, 7], np.uint32)
OURS = "multigrad"


def our_draw(name: str) -> Callable[[Any, Any], Any]:
    """Return the backend's function of a key in its own form and of a tensor to draw like."""
    return load_backend(name).kernels.rows[ops.UNIFORM_LIKE]


def on_numpy() -> dict[str, Draw]:
    """Two generators: the global one's float64 made float32, and the one that draws float32."""
    draw, like, generator = our_draw("numpy"), np.zeros(SIZE, np.float32), np.random.default_rng(0)

    def ours() -> Any:
        return draw((0, 7), like)

    def global_one() -> Any:
        return np.random.rand(SIZE).astype(np.float32)

    def modern_one() -> Any:
        return generator.random(SIZE, dtype=np.float32)

    return {
        OURS: ours,
        "np.random.rand, to float32": global_one,
        "Generator.random(float32)": modern_one,
    }


def on_torch() -> dict[str, Draw]:
    """Eager code."""
    import torch

    draw, like = our_draw("torch"), torch.zeros(SIZE)

    def ours() -> Any:
        return draw((0, 7), like)

    def own() -> Any:
        return torch.rand(SIZE)

    return {OURS: ours, "torch.rand": own}


def on_jax() -> dict[str, Draw]:
    """Under `jax.jit`."""
    import jax

    draw, like, key = our_draw("jax"), jax.numpy.zeros(SIZE), jax.random.key(7)
    words = read_key(load_backend("jax"), key)
    ours_compiled = jax.jit(draw)
    own_compiled = jax.jit(jax.random.uniform, static_argnums=1)

    def ours() -> Any:
        return ours_compiled(words, like).block_until_ready()

    def own() -> Any:
        return own_compiled(key, (SIZE,)).block_until_ready()

    return {OURS: ours, "jax.random.uniform": own}


def on_tensorflow() -> dict[str, Draw]:
    """Compiled by XLA."""
    import tensorflow as tf

    draw, like, key = our_draw("tensorflow"), tf.zeros([SIZE]), tf.constant(KEY)
    ours_compiled = tf.function(draw, jit_compile=True)

    @tf.function(jit_compile=True)
    def stateful(like: Any) -> Any:
        return tf.random.uniform(like.shape)

    @tf.function(jit_compile=True)
    def stateless(seed: Any) -> Any:
        return tf.random.stateless_uniform([SIZE], seed)

    seed = tf.constant([0, 7])

    def ours() -> Any:
        return ours_compiled(key, like).numpy()

    def own_stateful() -> Any:
        return stateful(like).numpy()

    def own_stateless() -> Any:
        return stateless(seed).numpy()

    return {
        OURS: ours,
        "tf.random.uniform": own_stateful,
        "tf.random.stateless_uniform": own_stateless,
    }


PLANS: Mapping[str, Callable[[], dict[str, Draw]]] = {
    "numpy": on_numpy,
    "torch": on_torch,
    "jax": on_jax,
    "tensorflow": on_tensorflow,
}


def measure(draws: Mapping[str, Draw], rounds: int) -> dict[str, float]:
    """Return the fastest call of each in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in draws}
    for draw in draws.values():
        draw()
    for _ in range(rounds):
        for name, draw in draws.items():
            start = time.perf_counter()
            draw()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: min(all_of_them) for name, all_of_them in times.items()}


def main(names: list[str], rounds: int = ROUNDS) -> None:
    """Print a row for each framework's own way to draw."""
    for name in names:
        check_backend_name(name)
    keep_memory()
    for name in names or list(PLANS):
        ours, *own = measure(PLANS[name](), rounds).items()
        for label, milliseconds in own:
            ratio = ours[1] / milliseconds
            print(f"{name:11}{label:28}{ours[1]:8.2f} ms /{milliseconds:8.2f} ms ={ratio:6.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
