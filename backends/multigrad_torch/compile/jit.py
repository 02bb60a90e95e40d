"""`xg.jit`: torch.compile with the numbers and keys of the rule in force as inputs.

Compiled code reads them from `MIRROR`, whose token then says that they are inputs, so that Dynamo
guards on the rule alone. `calls.py` says how calls take them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from multigrad.core.backend.discovery import load_backend
from multigrad.core.rules.context import CURRENT, ActiveRules, RuleInForce
from multigrad.core.trace.active_rules import KeySource
from multigrad.core.trace.trace import setting
from multigrad.engine.trace.moving_numbers import all_at_present
from multigrad.engine.trace.random_keys import key_for

from .. import releases
from ..core.compile.dynamo_guards import EPOCH, MIRROR, as_line, reads_numbers
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
        jit = pass_as_inputs(active.activations)
        # One compiled function per rule and epoch: changes of rules do not use up recompile_limit.
        structure = f"{jit.token}~{EPOCH.text}"
        if structure not in compiled:
            compiled[structure] = torch.compile(copy_code(fn), **options)
        with mirroring(active, jit):
            return compiled[structure](*args, **kwargs)

    return call


def copy_code(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return fn within a code object of its own: Dynamo limits the graphs of each."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    run.__code__ = run.__code__.replace(co_name=getattr(fn, "__name__", "run"))
    return run


@dataclass(slots=True, eq=False)
class JitCall:
    """A call of `xg.jit`, and what it passes to compiled code.

    Attributes:
        token: names the active rules, without the numbers that are inputs.
        exact_token: names them with these numbers; it is `token` if there are none.
        numbers: the numbers of the rule in force, in one tensor.
        key: the words of the key, and at which number the count of applications starts; else empty.
        applications: the count of those of random rules within this call.
    """

    token: str
    exact_token: str
    numbers: Tensor
    key: tuple[Tensor, ...]
    applications: ApplicationCount


def pass_as_inputs(in_force: RuleInForce | None) -> JitCall:
    """Return the inputs that a call under xg.jit passes to compiled code."""
    applications, key, numbers = ApplicationCount(), (), ()
    token = exact_token = "xg.jit -"
    if in_force is not None:
        mark = ""
        if in_force.counter is not None:
            applications.start, mark = in_force.counter.count, "@"
            words = random.key_words(key_for(load_backend("torch"), in_force.key))
            key = words, torch.tensor(applications.start, device="cpu")
        token = exact_token = f"xg.jit {in_force.own_token}{mark}"
        if not reads_numbers(in_force):
            numbers = in_force.values
            token = f"xg.jit(*) {in_force.specialization.id}{mark}"
    return JitCall(token, exact_token, as_line(list(map(float, numbers))), key, applications)


class ApplicationCount:
    """Counts the applications within one `xg.jit` call whose key is an input: each draws anew.

    Eager code, after a graph break, counts on from what compiled code has added to `number`.
    """

    def __init__(self) -> None:
        self.start = self.number = 0

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
def mirroring(active: ActiveRules, jit: JitCall) -> Iterator[None]:
    """Mirror a rule under `xg.jit`; its counter ends where eager code would leave it."""
    in_force = active.activations
    counter = None if in_force is None else in_force.counter
    with ExitStack() as stack:
        # Eager code after a graph break reads the same rules.
        if active is not CURRENT.get():
            stack.callback(CURRENT.reset, CURRENT.set(active))
        if in_force is not None and counter is not None:
            counted_rule = in_force.with_draws(KeySource(in_force.key, jit.applications))
            stack.callback(CURRENT.reset, CURRENT.set(replace(active, activations=counted_rule)))
        try:
            with setting(MIRROR, token=jit.token, jit=jit):
                yield
        finally:
            if counter is not None:
                counter.advance(jit.applications.number)
