"""`tf.recompute_grad` runs forward again within backward: under the frame of its first forward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

from ..harness.distributed.ranks import Ranks, names_in, ranks_of
from ..harness.models import surrogates

tf: Any = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.needs("tensorflow")

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

X = np.array([-1.3, -0.45, -0.2, 0.1, 0.3, 0.48, 0.9], np.float32)


triangle, window = (partial(each, X) for each in (surrogates.triangle, surrogates.window))


def record(f: Callable[[Tensor], Tensor]) -> tuple[Any, Tensor, Tensor]:
    """Return a tape on which f has run, its input and its output."""
    x = tf.constant(X)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = f(x)
    return tape, x, y


def close(got: Tensor, expected: Array) -> None:
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("later", [None, "rectangular"])
def test_rule_of_the_first_forward_is_kept_after_the_with(later: str | None) -> None:
    f = tf.recompute_grad(xg.activation("Tanh"))
    with xg.use("triangular"):
        tape, x, y = record(f)
    if later is None:
        close(tape.gradient(y, x), triangle())
    else:
        with xg.use(later):
            close(tape.gradient(y, x), triangle())
    close(tape.gradient(y, x), triangle())


def test_no_rule_at_the_first_forward_stays_no_rule() -> None:
    tape, x, y = record(tf.recompute_grad(xg.activation("Tanh")))
    with xg.use("triangular"):
        np.testing.assert_allclose(tape.gradient(y, x), 1.0 - np.tanh(X) ** 2, rtol=1e-5)


def test_one_function_under_two_rules_keeps_each_call_apart() -> None:
    f = tf.recompute_grad(xg.activation("Tanh"))

    def both(x: Tensor) -> Tensor:
        with xg.use("triangular"):
            f(x)
            y = f(x)
        with xg.use("rectangular"):
            return y + 2.0 * f(x)

    tape, x, y = record(both)
    close(tape.gradient(y, x), triangle() + 2.0 * window())


def test_use_inside_of_the_function_wins_in_both_runs() -> None:
    act = xg.activation("Linear")

    def inside(x: Tensor) -> Tensor:
        with xg.use("triangular"):
            y = act(x)
        return y + act(x)

    for outer, factor in (("scale", 3.0), (None, 1.0)):
        if outer is None:
            tape, x, y = record(tf.recompute_grad(inside))
        else:
            with xg.use(outer, {"s": factor}):
                tape, x, y = record(tf.recompute_grad(inside))
        with xg.use("rectangular"):
            close(tape.gradient(y, x), triangle() + factor)


def test_nested_regions_each_keep_their_rule() -> None:
    act = xg.activation("Linear")
    inner = tf.recompute_grad(act)

    def outer(x: Tensor) -> Tensor:
        with xg.use("rectangular"):
            y = inner(x)
        return y + 2.0 * inner(x) + 4.0 * act(x)

    with xg.use("triangular"):
        tape, x, y = record(tf.recompute_grad(outer))
    with xg.use("scale", {"s": 7.0}):
        close(tape.gradient(y, x), window() + 6.0 * triangle())


def test_draws_are_those_of_the_first_forward_each_time() -> None:
    act = xg.activation("Linear")
    f = tf.recompute_grad(lambda x: act(x) + 2.0 * act(x))
    draws = []
    for run in (f, lambda x: act(x) + 2.0 * act(x)):
        with xg.use("full_jam", key=7):
            act(tf.constant(X))  # the count does not begin at the region
            tape, x, y = record(run)
        draws += [tape.gradient(y, x) for _ in range(2)]
    for draw in draws:
        np.testing.assert_array_equal(draw, draws[0])


def test_in_a_traced_step_the_rule_of_the_region_is_kept() -> None:
    f = tf.recompute_grad(xg.activation("Tanh"))

    @tf.function
    def step(x: Tensor) -> Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            with xg.use("triangular"):
                y = f(x)
        with xg.use("rectangular"):
            return tape.gradient(y, x)

    for _ in range(2):
        close(step(tf.constant(X)), triangle())


@pytest.mark.needs("torch")
def test_a_noted_region_does_not_keep_torch_from_noting_its_own() -> None:
    import torch
    from torch.utils.checkpoint import checkpoint

    act = xg.activation("Linear")
    x = tf.constant([-1.0, 0.25, 2.0])
    with xg.use("d(ReLU)"), tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.recompute_grad(act)(x)
    assert tape.gradient(y, x).numpy().tolist() == [0.0, 1.0, 1.0]
    leaf = torch.tensor([-1.0, 0.25, 2.0], requires_grad=True)
    with xg.use("d(ReLU)"):
        output = checkpoint(act, leaf, use_reentrant=False)
    output.sum().backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [0.0, 1.0, 1.0]


# `tf.distribute`: what is in force around the replicas, which run on threads of their own, is in
# force in them; and their steps are those of one device.


CHECKS = Path(__file__).parents[1] / "ranks" / "tensorflow_replicas.py"
mirrored = ranks_of(CHECKS, world=1, timeout=110)
workers = ranks_of(CHECKS, world=2, timeout=110)


@pytest.mark.parametrize("name", names_in(CHECKS))
def test_two_replicas_of_one_process(mirrored: Ranks, name: str) -> None:
    mirrored.assert_passed(name)


def on_workers(name: str) -> bool:
    """Return whether two workers run a check too: eager steps of two processes are those of a
    graph, and take twenty times as long; each kind of rule runs on the replicas of one.
    """
    return "jit" in name or not ("steps" in name or "each_kind" in name)


@pytest.mark.parametrize("name", filter(on_workers, names_in(CHECKS)))
def test_two_workers_of_one_replica_each(workers: Ranks, name: str) -> None:
    workers.assert_passed(name)
