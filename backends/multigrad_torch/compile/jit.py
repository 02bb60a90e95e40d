"""xg.jit: torch.compile with the numbers and keys of the rule in force as inputs.

Compiled code reads them from MIRROR (`dynamo_guards.py`), whose token then says that they are
inputs, so that Dynamo guards on the rule alone. `activation_calls.py` says how calls take them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from multigrad.backend.discovery import load_backend
from multigrad.backend.values import key_for
from multigrad.rules.context import CURRENT, ActiveRules, RuleInForce
from multigrad.trace.active_rules import KeySource
from multigrad.trace.lookups import all_at_present

from .. import versions
from ..kernels import random
from .activation_calls import reads_numbers
from .dynamo_guards import EPOCH, JIT, JIT_NUMBERS_AS_INPUTS, MIRROR, ApplicationCount

Tensor: TypeAlias = Any


def jit(fn: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Return torch.compile(fn), with the numbers and keys of the rule in force as inputs.

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
        rule = pass_as_inputs(active.activations)
        # One compiled function per rule and epoch, so that changes of rules do not use up
        # recompile_limit.
        structure = f"{rule.token}~{EPOCH.text}"
        if structure not in compiled:
            compiled[structure] = torch.compile(copy_code(fn), **options)
        with mirroring(active, rule):
            return compiled[structure](*args, **kwargs)

    return call


def copy_code(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return fn within a code object of its own: Dynamo limits the graphs of each."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    run.__code__ = run.__code__.replace(co_name=getattr(fn, "__name__", "run"))
    return run


@dataclass(frozen=True, slots=True)
class JitRule:
    """A rule in force as compiled code sees it under `xg.jit`.

    Attributes:
        token: names the rule, without its numbers if they are inputs.
        exact: the same with its numbers, for code that asks for them.
        inputs: the numbers, the key's words, the next application's number; see
            `activation_calls.py`.
    """

    token: str
    exact: str
    inputs: tuple[Tensor, Tensor, Tensor]


def pass_as_inputs(in_force: RuleInForce | None) -> JitRule:
    """Return the rule in force with its numbers and key as tensors."""
    numbers: tuple[Any, ...] = ()
    words, start, keyed = torch.zeros(2, dtype=torch.int64, device="cpu"), 0, ""
    token = exact = f"{JIT}-"
    if in_force is not None:
        if in_force.counter is not None:
            key = key_for(load_backend("torch"), in_force.key)
            words, start, keyed = random.key_words(key), in_force.counter.count, "@"
        token = exact = f"{JIT}{in_force.own_token}{keyed}"
        if not reads_numbers(in_force):
            numbers = in_force.values
            token = f"{JIT_NUMBERS_AS_INPUTS}{in_force.specialization.id}{keyed}"
    # All in one tensor: Dynamo (torch 2.13) turns 0-d float64 inputs into scalars when it retraces.
    packed = torch.tensor([float(number) for number in numbers], dtype=torch.float64, device="cpu")
    return JitRule(token, exact, (packed, words, torch.tensor(start, device="cpu")))


@contextmanager
def mirroring(active: ActiveRules, rule: JitRule) -> Iterator[None]:
    """Mirror a rule under `xg.jit`; its counter ends where eager code would leave it."""
    in_force, applications = active.activations, ApplicationCount()
    before = MIRROR.token, MIRROR.exact_token, MIRROR.jit_inputs, MIRROR.applications
    with ExitStack() as stack:
        # Eager code after a graph break reads the same rules.
        if active is not CURRENT.get():
            stack.callback(CURRENT.reset, CURRENT.set(active))
        if in_force is not None and in_force.counter is not None:
            # Eager code after a graph break continues the count of compiled code.
            counter = SharedCounter(in_force.counter.count, applications)
            inner = in_force.with_draws(KeySource(in_force.key, counter))
            stack.callback(CURRENT.reset, CURRENT.set(replace(active, activations=inner)))
        MIRROR.token, MIRROR.exact_token = rule.token, rule.exact
        MIRROR.jit_inputs, MIRROR.applications = rule.inputs, applications
        try:
            yield
        finally:
            MIRROR.token, MIRROR.exact_token, MIRROR.jit_inputs, MIRROR.applications = before
            if in_force is not None and in_force.counter is not None:
                in_force.counter.advance(applications.number)


class SharedCounter:
    """Counts applications in eager code and compiled code together."""

    def __init__(self, start: int, applications: ApplicationCount) -> None:
        self.start = start
        self.applications = applications

    @property
    def count(self) -> int:
        return self.start + self.applications.number

    def __next__(self) -> int:
        n = self.count
        self.applications.number += 1
        return n

    def advance(self, number: int) -> None:
        self.applications.number += number
