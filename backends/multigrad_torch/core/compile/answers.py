"""What traced code is told about a call: one of the objects here, by its name in CALLS.

Dynamo takes from outside the trace only constants, so an answer crosses as its name, and traced
code reads the object: `getattr(CALLS, prepare(...))`. Names are given in `keep` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from ..dynamo import Namespace, allow_in_graph
from ..versions import is_exporting
from .arguments import new_numbers

MOST_ANSWERS = 4096  # then all are forgotten


@dataclass(frozen=True, slots=True)
class CompiledCall:
    """A call in compiled code.

    Attributes:
        plain: returns the outputs, as the class returns them.
        in_graph: the same, under torch.func transforms.
        is_operator: whether it is an operator of torch with its own gradient, for an export.
        counts_applications: whether it folds its number among the applications of one `xg.jit` call
            into a key that is an input.
        takes_tensors: whether an activation takes the tensors among the params of the rule in force
            (`MIRROR.param_tensors`), after its input.
        own_tensors: those of its own rule, which it takes instead.
        assemble: restores the nesting of a Function's outputs.
    """

    plain: Callable[..., Any]
    in_graph: Callable[..., Any]
    is_operator: bool = False
    counts_applications: bool = False
    takes_tensors: bool = False
    own_tensors: tuple[Any, ...] = ()
    assemble: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        allow_in_graph(self.in_graph)


@dataclass(frozen=True, slots=True)
class OwnClass:
    """A Function's own class, which Dynamo reads.

    Attributes:
        takes_copies: whether it takes and gives copies of tensors.
    """

    cls: type[torch.autograd.Function]
    takes_copies: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """No call: eager code runs after a graph break, and raises the reason again."""

    reason: str


@dataclass(frozen=True, slots=True)
class More:
    """`prepare` has to be told more, on which Dynamo then guards.

    Attributes:
        lengths: for each tensor, whether its lengths are needed, besides its rank.
        rules: the active rules, and the registry's epoch.
        rule_numbers: under `xg.jit`, the numbers of the rule in force.
        values: the numbers among the arguments that Dynamo leaves open.
        watches: functions that read what the code reads besides its arguments.
    """

    lengths: tuple[bool, ...] = ()
    rules: bool = False
    rule_numbers: bool = False
    values: bool = False
    watches: tuple[Callable[[], Any], ...] = ()


Answer: TypeAlias = CompiledCall | OwnClass | Refused | More
# Names of answers, by everything that an answer depends on: what a key leaves out is silently
# shared.
NAMES: dict[object, str] = {}
CALLS = Namespace()


class Answered(Exception):
    """Raised where the answer is known before a call is made."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self.answer = answer


def keep(answer: object, key: object = None) -> str:
    """Return the name in CALLS of an answer, by its key or by what it says."""
    if len(NAMES) >= MOST_ANSWERS:
        # Both together: a name without its answer would be an AttributeError in traced code.
        NAMES.clear()
        vars(CALLS).clear()
    name = NAMES.setdefault(key or answer, f"{type(answer).__name__}_{next(new_numbers)}")
    setattr(CALLS, name, answer)
    return name


# --- what an export asks --------------------------------------------------------------------------
@dataclass(slots=True)
class Notes:
    """What an export meets: errors in order, and the Functions whose operators are for lengths."""

    errors: list[Exception] = field(default_factory=list)
    sized: set[str] = field(default_factory=set)


# None while no export that asks for operators runs.
NOTES: ContextVar[Notes | None] = ContextVar("notes", default=None)


def asks_for_operators() -> bool:
    """Return whether an export runs whose calls must be operators."""
    return is_exporting() and NOTES.get() is not None


def note_refused(error: Exception) -> None:
    """Note the error of a call that cannot be an operator, while tracing goes on."""
    notes = NOTES.get()
    if notes is not None:
        notes.errors.append(error)


def note_sized(subject: str) -> None:
    """Note a Function that asks for lengths, for which alone its operator is."""
    notes = NOTES.get()
    if notes is not None:
        notes.sized.add(subject)
