"""`xg.jit` on torch: compiled code to which numbers and keys of the rule in force are inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from multigrad.backend.finding.discovery import load_backend
from multigrad.backend.finding.values import key_for
from multigrad.rules.context import CURRENT, ActiveRules, RuleInForce
from multigrad.trace.scope.draws import Draws
from multigrad.trace.scope.present import all_at_present

from .. import versions
from ..kernels import random
from .calls import has_static_numbers
from .mirror import EPOCH, HIDDEN, JIT, MIRROR, Applied

Tensor: TypeAlias = Any


def jit(fn: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Return torch.compile(fn) to which numbers and keys of the rule in force are inputs.

    Raises:
        UnsupportedOp: torch is too old.
    """
    if not versions.has("xg.jit"):
        raise versions.refuse("xg.jit", "call the function itself")
    compiled: dict[str, Callable[..., Any]] = {}

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return fn(*args, **kwargs)
        active = all_at_present(CURRENT.get(), load_backend("torch"))
        hidden = hide(active.activations)
        structure = f"{hidden.token}~{EPOCH.text}"
        if structure not in compiled:
            compiled[structure] = torch.compile(copy_code(fn), **options)
        with in_force(active, hidden):
            return compiled[structure](*args, **kwargs)

    return call


def copy_code(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return fn behind code of its own: Dynamo keeps `recompile_limit` graphs for one code."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    run.__code__ = run.__code__.replace(co_name=getattr(fn, "__name__", "run"))
    return run


@dataclass(frozen=True, slots=True)
class Hidden:
    """A rule in force as compiled code sees it: two tokens, and what they leave out."""

    token: str
    exact: str
    # The numbers, the key's words, the next application's number.
    tensors: tuple[Tensor, Tensor, Tensor]


def hide(in_force: RuleInForce | None) -> Hidden:
    """Return the rule in force with its numbers and its key as tensors."""
    numbers: tuple[Any, ...] = ()
    words, start, keyed = torch.zeros(2, dtype=torch.int64, device="cpu"), 0, ""
    token = exact = f"{JIT}-"
    if in_force is not None:
        if in_force.counter is not None:
            key = key_for(load_backend("torch"), in_force.key)
            words, start, keyed = random.key_words(key), in_force.counter.count, "@"
        token = exact = f"{JIT}{in_force.bound_rule.token}{keyed}"
        if not has_static_numbers(in_force):
            numbers = in_force.values
            token = f"{HIDDEN}{in_force.specialization.id}{keyed}"
    # All in one tensor: of 0-d float64 inputs Dynamo (torch 2.13) makes scalars, at a second trace.
    packed = torch.tensor([float(number) for number in numbers], dtype=torch.float64, device="cpu")
    return Hidden(token, exact, (packed, words, torch.tensor(start, device="cpu")))


@contextmanager
def in_force(active: ActiveRules, hidden: Hidden) -> Iterator[None]:
    """Mirror a rule whose numbers are hidden; its counter ends where it would eagerly."""
    in_force, applied = active.activations, Applied()
    before = MIRROR.token, MIRROR.exact, MIRROR.hidden, MIRROR.applied
    with ExitStack() as stack:
        if active is not CURRENT.get():  # what a graph break leaves to eager code reads it too
            stack.callback(CURRENT.reset, CURRENT.set(active))
        if in_force is not None and in_force.counter is not None:
            # What a graph break leaves to eager code goes on counting where compiled code is.
            counter = SharedCounter(in_force.counter.count, applied)
            inner = RuleInForce(in_force.bound_rule, Draws(in_force.key, counter))
            stack.callback(CURRENT.reset, CURRENT.set(replace(active, activations=inner)))
        MIRROR.token, MIRROR.exact = hidden.token, hidden.exact
        MIRROR.hidden, MIRROR.applied = hidden.tensors, applied
        try:
            yield
        finally:
            MIRROR.token, MIRROR.exact, MIRROR.hidden, MIRROR.applied = before
            if in_force is not None and in_force.counter is not None:
                in_force.counter.advance(applied.number)


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
