"""Arguments of calls in compiled code: described as constants, from which `prepare` makes the like.

Dynamo passes only constants to code outside the trace. So `describe` turns arguments into nested
plain tuples, of which the first word says what follows:

    ("tensor", dtype, shape, requires_grad, device type)
    ("number",)                                     a float that Dynamo has as a symbol
    ("value", the value itself)                     all other numbers, made concrete
    ("tuple", "list" or "Size", descriptions)       another word is a namedtuple's: refused
    ("dict", names in order, descriptions)

A shape is the number of axes; the tuple of lengths only where `prepare` has asked for it, because
Dynamo guards on what is read.

What traced code is told is one of the objects at the end, by its name in CALLS: an answer, too,
crosses as a constant, and traced code reads the object: `getattr(CALLS, prepare(...))`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import torch

from multigrad.core.functions.facts import SOME_LENGTH
from multigrad.errors import MultigradError

from ..attach import host
from ..dynamo import Namespace, allow_in_graph
from ..versions import is_exporting

Tensor: TypeAlias = torch.Tensor
new_numbers = itertools.count()  # of applications and of names: no two are equal
# Types that Dynamo takes as constants, or that `describe` takes apart.
PLAIN = (
    *(torch.Tensor, tuple, list, dict, str, bytes, int, float, complex, type(None), slice, range),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, Enum),
)


# --- in traced code ------------------------------------------------------------------------------


def is_object(value: Any) -> bool:
    if isinstance(value, PLAIN):  # of a dict, Dynamo cannot ask whether it is callable
        return False
    return isinstance(value, torch.nn.Module) or not callable(value)


def describe(
    value: Any,
    tensors: list[Tensor],
    lengths: tuple[bool, ...] | None,
    numbers: list[Tensor] | None = None,
) -> Any:
    """Return the description of an argument, and append its tensors to `tensors` in order.

    Args:
        lengths: for each tensor, whether the description has its lengths. A compiled call is for
            these alone; of other tensors it has the rank, as the size of a batch may change. None:
            of all, with some number for a length that Dynamo leaves open.
        numbers: floats that have changed between calls are appended to it as tensors, so that one
            graph is for all; None: they are made concrete.
    """
    if isinstance(value, torch.Tensor):
        shape: Any = value.ndim
        if lengths is None:
            shape = tuple([make_concrete(n) if is_fixed(n) else SOME_LENGTH for n in value.shape])
        elif len(tensors) < len(lengths) and lengths[len(tensors)]:
            shape = tuple([make_concrete(n) for n in value.shape])
        tensors.append(value)
        # Under a transform, and in forward mode, tensors that are differentiated do not say so.
        requires_grad = host.requires_grad(value)
        return ("tensor", value.dtype, shape, requires_grad, value.device.type)
    if isinstance(value, tuple | list):
        inner = [describe(each, tensors, lengths, numbers) for each in value]
        return (type(value).__name__, tuple(inner))
    if isinstance(value, dict):
        names = sorted(value)
        inner = [describe(value[name], tensors, lengths, numbers) for name in names]
        return ("dict", tuple(names), tuple(inner))
    if isinstance(value, float) and numbers is not None and not is_fixed(value):
        numbers.append(as_input(value))
        return ("number",)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return ("value", make_concrete(value))
    return ("value", value)


def make_concrete(n: Any) -> Any:
    """Return a number itself: Dynamo makes a symbol of one that has changed between calls."""
    return torch.fx.experimental.symbolic_shapes.guard_scalar(n)


def as_input(number: float) -> Tensor:
    # By a product: for torch.tensor(number) and its like Dynamo makes a graph per number (2.13).
    return torch.ones((), dtype=torch.float64, device="cpu") * number


def is_fixed(n: Any) -> bool:
    """Return whether a number is not left open, by Dynamo or by an exporter."""
    return torch.fx.experimental.symbolic_shapes.has_static_value(n)


# --- outside the trace ---------------------------------------------------------------------------


class OpenNumber:
    """Stands for a number that is not known: an input of the graph."""


def restore(described: Any) -> Any:
    """Return arguments like those described, with meta tensors, which have no values."""
    match described:
        case ("tensor", dtype, shape, requires_grad, device_type):
            lengths = (1,) * shape if isinstance(shape, int) else shape
            tensor = torch.empty(lengths, dtype=dtype, device="meta", requires_grad=requires_grad)
            setattr(tensor, host.STANDS_ON, device_type)
            return tensor
        case ("number",):
            return OpenNumber()
        case ("value", value):
            return value
        case ("dict", names, inner):
            return dict(zip(names, map(restore, inner), strict=True))
        case ("tuple", inner):
            return tuple(map(restore, inner))
        case ("Size", inner):
            return torch.Size(map(restore, inner))
        case ("list", inner):
            return list(map(restore, inner))
        case _:
            raise MultigradError(f"compiled code takes no {described[0]} of tensors")


def shapes_in(described: Any) -> list[Any]:
    """Return of each tensor, in order, the lengths if they are described, otherwise the rank."""
    match described:
        case ("tensor", _, shape, _, _):
            return [shape]
        case ("value", _) | ("number",):
            return []
        case _:
            return [shape for each in described[-1] for shape in shapes_in(each)]


def has_keywords(described: Any) -> bool:
    """Return whether a Function's `(args, kwargs)` as described have any of the latter."""
    _, (_, (_, names, _)) = described
    return bool(names)


# --- answers: names in CALLS are given in `keep` alone --------------------------------------------
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


# Names of answers, by everything that an answer depends on: what a key leaves out is silently
# shared.
NAMES: dict[object, str] = {}
CALLS = Namespace()


class Answered(Exception):
    """Raised where the answer is known before a call is made."""

    def __init__(self, answer: Any) -> None:
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
# What an export that asks for operators has met (`export.Notes`); None while there is none.
NOTES: ContextVar[Any] = ContextVar("notes", default=None)


def asks_for_operators() -> bool:
    """Return whether an export runs whose calls must be operators."""
    return is_exporting() and NOTES.get() is not None
