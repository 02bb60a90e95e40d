"""No lock is held while a user's code runs: captures that meet each other, forks and threads of
their own all end.
"""

from __future__ import annotations

import ast
import os
import re
import signal
import threading
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.support import threads

from ..harness.hidden import python
from ..written.unseen import Unseen

Tensor: TypeAlias = Any
X = np.linspace(-2.0, 2.0, 9, dtype=np.float32)
forking = pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")


def finish(*runs: Callable[[], Any], seconds: float = 30.0) -> list[Any]:
    """Run each on a thread of its own; return what they returned, all of which must end."""
    found: list[Any] = [None] * len(runs)

    def start(i: int) -> None:
        try:
            found[i] = runs[i]()
        except BaseException as error:  # noqa: BLE001 (it is shown by the test)
            found[i] = error

    threads = [threading.Thread(target=start, args=(i,), daemon=True) for i in range(len(runs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
        assert not thread.is_alive(), "waits for ever"
    return found


def in_child(run: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Return what a forked child found."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of frameworks and Python that threads and fork do not mix
        child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if run() else 1
        finally:
            os._exit(code)
    pause = threading.Event()  # and no clock: a rule that asks for the time is not captured
    for _ in range(int(seconds * 100)):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status == 0
        pause.wait(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child waits for ever")


def test_a_function_that_applies_a_rule_and_a_rule_that_calls_a_function_are_captured_at_once(
    backend: Any,
) -> None:
    barrier, x = threading.Barrier(2), backend.array(X)
    act = xg.activation("Linear", lambda ctx, grad_out, tin: grad_out * 5.0)
    double = xg.function(lambda x: x + x)
    met = Unseen()

    def meet(name: str) -> None:
        if name not in met:  # a capture is perhaps made twice
            met.append(name)
            barrier.wait(10)

    def calling(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        meet("rule")
        return double(grad_out)

    @xg.function
    def applying(x: Tensor) -> Tensor:
        meet("function")
        return act(x) * 3.0

    by_rule, by_function = finish(
        lambda: backend.numpy(xg.compose(calling)(None, x, x)), lambda: backend.numpy(applying(x))
    )
    np.testing.assert_array_equal(by_rule, 2 * X)
    np.testing.assert_array_equal(by_function, 3 * X)


def test_three_functions_that_use_one_another_in_a_circle_are_captured_on_three_threads() -> None:
    barrier, met = threading.Barrier(3), Unseen()
    functions: list[Any] = []

    def make(n: int) -> Any:
        def step(x: Tensor, depth: int) -> Tensor:
            if n not in met:
                met.append(n)
                barrier.wait(10)
            return x + 1.0 if depth == 0 else functions[(n + 1) % 3](x, depth - 1)

        return xg.function(step)

    functions += map(make, range(3))
    found = finish(*(lambda f=f: f(X, 3) for f in functions))
    np.testing.assert_array_equal(found, [X + 1] * 3)


def test_functions_that_wait_for_one_another_in_a_circle_are_found_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "PATIENCE", 60.0)  # longer than `finish` has
    barrier, met = threading.Barrier(3), Unseen()
    functions: list[Any] = []

    def make(n: int) -> Any:
        def step(x: Tensor) -> Tensor:
            if n in met:
                return x + 1.0
            met.append(n)
            barrier.wait(10)
            return functions[(n + 1) % 3](x)  # which another thread captures now

        return xg.function(step)

    functions += map(make, range(3))
    found = finish(*(lambda f=f: f(X) for f in functions))
    np.testing.assert_array_equal(found, [X + 1] * 3)


def test_a_rule_may_let_another_thread_use_it_while_it_is_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "PATIENCE", 0.2)  # the other thread waits for this one
    started = Unseen()

    def spreading(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        if not started:
            started.append(0)
            (inner,) = finish(lambda: rule(None, X, X))
            np.testing.assert_array_equal(inner, 3 * X)
        return grad_out * 3.0

    rule = xg.compose(spreading)
    np.testing.assert_array_equal(rule(None, X, X), 3 * X)


def test_all_threads_get_the_object_that_was_published_first() -> None:
    captured, pause = Unseen(), threading.Event()

    @xg.function
    def slow(x: Tensor) -> Tensor:
        captured.note_capture(x, 0)
        pause.wait(0.05)
        return x * 3.0

    found = finish(*(lambda: slow(X) for _ in range(8)))
    np.testing.assert_array_equal(found, [3 * X] * 8)
    assert len(captured) == 1
    assert len(slow.captures.variants) == 1


def test_a_capture_that_fails_on_one_thread_is_tried_by_the_next() -> None:
    tries, pause = Unseen(), threading.Event()

    @xg.function
    def shy(x: Tensor) -> Tensor:
        tries.append(0)
        pause.wait(0.02)
        if len(tries) == 1:
            raise ValueError("not yet")
        return x * 3.0

    found = finish(*(lambda: shy(X) for _ in range(4)))
    assert sum(isinstance(each, ValueError) for each in found) == 1
    for each in found:
        if not isinstance(each, ValueError):
            np.testing.assert_array_equal(each, 3 * X)


# --- forks ----------------------------------------------------------------------------------------


@forking
@pytest.mark.parametrize("kind", ["rule", "function"])
def test_a_child_captures_what_another_thread_of_its_parent_was_capturing(kind: str) -> None:
    inside, leave, is_held = threading.Event(), threading.Event(), Unseen()
    is_held.append("in the parent")

    def slow(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        inside.set()
        if is_held:
            leave.wait(10)
        return grad_out * 3.0

    def slow_function(x: Tensor) -> Tensor:
        return slow(None, x, x)

    function = xg.function(slow_function)

    def use() -> Any:
        return xg.compose(slow)(None, X, X) if kind == "rule" else function(X)

    def other() -> Any:
        return xg.compose(lambda ctx, grad_out, tin: grad_out * 2.0)(None, X, X)

    def use_both() -> bool:
        is_held.items.clear()
        return bool((other() == 2 * X).all() and (use() == 3 * X).all())

    thread = threading.Thread(target=use)
    thread.start()
    assert inside.wait(10)
    try:
        assert in_child(use_both)
    finally:
        leave.set()
        thread.join(10)
    np.testing.assert_array_equal(use(), 3 * X)


@forking
def test_a_child_forked_in_the_middle_of_a_capture_ends_it() -> None:
    children = Unseen()

    def forking_rule(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        if not children:
            children.append(0)
            children.append(in_child(lambda: bool((rule(None, X, X) == 3 * X).all())))
        return grad_out * 3.0

    rule = xg.compose(forking_rule)
    np.testing.assert_array_equal(rule(None, X, X), 3 * X)
    assert children == [0, True]


@forking
def test_children_that_are_forked_while_threads_capture_and_register_all_end() -> None:
    stop = threading.Event()

    def work(number: int) -> None:
        n = 0
        while not stop.is_set():
            n += 1
            name = f"test forked {number} {n % 3}"
            xg.register(name, override=True)(lambda ctx, grad_out, tin, n=n: grad_out * float(n))
            with xg.use(name, key=n):
                xg.get(name)(None, X, X)
            xg.function(lambda x, n=n: x * float(n))(X)  # type: ignore[misc]

    def check() -> bool:
        xg.register("test child", override=True)(lambda ctx, grad_out, tin: grad_out * 7.0)
        with xg.use("test child"):
            (found,) = xg.apply_to_gradients([X])
        return bool((found == 7 * X).all())

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            assert in_child(check)
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)


def test_every_lock_of_ours_is_one_that_a_fork_finds_free() -> None:
    kinds = {"Lock", "RLock", "Condition", "Semaphore"}
    places = []
    for folder in (Path(xg.__file__).parent, *(Path(p) for p in backend_folders())):
        for file in folder.rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            if file.name != "records.py":  # which has one without a lock
                assert not re.search(r"from functools .*cached_property|@functools.cached_p", text)
            tree = ast.parse(text)
            calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
            names = (getattr(f, "attr", getattr(f, "id", "")) for f in calls)
            places += [file.name for name in names if name in kinds]
    assert places == ["threads.py"]


def backend_folders() -> list[str]:
    """Return where the backends' packages lie; finding them imports nothing."""
    specs = [find_spec(f"multigrad_{name}") for name in ("torch", "jax", "tensorflow")]
    return [folder for spec in specs if spec for folder in spec.submodule_search_locations or ()]


@forking
@pytest.mark.needs("torch")
def test_a_child_has_the_methods_that_a_capture_in_its_parent_had_replaced() -> None:
    import torch

    inside, leave = threading.Event(), threading.Event()

    def slow(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        inside.set()
        leave.wait(10)
        return grad_out * torch.ones_like(tin)

    kind = type(torch.autograd.Function)
    before = kind.__getattribute__
    thread = threading.Thread(target=lambda: xg.compose(slow)(None, X, X))
    thread.start()
    assert inside.wait(10)
    try:
        assert kind.__getattribute__ is not before
        assert in_child(lambda: kind.__getattribute__ is before)
    finally:
        leave.set()
        thread.join(10)
    assert kind.__getattribute__ is before


FIRST_USES = """
import os, sys, threading, time, warnings
import numpy as np
import multigrad as xg
X = np.ones(3, np.float32)
warnings.simplefilter("ignore")

def use(factor):
    return xg.compose(lambda ctx, grad_out, tin: grad_out * factor)(None, X, X)[0] == factor

threading.Thread(target=use, args=(2.0,)).start()
time.sleep(float(sys.argv[1]))
child = os.fork()
if child == 0:
    os._exit(0 if use(3.0) else 1)
for _ in range(2000):
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        sys.exit(status)
    time.sleep(0.01)
os.kill(child, 9)
sys.exit("the child waits for ever")
"""


@forking
@pytest.mark.parametrize("seconds", [0.0, 0.005, 0.02, 0.05, 0.1])
def test_a_fork_waits_for_what_another_thread_imports(seconds: float) -> None:
    python("-c", FIRST_USES, str(seconds), timeout=60)
