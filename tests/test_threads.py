"""Many threads at once: each under its own rule, and first calls that meet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

THREADS = 8
X = np.linspace(-2.0, 2.0, 9, dtype=np.float32)
differentiating = pytest.mark.backends("torch", "jax", "tensorflow")


def together(run: Callable[[int], Any]) -> list[Any]:
    """Run on all threads at the same moment, and return what each returned."""
    barrier = threading.Barrier(THREADS)

    def start(number: int) -> Any:
        barrier.wait()
        return run(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(start, range(THREADS)))


@differentiating
def test_eight_threads_each_get_the_gradient_of_their_own_rule(backend: Any) -> None:
    act = xg.activation("Heaviside")
    rules = [("triangular", {"width": float(n)}) for n in range(1, 5)]
    rules += [("scale", {"s": float(n)}) for n in range(4)]

    def run(number: int) -> list[Array]:
        rule, params = rules[number]
        grads = []
        for _ in range(25):
            with xg.use(rule, params):
                grads.append(backend.vjp(act, X, np.ones_like(X))[1])
        return grads

    for (rule, params), grads in zip(rules, together(run), strict=True):
        if rule == "scale":
            expected = np.full_like(X, params["s"])
        else:
            expected = np.maximum(0.0, 1.0 - np.abs(X) / params["width"]).astype(np.float32)
        np.testing.assert_allclose(grads, [expected] * 25, rtol=1e-6)


def test_first_calls_that_meet_capture_and_lower_a_rule_once(backend: Any) -> None:
    captured = []

    def slow(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        captured.append(threading.get_ident())
        time.sleep(0.05)  # the other threads arrive meanwhile
        return grad_out * 3.0

    x = backend.array(X)
    if backend.name == "numpy":
        rule = xg.compose(slow)
        results = together(lambda _: rule(None, x, x))
    else:
        act = xg.activation("Linear", slow)
        results = together(lambda _: backend.vjp(act, X, X)[1])
    np.testing.assert_array_equal(results, [3.0 * X] * THREADS)
    assert len(captured) == 1


@differentiating
def test_threads_that_share_a_key_take_each_number_once(backend: Any) -> None:
    import contextvars

    act = xg.activation("Linear")
    with xg.use("full_jam", key=7):
        contexts = [contextvars.copy_context() for _ in range(THREADS)]

        def draw() -> bytes:
            return backend.vjp(act, X, np.ones_like(X))[1].tobytes()

        def run(number: int) -> list[bytes]:
            return [contexts[number].run(draw) for _ in range(10)]

        drawn = [draw for draws in together(run) for draw in draws]
    with xg.use("full_jam", key=7):
        expected = [draw() for _ in range(10 * THREADS)]
    assert sorted(drawn) == sorted(expected)


@pytest.mark.needs("torch")
def test_backward_on_other_threads_uses_the_rule_of_forward() -> None:
    import torch

    act = xg.Activation("Linear")
    losses, leaves = [], []
    for n in range(THREADS):
        x = torch.tensor(X, requires_grad=True)
        with xg.use("scale", {"s": float(n)}):
            losses.append(act(x).sum())
        leaves.append(x)

    def run(number: int) -> None:
        with xg.use("scale", {"s": 100.0}):
            losses[number].backward()

    together(run)
    for n, x in enumerate(leaves):
        np.testing.assert_array_equal(x.grad, np.full_like(X, n))


def test_rules_registered_and_removed_by_many_threads_are_all_there() -> None:
    before = xg.rules()

    def run(number: int) -> None:
        for n in range(20):
            xg.register(f"test thread {number} {n}")(lambda ctx, grad_out, tin: grad_out)
        for n in range(20):
            xg.unregister(f"test thread {number} {n}")

    together(run)
    assert xg.rules() == before

    def claim(number: int) -> bool:
        try:
            xg.register("test claimed once")(lambda ctx, grad_out, tin: grad_out)
        except xg.RuleError:
            return False
        return True

    assert sum(together(claim)) == 1
    xg.unregister("test claimed once")
