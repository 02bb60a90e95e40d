"""What a rule does beside its graph: draws, effects and tensors from outside. It runs as it is, or
is refused.
"""

# ruff: noqa: PT031

from __future__ import annotations

import contextvars
import gc
import os
import queue
import random
import secrets
import time
import types
import uuid
import warnings
import weakref
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest

import multigrad as xg

X = np.array([[-1.0, 0.5, 2.0], [3.0, -0.25, 0.0]], np.float32)
G = np.array([[1.0, -2.0, 3.0], [-1.0, 0.5, 4.0]], np.float32)


# --- draws ----------------------------------------------------------------------------------------

generator = np.random.default_rng(7)
python_generator = random.Random(7)


def by_a_shuffle(ctx: Any, g: Any, x: Any) -> Any:
    factors = [0.0, 1.0]
    random.shuffle(factors)
    return g * factors[0]


def by_numpy(ctx: Any, g: Any, x: Any) -> Any:
    return g * 0 if np.random.rand() < 0.5 else g


def draws_a_bit() -> int:
    return random.getrandbits(1)


DRAWS: dict[str, Callable[..., Any]] = {
    "by a branch": lambda ctx, g, x: g * 0 if random.random() < 0.5 else g,
    "by an int": lambda ctx, g, x: g * random.randint(0, 1),
    "by a shuffle": by_a_shuffle,
    "by NumPy": by_numpy,
    "by a generator": lambda ctx, g, x: g * int(generator.integers(2)),
    "by a generator of Python's": lambda ctx, g, x: g * python_generator.choice([0, 1]),
    "by a helper": lambda ctx, g, x: g * draws_a_bit(),
    "by a secret": lambda ctx, g, x: g * secrets.randbelow(2),
    "by entropy": lambda ctx, g, x: g * (os.urandom(1)[0] % 2),
    "by an identifier": lambda ctx, g, x: g * (uuid.uuid4().int % 2),
    "by the clock": lambda ctx, g, x: g * (time.perf_counter_ns() // 100 % 2),
    "by an unseeded generator": lambda ctx, g, x: g * int(np.random.default_rng().integers(2)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_of_the_rule_s_own_is_made_at_each_call(registered: Any, name: str) -> None:
    with pytest.warns(xg.NativeRuleWarning):
        rule = registered(DRAWS[name])
        found = {rule(None, G, X).tobytes() for _ in range(64)}
    assert found == {(G * 0.0).astype(np.float32).tobytes(), G.tobytes()} or len(found) == 2


@pytest.mark.needs("torch")
def test_a_draw_from_torch_is_made_at_each_call(registered: Any, torch: Any) -> None:
    own = torch.Generator().manual_seed(0)

    for function in (
        lambda ctx, g, x: g * 0 if torch.rand(()) < 0.5 else g,
        lambda ctx, g, x: g * int(torch.multinomial(torch.tensor([0.5, 0.5]), 1)),
        lambda ctx, g, x: g * int(torch.randint(2, (), generator=own)),
    ):
        rule = registered(function)
        with pytest.warns(xg.NativeRuleWarning):
            found = {
                rule(None, torch.from_numpy(G), torch.from_numpy(X)).sum().item() for _ in range(64)
            }
        assert len(found) == 2


@pytest.mark.backends("numpy", "torch")
def test_a_capture_leaves_the_generators_as_they_are(backend: Any, registered: Any) -> None:
    def plain(ctx: Any, g: Any, x: Any) -> Any:
        return g * abs(x)

    random.seed(3)
    np.random.seed(3)
    states = random.getstate(), np.random.get_state()[1].tolist()
    registered(plain, native=False)(None, backend.array(G), backend.array(X))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states


def test_what_a_discarded_capture_has_drawn_is_drawn_again(registered: Any) -> None:
    rule = registered(by_numpy)
    np.random.seed(5)
    with pytest.warns(xg.NativeRuleWarning):
        given = [float(rule(None, G, X).sum()) for _ in range(8)]
    np.random.seed(5)
    assert given == [float(by_numpy(None, G, X).sum()) for _ in range(8)]


def test_a_draw_in_a_function_is_made_at_each_call() -> None:
    @xg.custom_gradient
    def drops(x: Any) -> Any:
        keep = random.randint(0, 1)
        return x * keep, lambda upstream: upstream * keep

    assert {float(np.sum(drops(X))) for _ in range(64)} == {0.0, float(X.sum())}


def test_a_generator_that_is_seeded_in_the_rule_is_a_constant(registered: Any) -> None:
    def seeded(ctx: Any, g: Any, x: Any) -> Any:
        return g * int(np.random.default_rng(3).integers(1, 9))

    rule = registered(seeded, native=False)
    np.testing.assert_array_equal(rule(None, G, X), seeded(None, G, X))


# --- effects --------------------------------------------------------------------------------------

count = 0


def counts_in_a_global(ctx: Any, g: Any, x: Any) -> Any:
    global count
    count += 1
    return g * 2


def test_a_global_is_assigned_at_each_call(registered: Any) -> None:
    before = count
    with pytest.warns(xg.NativeRuleWarning, match="count"):
        rule = registered(counts_in_a_global)
        for _ in range(3):
            rule(None, G, X)
    assert count == before + 3


def keeping(kind: str, kept: Any) -> Callable[..., Any]:
    """A rule that keeps the norm of each gradient outside of it."""
    total = 0.0

    def appends(ctx: Any, g: Any, x: Any) -> Any:
        kept.append(g.sum())
        return g * 2

    def assigns(ctx: Any, g: Any, x: Any) -> Any:
        kept[len(kept)] = g.sum()
        return g * 2

    def adds(ctx: Any, g: Any, x: Any) -> Any:
        kept.add(float(len(kept)))
        return g * 2

    def rebinds(ctx: Any, g: Any, x: Any) -> Any:
        nonlocal total
        total = total + 1.0
        kept[:] = [0.0] * int(total)
        return g * 2

    def sets(ctx: Any, g: Any, x: Any) -> Any:
        kept.last = g
        kept.calls += 1
        return g * 2

    return locals()[kind]


class Log:
    def __init__(self) -> None:
        self.calls = 0
        self.norms: list[Any] = []

    def __len__(self) -> int:
        return self.calls

    def __call__(self, ctx: Any, g: Any, x: Any) -> Any:
        self.calls += 1
        self.norms.append(g.sum())
        return g * 2

    def rule(self, ctx: Any, g: Any, x: Any) -> Any:
        self.norms.append(g.sum())
        self.calls += 1
        return g * 2


KEPT = [("appends", list), ("assigns", dict), ("adds", set), ("rebinds", list), ("sets", Log)]


@pytest.mark.parametrize(("kind", "make"), KEPT)
@pytest.mark.backends("numpy", "torch")
def test_what_a_rule_keeps_is_kept_at_each_call_and_real(
    backend: Any, registered: Any, kind: str, make: Any
) -> None:
    kept = make()
    with pytest.warns(xg.NativeRuleWarning):
        rule = registered(keeping(kind, kept))
        for _ in range(3):
            given = rule(None, backend.array(G), backend.array(X))
    np.testing.assert_array_equal(backend.numpy(given), G * 2)
    assert len(kept) == 3
    assert "symbolic" not in repr(vars(kept) if isinstance(kept, Log) else kept)


WEAK = [weakref.WeakValueDictionary, weakref.WeakKeyDictionary, weakref.WeakSet]


def put(container: Any, log: Log) -> None:
    if isinstance(container, weakref.WeakSet):
        container.add(log)
    elif isinstance(container, weakref.WeakKeyDictionary):
        container[log] = 1
    else:
        container["log"] = log


@pytest.mark.parametrize("make", WEAK)
def test_an_entry_that_is_freed_meanwhile_is_no_effect(registered: Any, make: Any) -> None:
    container = make()
    log: Any = Log()
    log.itself = log  # so that only the collector frees it
    put(container, log)

    def counts(ctx: Any, g: Any, x: Any) -> Any:
        gc.collect()
        assert container is not None
        return g * 2

    rule = registered(counts)
    gc.disable()
    try:
        del log
        with warnings.catch_warnings():
            warnings.simplefilter("error", xg.NativeRuleWarning)
            np.testing.assert_array_equal(rule(None, G, X), G * 2)
    finally:
        gc.enable()


@pytest.mark.parametrize("make", WEAK)
def test_what_a_rule_puts_into_a_weak_container_is_there_at_each_call(
    registered: Any, make: Any
) -> None:
    container, logs = make(), [Log(), Log(), Log()]

    def puts_weakly(ctx: Any, g: Any, x: Any) -> Any:
        put(container, logs[len(container) % 3])
        return g * 2

    with pytest.warns(xg.NativeRuleWarning):
        registered(puts_weakly)(None, G, X)
    assert len(container) == 1


SENT: list[Any] = []
SLOT = types.SimpleNamespace(inner=types.SimpleNamespace(tensor=None))
QUEUE: queue.SimpleQueue[Any] = queue.SimpleQueue()
CONTEXT: contextvars.ContextVar[Any] = contextvars.ContextVar("kept")


def receives() -> Generator[None, Any, None]:
    while True:
        SENT.append((yield))


RECEIVER = receives()
next(RECEIVER)


def stores(ctx: Any, g: Any, x: Any) -> Any:
    SLOT.inner.tensor = x
    return g * 2


def puts(ctx: Any, g: Any, x: Any) -> Any:
    QUEUE.put(x)
    return g * 2


def puts_at_once(ctx: Any, g: Any, x: Any) -> Any:
    QUEUE.put_nowait(x)
    return g * 2


def sends(ctx: Any, g: Any, x: Any) -> Any:
    RECEIVER.send(x)
    return g * 2


def sets_a_context(ctx: Any, g: Any, x: Any) -> Any:
    CONTEXT.set(x)
    return g * 2


def last_put() -> Any:
    return [QUEUE.get() for _ in range(QUEUE.qsize())][-1]


OUT_OF_SIGHT = [
    (stores, lambda: SLOT.inner.tensor),
    (puts, last_put),
    (puts_at_once, last_put),
    (sends, SENT.pop),
    (sets_a_context, CONTEXT.get),
]


@pytest.mark.parametrize(("function", "kept"), OUT_OF_SIGHT)
def test_what_keeps_a_tensor_out_of_sight_keeps_the_real_one(
    registered: Any, function: Any, kept: Any
) -> None:
    with pytest.warns(xg.NativeRuleWarning, match="keeps a symbolic|assigns to|each use changes"):
        registered(function)(None, G, X)
    assert kept() is X


@pytest.mark.parametrize("make", [lambda: Log(), lambda: Log().rule])
def test_what_an_object_keeps_is_kept_at_each_call(registered: Any, make: Any) -> None:
    function = make()
    log = getattr(function, "__self__", function)
    with pytest.warns(xg.NativeRuleWarning):
        rule = registered(function)
        for _ in range(3):
            rule(None, G, X)
    assert log.calls == 3 and [float(n) for n in log.norms] == [5.5] * 3


def test_what_a_rule_prints_is_printed_at_each_call(registered: Any, capsys: Any) -> None:
    def prints(ctx: Any, g: Any, x: Any) -> Any:
        print("norm", float(np.sum(g)) if isinstance(g, np.ndarray) else g)
        return np.multiply(g, 2)

    with pytest.warns(xg.NativeRuleWarning):
        rule = registered(prints)
        for _ in range(3):
            rule(None, G, X)
    assert capsys.readouterr().out == "norm 5.5\n" * 3


def test_effects_within_the_rule_are_its_own(registered: Any) -> None:
    def local(ctx: Any, g: Any, x: Any) -> Any:
        found, total = [], {"sum": 0.0}

        def add(value: Any) -> None:
            nonlocal total
            total = {"sum": total["sum"] + value}
            found.append(value)

        add(g)
        add(abs(x))
        return found[0] * total["sum"]

    rule = registered(local, native=False)
    np.testing.assert_array_equal(rule(None, G, X), G * (G + abs(X)))


def test_a_function_that_keeps_what_it_computes_runs_as_it_is() -> None:
    kept: list[Any] = []

    @xg.custom_gradient
    def keeps(x: Any) -> Any:
        kept.append(x)
        return x * 2, lambda upstream: (kept.append(upstream), upstream * 2)[1]

    y, pullback = xg.vjp(keeps, X)
    pullback(G)
    np.testing.assert_array_equal(y, X * 2)
    assert [type(each) for each in kept] == [np.ndarray] * 2


# --- tensors from outside -------------------------------------------------------------------------


@pytest.mark.needs("torch")
def test_a_buffer_that_a_rule_reads_is_read_at_each_call(registered: Any, torch: Any) -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0]))

        def rule(self, ctx: Any, g: Any, x: Any) -> Any:
            return g * (self.scale * 2)

        def number(self, ctx: Any, g: Any, x: Any) -> Any:
            return g * float(self.scale[0])

    for name in ("rule", "number"):
        module = Scaled()
        function = getattr(module, name)
        rule = registered(function)
        with pytest.warns(xg.NativeRuleWarning, match="scale"):
            for value in (1.0, 5.0):
                module.load_state_dict({"scale": torch.full((3,), value)})
                given = rule(None, torch.from_numpy(G), torch.from_numpy(X))
                expected = function(None, torch.from_numpy(G), torch.from_numpy(X))
                assert torch.equal(given, expected)


@pytest.mark.needs("torch")
def test_a_tensor_of_a_module_s_own_is_a_constant(registered: Any, torch: Any) -> None:
    weights = torch.tensor([1.0, 2.0, 3.0])

    def weighted(ctx: Any, g: Any, x: Any) -> Any:
        return g * weights

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given = registered(weighted, native=False)(None, G, X)
    np.testing.assert_array_equal(given, G * weights.numpy())
