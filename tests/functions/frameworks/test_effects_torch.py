"""What a class does to objects outside of it happens once per call, however often it was captured
and proven.
"""

from __future__ import annotations

import array
import collections
import contextvars
import functools
import io
import itertools
import multiprocessing
import os
import queue
import random
import sys
import threading
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

import multigrad as xg

from ...conftest import is_installed
from ...harness.torch_class import torch_class

pytestmark = pytest.mark.needs("torch")
if TYPE_CHECKING or is_installed("torch"):
    import torch
X = [0.5, -1.0, 2.0]


class Kind(NamedTuple):
    """A kind of state: what makes it, what a forward does to it, and what shows that."""

    make: Callable[[], Any]
    act: Callable[[Any, Any], Any]
    show: Callable[[Any], Any]


def installed_module() -> Any:
    """Return a module of torch's whose class lies where packages are installed."""
    package = types.ModuleType("an_installed_package")
    package.__file__ = "/site-packages/an_installed_package.py"
    sys.modules[package.__name__] = package
    return type("Metric", (torch.nn.Module,), {"__module__": package.__name__})()


class Slotted:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0


class Counter:
    """Counts in methods of its own, and in what it holds."""

    def __init__(self) -> None:
        self.n, self.items, self.inner = 0, [], types.SimpleNamespace(n=0)
        self.buffer = torch.zeros(2)

    def tick(self) -> None:
        self.n += 1

    def tick_all(self) -> None:
        self.inner.n += 1
        self.items.append(1)
        self.buffer.add_(1)


class Items(list):  # type: ignore[type-arg]
    pass


class Table(dict):  # type: ignore[type-arg]
    pass


def count(held: Any, x: Any) -> None:
    held.n += 1


def count_anew(held: Any, x: Any) -> None:
    held.fresh = getattr(held, "fresh", 0) + 1


def count_item(held: Any, x: Any) -> None:
    held[0] += 1


def count_first(held: Any) -> Any:
    return held[0].item()


def append(held: Any, x: Any) -> None:
    held.append(1)


def step(held: Any, x: Any) -> None:
    next(held)


def draw(held: Any, x: Any) -> None:
    held.random()


def set_data(held: Any, x: Any) -> None:
    held.data = held.data + 1


def set_grad(held: Any, x: Any) -> None:
    held.grad = torch.ones(2) if held.grad is None else held.grad + 1


def give_grad(tensor: Any) -> Any:
    tensor.grad = torch.zeros_like(tensor)
    return tensor


def normalize(held: Any, x: Any) -> None:
    held(x.detach()[None] * torch.arange(1.0, 5.0)[:, None])


def nested_norm() -> Any:
    return torch.nn.Sequential(torch.nn.Sequential(torch.nn.BatchNorm1d(3)))


def statistics(held: Any) -> Any:
    return [each.tolist() for each in held.state_dict().values()]


def numbered(**start: int) -> Any:
    return types.SimpleNamespace(**start)


def of_n(held: Any) -> Any:
    return held.n


def of_fresh(held: Any) -> Any:
    return held.fresh


def set_variable(held: Any, x: Any) -> None:
    held.set(held.get() + 1)


def write_letter(held: Any, x: Any) -> None:
    held.write("a")


