"""Many threads at once: each under its own rule, first calls that meet, and rules that change
meanwhile.

All of it runs with threads that take turns as often as Python can make them. What asyncio adds:
test_asyncio.py.
"""

from __future__ import annotations

import contextvars
import linecache
import queue
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

from ..conftest import BACKENDS, is_installed, split_names
from ..written.unseen import Unseen

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

THREADS = 8
X = np.linspace(-2.0, 2.0, 9, dtype=np.float32)
differentiating = pytest.mark.backends("torch", "jax", "tensorflow")


@pytest.fixture(autouse=True)
def switch_often() -> Iterator[None]:
    """Let threads take turns after a microsecond, where Python waits 5 ms."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(run: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """Run on all threads at the same moment, and return what each returned."""
    barrier = threading.Barrier(threads)

    def start(number: int) -> Any:
        barrier.wait()
        return run(number)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(start, range(threads)))


def count_lowerings(rule: str) -> Counter[str]:
    """Count the sources that were emitted for a rule, each kept for tracebacks: under an activation
    for the call, bare for the proof, or for a call on arrays.
    """
    start = f"<multigrad rule {rule}"
    return Counter(name.rpartition(" ")[0] for name in linecache.cache if name.startswith(start))


def test_first_calls_that_meet_capture_and_lower_a_rule_once(backend: Any) -> None:
    captured, pause = Unseen(), threading.Event()

    def slow(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        captured.note_capture(grad_out, 1)
        pause.wait(0.05)  # the other threads arrive meanwhile
        return grad_out * 3.0

    name = f"slow on {backend.name}"
    x, rule = backend.array(X), xg.register(name)(slow)
    if backend.name == "numpy":
        results = together(lambda _: rule(None, x, x))
    else:
        act = xg.activation("Linear", rule)
        results = together(lambda _: backend.vjp(act, X, X)[1])
    np.testing.assert_array_equal(results, [3.0 * X] * THREADS)
    assert len(captured) == 1
    assert set(count_lowerings(name).values()) == {1}


def test_first_calls_that_meet_lower_once_for_each_thing_that_the_rule_asks(backend: Any) -> None:
    captured, pause = Unseen(), threading.Event()

    def ranked(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        captured.note_capture(grad_out, 0)
        pause.wait(0.02)
        return grad_out * 3.0 if tin.ndim == 1 else grad_out * 5.0

    name = f"ranked on {backend.name}"
    rule = xg.register(name)(ranked)
    inputs = [X if number % 2 else X.reshape(3, 3) for number in range(THREADS)]

    def run(number: int) -> Array:
        x = inputs[number]
        if backend.name == "numpy":
            return rule(None, x, x)
        with xg.use(rule):  # each thread has a Rule in force of its own
            return backend.vjp(xg.activation("Linear"), x, x)[1]

    results = together(run)
    for x, result in zip(inputs, results, strict=True):
        np.testing.assert_array_equal(result, x * (3.0 if x.ndim == 1 else 5.0))
    assert set(count_lowerings(name).values()) == {2}
    assert len(captured) <= 4  # once without the rank, which is then asked for, and once for each


@differentiating
def test_an_activation_that_threads_share_never_serves_another_threads_rule(backend: Any) -> None:
    # It remembers the latest rule, type and dtype; here each call finds those of another thread.
    act = xg.activation("ReLU")
    factors = [2.0**n for n in range(THREADS)]

    def run(number: int) -> list[Array]:
        x = X.astype(np.float16) if number % 2 else X
        grads = []
        with xg.use("scale", {"s": factors[number]}):
            for _ in range(30):
                grads.append(backend.vjp(act, x, np.ones_like(x))[1])
        grads.append(backend.vjp(act, x, np.ones_like(x))[1])
        return grads

    for factor, grads in zip(factors, together(run), strict=True):
        np.testing.assert_array_equal(grads[:-1], np.full((30, len(X)), factor))
        np.testing.assert_array_equal(grads[-1], X > 0)


@differentiating
def test_threads_that_share_a_key_take_each_number_once(backend: Any) -> None:
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


def test_rule_that_calls_another_while_it_is_captured_waits_for_no_other_thread() -> None:
    captures, pause = threading.Event(), threading.Event()
    layer = xg.activation("Linear", lambda ctx, grad_out, tin: grad_out)

    def calling(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        captures.set()
        pause.wait(0.1)  # the other thread begins to lower meanwhile
        return grad_out * float(xg.get("scale")(None, np.ones(()), None, s=3.0))

    threads = [
        threading.Thread(target=xg.show, args=(calling,), daemon=True),
        threading.Thread(target=lambda: captures.wait() and layer(X), daemon=True),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
        assert not thread.is_alive()
    assert "mul(grad_out, 3.0)" in xg.show(calling)


# --- everything at once ---------------------------------------------------------------------------
# Each rule's formula, written out in NumPy, and the limits between which its params are drawn.


def triangular(g: Array, x: Array, width: float) -> Array:
    return g * np.maximum(0, 1 - np.abs(x) / width)


def rectangular(g: Array, x: Array, a: float, b: float) -> Array:
    return g * ((a <= x) & (x <= b))


def arctan(g: Array, x: Array, alpha: float) -> Array:
    return g * (alpha / 2) / (1 + (np.pi / 2 * alpha * x) ** 2)


def scale(g: Array, x: Array, s: float) -> Array:
    return g * s


def clip_norm(g: Array, x: Array, max_norm: float) -> Array:
    return g * min(1.0, max_norm / float(np.sqrt(np.sum(g * g))))


FORMULAS: dict[Callable[..., Array], dict[str, tuple[float, float]]] = {
    triangular: {"width": (0.5, 3.0)},
    rectangular: {"a": (-2.0, 0.0), "b": (0.0, 2.0)},
    arctan: {"alpha": (0.5, 4.0)},
    scale: {"s": (0.5, 4.0)},
    clip_norm: {"max_norm": (0.5, 2.0)},
}
WORKERS, ROUNDS, SHIFTS = 16, 8, (2.0, 3.0)
Pullback: TypeAlias = Callable[[Array], Array]


def start(name: str, act: Any, x: Array, rule: Any) -> Pullback:
    if name == "numpy":
        return lambda g: rule(None, g, x)
    backend = BACKENDS[name]
    _, pull = xg.vjp(act, backend.array(x))
    return lambda g: backend.numpy(pull(backend.array(g))[0])


class Worker:
    """One thread: starts gradients under rules of its own, and finishes those of others under wrong
    ones.
    """

    def __init__(self, number: int, frameworks: list[str], acts: list[Any]) -> None:
        self.choose, self.frameworks, self.acts = random.Random(number), frameworks, acts

    def draw_rule(self) -> tuple[Callable[..., Array], dict[str, float]]:
        formula = self.choose.choice(list(FORMULAS))
        limits = FORMULAS[formula]
        return formula, {name: self.choose.uniform(*limits[name]) for name in limits}

    def use_another(self) -> xg.use:
        formula, params = self.draw_rule()
        return xg.use(formula.__name__, params)

    def start(self) -> tuple[Pullback, Array, Array]:
        """Run forward; return the pullback, the gradient to give it, and what it must return."""
        framework = self.choose.choice(self.frameworks)
        formula, params = self.draw_rule()
        rule, outer = xg.get(formula.__name__), self.choose.uniform(1, 9)
        shape = self.choose.choice([(5,), (2, 3), ()])
        noise = np.random.default_rng(self.choose.randrange(10**6))
        x, g = (np.asarray(noise.normal(size=shape), np.float32) for _ in range(2))
        with xg.use("scale", {"s": outer}), xg.use(rule, params, scope="activations"):
            with self.use_another():
                pass
            act = self.choose.choice(self.acts)
            pullback = start(framework, act, x, rule.with_params(**params))
            (treated,) = xg.apply_to_gradients([np.ones(1)])
        np.testing.assert_allclose(treated, outer)
        wide, wide_g = x.astype(np.float64), g.astype(np.float64)
        return pullback, g, formula(wide_g, wide, **params)

    def check_shifting(self) -> None:
        """Use a name that another thread redefines all the time: it means one or the other."""
        x = np.ones(3)
        by_hand = xg.get("test shifting")(None, x, x)
        with xg.use("test shifting"):
            (treated,) = xg.apply_to_gradients([x])
        for found in (by_hand, treated):
            assert found.tolist() in [[s] * 3 for s in SHIFTS]

    def run(self, pending: queue.Queue[tuple[Pullback, Array, Array]]) -> None:
        for _ in range(ROUNDS):
            pending.put(self.start())
            self.check_shifting()
            pullback, g, expected = pending.get(timeout=60)
            with self.use_another():
                found = pullback(g)
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


def shift_rules(stop: threading.Event) -> None:
    """Redefine one name, and add and remove others, until told to stop."""
    count = 0
    while not stop.is_set():
        factor = SHIFTS[count % 2]
        xg.register("test shifting", override=True)(
            lambda ctx, grad_out, tin, factor=factor: grad_out * float(factor)  # type: ignore[misc]
        )
        xg.register(f"test passing {count}")(lambda ctx, grad_out, tin: grad_out)
        xg.unregister(f"test passing {count}")
        count += 1
        time.sleep(0.01)  # each change of a name makes jax trace its eager ops again


@pytest.mark.anywhere
def test_every_gradient_is_right_with_all_frameworks_on_many_threads_while_rules_change(
    request: pytest.FixtureRequest,
) -> None:
    asked = split_names(request.config.getoption("--backends")) or list(BACKENDS)
    frameworks = [name for name in asked if is_installed(name)]
    xg.register("test shifting")(lambda ctx, grad_out, tin: grad_out * SHIFTS[0])
    acts = [xg.activation(forward) for forward in ("Linear", "ReLU", "Heaviside")]
    pending: queue.Queue[tuple[Pullback, Array, Array]] = queue.Queue()
    stop = threading.Event()
    workers = [Worker(number, frameworks, acts) for number in range(WORKERS)]
    before = xg.rules()
    with ThreadPoolExecutor(1) as pool:
        shifts = pool.submit(shift_rules, stop)
        try:
            together(lambda number: workers[number].run(pending), WORKERS)
        finally:
            stop.set()
    assert pending.empty()
    shifts.result()
    assert xg.rules() == before
