"""`xg.jit` on torch: one compiled function in which numbers and keys of the rule in force are run-time values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from multigrad.context import CURRENT, Application, Frame
from multigrad.lowering.backend import key_for, load_backend

from . import random
from .compile import EPOCH, HIDDEN, JIT, MIRROR, Applied, has_static_numbers

Tensor: TypeAlias = Any


def jit(fn: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Return torch.compile(fn) in which numbers and keys of the rule in force are run-time values."""
    compiled: dict[str, Callable[..., Any]] = {}

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return fn(*args, **kwargs)
        frame = CURRENT.get()
        hidden = hide(frame.activations)
        structure = f"{hidden.token}~{EPOCH.text}"
        if structure not in compiled:
            compiled[structure] = torch.compile(copy_code(fn), **options)
        with in_force(frame, hidden):
            return compiled[structure](*args, **kwargs)

    return call


def copy_code(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return fn behind code of its own: Dynamo keeps at most `recompile_limit` graphs for one code."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    run.__code__ = run.__code__.replace(co_name=getattr(fn, "__name__", "run"))
    return run


@dataclass(frozen=True, slots=True)
class Hidden:
    """A rule in force as compiled code sees it: two tokens, and what they leave out."""

    token: str
    exact: str
    tensors: tuple[
        Tensor, Tensor, Tensor
    ]  # the numbers, the key's words, the next application's number


def hide(application: Application | None) -> Hidden:
    """Return the rule in force with its numbers and its key as tensors."""
    numbers: tuple[Any, ...] = ()
    words, start, keyed = torch.zeros(2, dtype=torch.int64, device="cpu"), 0, ""
    token = exact = f"{JIT}-"
    if application is not None:
        if application.counter is not None:
            key = key_for(load_backend("torch"), application.key)
            words, start, keyed = random.key_words(key), application.counter.count, "@"
        token = exact = f"{JIT}{application.spec.token}{keyed}"
        if not has_static_numbers(application):
            numbers = application.spec.values
            token = f"{HIDDEN}{application.spec.family.id}{keyed}"
    # All in one tensor: of 0-d float64 inputs Dynamo (torch 2.13) makes scalars, at a second trace.
    packed = torch.tensor([float(number) for number in numbers], dtype=torch.float64, device="cpu")
    return Hidden(token, exact, (packed, words, torch.tensor(start, device="cpu")))


@contextmanager
def in_force(frame: Frame, hidden: Hidden) -> Iterator[None]:
    """Mirror a rule whose numbers are hidden; afterwards its counter stands where it would eagerly."""
    application, applied = frame.activations, Applied()
    before = MIRROR.token, MIRROR.exact, MIRROR.hidden, MIRROR.applied
    with ExitStack() as stack:
        if application is not None and application.counter is not None:
            # What a graph break leaves to eager code goes on counting where compiled code is.
            counter = SharedCounter(application.counter.count, applied)
            inner = Application(application.spec, application.key, counter)
            stack.callback(CURRENT.reset, CURRENT.set(replace(frame, activations=inner)))
        MIRROR.token, MIRROR.exact = hidden.token, hidden.exact
        MIRROR.hidden, MIRROR.applied = hidden.tensors, applied
        try:
            yield
        finally:
            MIRROR.token, MIRROR.exact, MIRROR.hidden, MIRROR.applied = before
            if application is not None and application.counter is not None:
                application.counter.advance(applied.number)


class SharedCounter:
    """Counts applications together with compiled code."""

    def __init__(self, start: int, applied: Applied) -> None:
        self.start = start
        self.applied = applied

    @property
    def count(self) -> int:
        """The number of the next application."""
        return self.start + self.applied.number

    def __next__(self) -> int:
        n = self.count
        self.applied.number += 1
        return n

    def advance(self, number: int) -> None:
        """Skip applications that compiled code has made."""
        self.applied.number += number
