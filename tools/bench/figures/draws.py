"""Our draws beside those of the framework itself: ratios, float32, the draw alone; and the rule
`noise` beside a torch class by hand.

`python tools/bench draws [NAME ...]`, with names of frameworks, on their default threads. Ours are
the same bits everywhere. Both run interleaved; a ratio is of the fastest of many calls, as what
else runs on a machine only adds. The key is an argument: a compiler may draw for a constant one
while it compiles.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from bench.cases import Effort, check_backend_name
from bench.harness import keep_memory
from bench.measure import run_race
from multigrad.core import ops
from multigrad.core.backend.discovery import load_backend
from multigrad.engine.trace.random_keys import read_key

Draw = Callable[[], Any]
Draws = Mapping[str, Draw]
ROUNDS = {1_000: 2_000, 100_000: 300, 1_000_000: 60}
KEY = np.array([0, 7], np.uint32)
OURS = "multigrad"


def our_draws(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the backend's functions of a key in its own form and of a tensor to draw like."""
    rows = load_backend(name).kernels.rows
    return rows[ops.UNIFORM_LIKE], rows[ops.NORMAL_LIKE]


def on_numpy(size: int) -> Iterator[Draws]:
    """Two generators: the global one's float64 made float32, and the one that draws float32."""
    uniform, normal = our_draws("numpy")
    like, generator = np.zeros(size, np.float32), np.random.default_rng(0)
    yield {
        OURS: lambda: uniform((0, 7), like),
        "np.random.rand, to float32": lambda: np.random.rand(size).astype(np.float32),
        "Generator.random(float32)": lambda: generator.random(size, dtype=np.float32),
    }
    yield {
        OURS: lambda: normal((0, 7), like),
        "np.random.randn, to float32": lambda: np.random.randn(size).astype(np.float32),
        "Generator.standard_normal": lambda: generator.standard_normal(size, np.float32),
    }


def on_torch(size: int) -> Iterator[Draws]:
    """Eager code; and a rule, forward and backward."""
    import torch

    import multigrad as xg

    uniform, normal = our_draws("torch")
    like = torch.zeros(size)
    yield {OURS: lambda: uniform((0, 7), like), "torch.rand": lambda: torch.rand(size)}
    yield {OURS: lambda: normal((0, 7), like), "torch.randn": lambda: torch.randn(size)}

    class Noise(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return (x > 0).to(x.dtype)

        @staticmethod
        def backward(ctx: Any, grad_out: Any) -> Any:
            return grad_out + 0.1 * torch.randn_like(grad_out)

    x, upstream = torch.randn(size, requires_grad=True), torch.randn(size)
    spike = xg.activation("Heaviside", rule="noise")

    def run(function: Callable[[Any], Any]) -> None:
        function(x).backward(upstream)
        x.grad = None

    yield {OURS: lambda: run(spike), "noise by hand": lambda: run(Noise.apply)}


def on_jax(size: int) -> Iterator[Draws]:
    """Under `jax.jit`."""
    import jax

    like, key = jax.numpy.zeros(size), jax.random.key(7)
    words = read_key(load_backend("jax"), key)
    for ours, own in zip(our_draws("jax"), (jax.random.uniform, jax.random.normal), strict=True):
        ours_compiled, own_compiled = jax.jit(ours), jax.jit(own, static_argnums=1)
        yield {
            OURS: lambda ours=ours_compiled: ours(words, like).block_until_ready(),
            f"jax.random.{own.__name__}": lambda own=own_compiled: own(
                key, (size,)
            ).block_until_ready(),
        }


def on_tensorflow(size: int) -> Iterator[Draws]:
    """Eager code, and compiled by XLA."""
    import tensorflow as tf

    like, key, seed = tf.zeros([size]), tf.constant(KEY), tf.constant([0, 7])
    stateful = (tf.random.uniform, tf.random.normal)
    stateless = (tf.random.stateless_uniform, tf.random.stateless_normal)
    for ours, own, own_stateless in zip(our_draws("tensorflow"), stateful, stateless, strict=True):
        yield {
            OURS: lambda ours=ours: ours((0, 7), like).numpy(),
            f"tf.random.{own.__name__}, eager": lambda own=own: own([size]).numpy(),
        }
        compiled = tf.function(ours, jit_compile=True)
        own = tf.function(own, jit_compile=True)
        own_stateless = tf.function(own_stateless, jit_compile=True)
        yield {
            OURS: lambda compiled=compiled: compiled(key, like).numpy(),
            "its own, XLA": lambda own=own: own([size]).numpy(),
            "its own stateless, XLA": lambda own=own_stateless: own([size], seed).numpy(),
        }


PLANS: Mapping[str, Callable[[int], Iterator[Draws]]] = {
    "numpy": on_numpy,
    "torch": on_torch,
    "jax": on_jax,
    "tensorflow": on_tensorflow,
}


def measure(draws: Draws, rounds: int) -> dict[str, float]:
    """Return the fastest call of each in microseconds."""
    for draw in draws.values():
        draw()
    race = run_race(draws, Effort.of_rounds(rounds), calls=1)
    return {name: min(figures) for name, figures in race.figures.items()}


def main(names: list[str]) -> None:
    """Print a row for each framework's own way to draw."""
    for name in names:
        check_backend_name(name)
    keep_memory()
    for name in names or list(PLANS):
        for size, rounds in ROUNDS.items():
            for draws in PLANS[name](size):
                ours, *own = measure(draws, rounds).items()
                for label, time_of_it in own:
                    ratio = ours[1] / time_of_it
                    row = f"{name:11}{size:>9,} {label:28}"
                    print(f"{row}{ours[1]:10.1f} us /{time_of_it:10.1f} us ={ratio:6.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
