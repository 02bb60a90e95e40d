"""Keys of random code in compiled code, and the numbers of its applications."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch

from multigrad.core.backend.discovery import load_backend
from multigrad.core.rules.context import RuleInForce
from multigrad.core.trace.active_rules import KeySource

from ..core.compile.calls import KeyArgument, new_numbers
from ..core.dynamo import at_import
from ..kernels import random
from ..releases import custom_op


# --- keys -----------------------------------------------------------------------------------------
# A call of random code takes its key as the last argument. Where that comes from:
#
#     no key was given     `draw_key()`, which draws from torch's generator when the code runs
#     a key                a literal, drawn while Dynamo traces. The call is that of one application
#                          only, so `number_application` makes it a part of what the call depends on
#     a key, under xg.jit  `fold_in_from(key, start, application)` of the last three inputs, of
#                          which the last counts the applications within the graph
#
# The functions return its source, and the objects that this names.
def draw_key_argument(draws: KeySource) -> KeyArgument:
    """Return the key of a call; a key that is a literal is drawn now."""
    if draws.counter is None:
        return "draw_key()", {"draw_key": random.draw_key}
    key = draws.next_key(load_backend("torch"))
    return repr(key) if isinstance(key, tuple) else "key", {"key": key}


def key_of_application(in_force: RuleInForce, is_under_jit: bool) -> tuple[KeyArgument, bool]:
    """Return the key of an activation's call, and whether it folds the call's number into one."""
    if is_under_jit and in_force.counter is not None:
        names = {"fold_in_from": torch.ops.multigrad.fold_in_from.default}
        return ("fold_in_from(*inputs[-3:])", names), True
    return draw_key_argument(in_force.draws), False


def fold_in_from(key: torch.Tensor, start: torch.Tensor, n: int) -> torch.Tensor:
    return random.fold_in_words(key, int(start) + n)


@at_import
def register_operator() -> None:
    schema = "(Tensor key, Tensor start, SymInt n) -> Tensor"
    operator = custom_op("multigrad::fold_in_from", schema)(fold_in_from)
    operator.register_fake(lambda key, start, n: torch.empty_like(key))


# --- numbers of applications under a key ----------------------------------------------------------
# Dynamo may give up a trace and start again. The restart has to find the numbers of the first
# attempt again, or each attempt would draw others.


@dataclass(slots=True)
class KeyedCompilation:
    """The numbers of the applications under one key in one compilation, which may restart.

    Attributes:
        context: Dynamo's compilation; it stays the same at a restart.
        counter: the key's own.
        attempt: Dynamo's count of attempts at the last application.
        reached: how many applications the present attempt has met.
        applications: their numbers, in order; those after `reached` are from an earlier attempt.
    """

    context: Any  # torch._guards.CompileContext
    counter: Any
    attempt: int = -1
    reached: int = 0
    applications: list[int] = field(default_factory=list)

    def next_application(self) -> int:
        """Return the next application's number, a new one if no earlier attempt got this far."""
        if self.attempt != self.context.attempt:
            self.attempt, self.reached = self.context.attempt, 0
        if self.reached == len(self.applications):
            self.applications.append(next(new_numbers))
        self.reached += 1
        return self.applications[self.reached - 1]

    def take_unused(self) -> list[int]:
        """Take the numbers that the last attempt did not use: their code went to a new frame."""
        used = self.reached if self.context.attempt == self.attempt else 0
        unused, self.applications = self.applications[used:], self.applications[:used]
        return unused


# The last compilations only: Dynamo tells nobody when one is done.
_compilations: deque[KeyedCompilation] = deque(maxlen=8)


def number_application(counter: Any) -> int:
    """Return an application's number: new, or that of the same one in an earlier attempt."""
    context = torch._guards.CompileContext.try_get()
    if context is None:
        return next(new_numbers)
    for compilation in _compilations:
        if compilation.context is context and compilation.counter is counter:
            return compilation.next_application()
    # A frame after a graph break is a compilation of its own, and goes on where the last one ended.
    unused = [n for c in _compilations if c.counter is counter for n in c.take_unused()]
    _compilations.append(KeyedCompilation(context, counter, applications=unused))
    return _compilations[-1].next_application()
