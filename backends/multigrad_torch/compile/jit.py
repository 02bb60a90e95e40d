"""`xg.jit`: torch.compile with the numbers and keys of the rule in force as inputs.

Compiled code reads them from `MIRROR`, whose token then says that they are inputs, so that Dynamo
guards on the rule alone. `calls.py` says how calls take them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from multigrad.core.backend.discovery import load_backend
from multigrad.core.rules.context import CURRENT, ActiveRules, RuleInForce
from multigrad.core.trace.active_rules import KeySource
from multigrad.core.trace.trace import setting
from multigrad.engine.trace.moving_numbers import all_at_present
from multigrad.engine.trace.random_keys import key_for

from .. import releases
from ..core.compile.dynamo_guards import EPOCH, MIRROR, reads_numbers
from ..kernels import random

Tensor: TypeAlias = torch.Tensor


def jit(fn: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Return torch.compile(fn), with the numbers and keys of the rule in force as inputs."""
    if not releases.has("xg.jit"):
        raise releases.refuse("xg.jit", "call the function itself")
    compiled: dict[str, Callable[..., Any]] = {}

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return fn(*args, **kwargs)
        active = all_at_present(CURRENT.get(), load_backend("torch"))
        token, exact_token, inputs = pass_as_inputs(active.activations)
        # One compiled function per rule and epoch: changes of rules do not use up recompile_limit.
        structure = f"{token}~{EPOCH.text}"
        if structure not in compiled:
            compiled[structure] = torch.compile(copy_code(fn), **options)
        with mirroring(active, token, exact_token, inputs):
            return compiled[structure](*args, **kwargs)

    return call


def copy_code(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return fn within a code object of its own: Dynamo limits the graphs of each."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    run.__code__ = run.__code__.replace(co_name=getattr(fn, "__name__", "run"))
    return run


def pass_as_inputs(in_force: RuleInForce | None) -> tuple[str, str, tuple[Tensor, ...]]:
    """Return the token, exact token and inputs of `MIRROR` for a rule under xg.jit."""
    numbers: tuple[Any, ...] = ()
    words, start, key_mark = torch.zeros(2, dtype=torch.int64, device="cpu"), 0, ""
    token = exact = "xg.jit -"
    if in_force is not None:
        if in_force.counter is not None:
            key = key_for(load_backend("torch"), in_force.key)
            words, start, key_mark = random.key_words(key), in_force.counter.count, "@"
        token = exact = f"xg.jit {in_force.own_token}{key_mark}"
        if not reads_numbers(in_force):
            numbers = in_force.values
            token = f"xg.jit(*) {in_force.specialization.id}{key_mark}"
    # All in one tensor: Dynamo (torch 2.13) turns 0-d float64 inputs into scalars when it retraces.
    tensor = torch.tensor([float(number) for number in numbers], dtype=torch.float64, device="cpu")
    return token, exact, (tensor, words, torch.tensor(start, device="cpu"))


class ApplicationCount:
    """Counts the applications within one `xg.jit` call whose key is an input: each draws anew.

    Eager code, after a graph break, counts on from what compiled code has added to `number`.
    """

    def __init__(self, start: int = 0) -> None:
        self.start, self.number = start, 0

    @property
    def count(self) -> int:
        return self.start + self.number

    def __next__(self) -> int:
        n = self.count
        self.number += 1
        return n

    def advance(self, number: int) -> None:
        self.number += number


@contextmanager
def mirroring(
    active: ActiveRules, token: str, exact_token: str, inputs: tuple[Tensor, ...]
) -> Iterator[None]:
    """Mirror a rule under `xg.jit`; its counter ends where eager code would leave it."""
    in_force, applications = active.activations, ApplicationCount()
    counter = None if in_force is None else in_force.counter
    with ExitStack() as stack:
        # Eager code after a graph break reads the same rules.
        if active is not CURRENT.get():
            stack.callback(CURRENT.reset, CURRENT.set(active))
        if in_force is not None and counter is not None:
            applications.start = counter.count
            counted_rule = in_force.with_draws(KeySource(in_force.key, applications))
            stack.callback(CURRENT.reset, CURRENT.set(replace(active, activations=counted_rule)))
        state = {"token": token, "jit_token": token, "exact_token": exact_token}
        try:
            with setting(MIRROR, applications=applications, jit_inputs=inputs, **state):
                yield
        finally:
            if counter is not None:
                counter.advance(applications.number)