KINDS: dict[str, Kind] = {
    "list": Kind(list, append, len),
    "bound append": Kind(lambda: [].append, lambda s, x: s(1), lambda s: len(s.__self__)),
    "partial": Kind(lambda: functools.partial(list.append, []), lambda s, x: s(1), repr),
    "list in a tuple": Kind(lambda: ([],), lambda s, x: s[0].append(1), repr),
    "list in a list": Kind(lambda: [[]], lambda s, x: s[0].append(1), repr),
    "subclass of list": Kind(Items, append, len),
    "attribute of one": Kind(Items, count_anew, of_fresh),
    "dict": Kind(lambda: {0: 0}, count_item, lambda s: s[0]),
    "subclass of dict": Kind(lambda: Table({0: 0}), count_item, lambda s: s[0]),
    "Counter": Kind(collections.Counter, lambda s, x: s.update("a"), lambda s: s["a"]),
    "set": Kind(set, lambda s, x: s.add(len(s)), len),
    "deque": Kind(collections.deque, append, len),
    "bytearray": Kind(bytearray, append, len),
    "array": Kind(lambda: array.array("d"), append, len),
    "memory": Kind(lambda: memoryview(bytearray(2)), count_item, lambda s: s[0]),
    "shared number": Kind(
        lambda: multiprocessing.RawValue("i", 0),
        lambda s, x: setattr(s, "value", s.value + 1),
        lambda s: s.value,
    ),
    "object": Kind(lambda: numbered(n=0), count, of_n),
    "new attribute": Kind(numbered, count_anew, of_fresh),
    "slot": Kind(Slotted, count, of_n),
    "thread's own": Kind(threading.local, count_anew, of_fresh),
    "method": Kind(Counter, lambda s, x: s.tick(), of_n),
    "bound method": Kind(lambda: Counter().tick, lambda s, x: s(), lambda s: s.__self__.n),
    "what a method reaches": Kind(
        Counter,
        lambda s, x: s.tick_all(),
        lambda s: (s.inner.n, len(s.items), s.buffer[0].item()),
    ),
    "class": Kind(lambda: type("Own", (), {"n": 0}), count, of_n),
    "tensor of a class": Kind(
        lambda: type("Own", (), {"t": torch.zeros(2)}),
        lambda s, x: s.t.add_(1),
        lambda s: s.t[0].item(),
    ),
    "iterator": Kind(itertools.count, step, repr),
    "generator": Kind(lambda: iter(n for n in range(99)), step, next),
    "StringIO": Kind(io.StringIO, write_letter, lambda s: (s.getvalue(), s.tell())),
    "file": Kind(
        lambda: io.FileIO(os.devnull, "w"), lambda s, x: s.write(b"a"), lambda s: s.close()
    ),
    "Random": Kind(lambda: random.Random(0), draw, lambda s: s.random()),
    "Generator": Kind(lambda: np.random.default_rng(0), draw, lambda s: s.random()),
    "Queue": Kind(queue.Queue, lambda s, x: s.put(1), lambda s: s.qsize()),
    "SimpleQueue": Kind(queue.SimpleQueue, lambda s, x: s.put(1), lambda s: s.qsize()),
    "ContextVar": Kind(
        lambda: contextvars.ContextVar("n", default=0), set_variable, lambda s: s.get()
    ),
    "module": Kind(lambda: torch.nn.Identity(), count_anew, of_fresh),
    "module of a package": Kind(installed_module, count_anew, of_fresh),
    "buffer": Kind(
        lambda: torch.nn.BatchNorm1d(3), lambda s, x: s.running_mean.add_(1), statistics
    ),
    "called module": Kind(nested_norm, normalize, statistics),
}
# They are tensors or arrays, which as arguments are inputs of the graph.
OUTSIDE: dict[str, Kind] = {
    "array": Kind(lambda: np.zeros(2), count_item, count_first),
    "array in place": Kind(lambda: np.zeros(2), lambda s, x: np.add(s, 1, out=s), count_first),
    "large array": Kind(lambda: np.zeros(2**22 + 1), count_item, count_first),
    "tensor": Kind(lambda: torch.zeros(2), lambda s, x: s.add_(1), count_first),
    "item": Kind(lambda: torch.zeros(2), count_item, count_first),
    "out=": Kind(lambda: torch.zeros(2), lambda s, x: torch.add(s, 1, out=s), count_first),
    "view": Kind(lambda: torch.zeros(4)[1:3], lambda s, x: s.add_(1), count_first),
    "data": Kind(lambda: torch.zeros(2), set_data, count_first),
    "parameter": Kind(
        lambda: torch.nn.Parameter(torch.zeros(2)), lambda s, x: s.data.add_(1), count_first
    ),
    "tensor's attribute": Kind(lambda: torch.zeros(2), count_anew, of_fresh),
    "grad": Kind(lambda: torch.zeros(2), set_grad, lambda s: s.grad.tolist()),
    "grad in place": Kind(
        lambda: give_grad(torch.zeros(2)), lambda s, x: s.grad.add_(1), lambda s: s.grad.tolist()
    ),
    "requires_grad": Kind(
        lambda: torch.zeros(2), lambda s, x: s.requires_grad_(), lambda s: s.requires_grad
    ),
}


def closed_over(kind: Kind, state: Any) -> tuple[Any, tuple[Any, ...]]:
    @torch_class(lambda ctx, grad: grad * 3)
    def Acts(ctx: Any, x: Any) -> Any:
        kind.act(state, x)
        return x * 2

    return Acts, ()


def in_backward(kind: Kind, state: Any) -> tuple[Any, tuple[Any, ...]]:
    act = kind.act

    def backward(ctx: Any, grad: Any) -> Any:
        act(state, grad)
        return grad * 3

    @torch_class(backward)
    def Acts(ctx: Any, x: Any) -> Any:
        return x * 2

    return Acts, ()


def given(kind: Kind, state: Any) -> tuple[Any, tuple[Any, ...]]:
    @torch_class(lambda ctx, grad: (grad * 3, None))
    def Acts(ctx: Any, x: Any, held: Any) -> Any:
        kind.act(held, x)
        return x * 2

    return Acts, (state,)


def run(write: Any, kind: Kind, convert: bool) -> Any:
    """Return what three calls give, and leave behind."""
    torch.manual_seed(0)
    state = kind.make()
    own, others = write(kind, state)
    apply = xg.convert(own).apply if convert else own.apply
    for _ in range(3):
        x = torch.tensor(X, requires_grad=True)
        y = apply(x, *others)
        y.square().sum().backward()
    assert x.grad is not None
    return y.tolist(), x.grad.tolist(), kind.show(state)


ALL = [*KINDS.items(), *OUTSIDE.items()]
ROWS = [(write, kind) for write in (closed_over, in_backward) for kind in ALL]
ROWS += [(given, kind) for kind in KINDS.items()]


@pytest.mark.parametrize(
    ("write", "named"), ROWS, ids=lambda each: each[0] if type(each) is tuple else each.__name__
)
def test_what_a_class_does_to_objects_happens_once_per_call(write: Any, named: Any) -> None:
    assert run(write, named[1], convert=True) == run(write, named[1], convert=False)


def test_a_cache_that_a_class_fills_is_no_effect() -> None:
    held = numbered()

    @torch_class(lambda ctx, grad: grad * 3)
    def Caches(ctx: Any, x: Any) -> Any:
        if not hasattr(held, "factor"):
            held.factor = 2.0
        return x * held.factor

    np.testing.assert_array_equal(xg.convert(Caches)(np.array(X)), [1.0, -2.0, 4.0])
    assert held.factor == 2.0


def test_a_refusal_leaves_no_trace() -> None:
    held, seen = numbered(), torch.zeros(2)

    @torch_class(lambda ctx, grad: grad * 3)
    def Counts(ctx: Any, x: Any) -> Any:
        count_anew(held, x)
        seen.add_(1)
        return x * 2

    with pytest.raises(xg.MultigradError, match="writes into a tensor from outside it"):
        xg.convert(Counts)(np.array(X))
    assert not vars(held) and seen.tolist() == [0.0, 0.0]
