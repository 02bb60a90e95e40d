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
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import torch

from multigrad.core.backend.discovery import load_backend
from multigrad.core.functions.facts import SOME_LENGTH
from multigrad.core.trace.random_keys import KeySource
from multigrad.errors import MultigradError

from ..attach import host
from ..dynamo import at_import
from ..kernels import random
from ..versions import custom_op

Tensor: TypeAlias = torch.Tensor
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


# --- keys -----------------------------------------------------------------------------------------
# A call of random code takes its key as the last argument. Where that comes from:
#
#     no key was given     `draw_key()`, which draws from torch's generator when the code runs
#     a key                a literal, drawn while Dynamo traces. The call is that of one application
#                          only, so `number_application` makes it a part of what the call depends on
#     a key, under xg.jit  `fold_in_from(key, start, application)`: the first two are inputs of the
#                          graph, the last counts the applications within it
#
# The functions return its source, and the objects that this names.
def draw_key_argument(draws: KeySource) -> tuple[str, dict[str, Any]]:
    """Return the key of a call; a key that is a literal is drawn now."""
    if draws.counter is None:
        return "draw_key()", {"draw_key": random.draw_key}
    key = draws.next_key(load_backend("torch"))
    return repr(key) if isinstance(key, tuple) else "key", {"key": key}


def fold_key_argument(key: str, start: str, application: str) -> tuple[str, dict[str, Any]]:
    """Return the key of a call under `xg.jit`, where the key and the count's start are inputs."""
    names = {"fold_in_from": torch.ops.multigrad.fold_in_from.default}
    return f"fold_in_from({key}, {start}, {application})", names


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

new_numbers = itertools.count()  # of applications and of names: no two are equal


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
