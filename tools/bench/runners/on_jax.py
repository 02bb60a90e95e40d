"""Forward and backward in JAX: value and pullback in one `jax.jit`, waited for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

import multigrad as xg

from ..cases import OURS, Case
from ..harness import Array, Rival
from ..rivals.in_jax import RIVALS

Tensor: TypeAlias = Any


def describe() -> str:
    return f"JAX {jax.__version__}"


def set_threads(count: int) -> None:
    """Run in the calling thread; XLA has read the number of the others from the environment."""
    # To wait for another thread costs several times what a small computation does.
    jax.config.update("jax_cpu_enable_async_dispatch", False)


def enter_rule(case: Case, stack: ExitStack) -> None:
    stack.enter_context(xg.use(case.rule))


def list_rivals(case: Case) -> dict[str, Rival]:
    return {**RIVALS[case.forward, case.rule], OURS: xg.activation(case.forward)}


def make_inputs(x: Array, grad_out: Array) -> tuple[Tensor, Tensor]:
    return jnp.array(x), jnp.array(grad_out)


def build_step(rival: Rival, x: Tensor, grad_out: Tensor) -> Callable[[], Any]:
    @jax.jit
    def run(x: Tensor, grad_out: Tensor) -> tuple[Tensor, Tensor]:
        output, pullback = jax.vjp(rival, x)
        return output, pullback(grad_out)[0]

    def step() -> tuple[Tensor, Tensor]:
        output, gradient = run(x, grad_out)
        gradient.block_until_ready()
        return output, gradient

    return step


def build_copy(x: Tensor) -> Callable[[], Any]:
    run = jax.jit(jnp.copy)

    def copy() -> None:
        run(x).block_until_ready()

    return copy


def count_kept_bytes(rival: Rival, x: Tensor, grad_out: Tensor) -> int:
    """Return the bytes of the distinct arrays in the pullback of `jax.vjp`."""
    pullback = jax.vjp(rival, x)[1]
    arrays = {id(leaf): leaf.nbytes for leaf in jax.tree_util.tree_leaves(pullback)}
    return sum(arrays.values())


def to_numpy(tensor: Tensor) -> Array:
    return np.asarray(tensor)
