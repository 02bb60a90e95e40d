"""Arguments of Functions in compiled code: described as constants, from which the like is made.

Dynamo passes only constants to code outside the trace. So `describe` turns arguments into nested
plain tuples, of which the first word says what follows:

    ("tensor", dtype, shape, requires_grad, device type)
    ("number",)                                     a float that Dynamo has as a symbol
    ("value", the value itself)                     all other numbers, made concrete
    ("tuple", "list" or "Size", descriptions)       another word is a namedtuple's: refused
    ("dict", names in order, descriptions)

A shape is the number of axes; the tuple of lengths only where these were asked for, because Dynamo
guards on what is read.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeAlias

import torch

from multigrad.core.functions.facts import SOME_LENGTH
from multigrad.errors import MultigradError

from ..core.compile.calls import OpenNumber, make_concrete, stand_in
from ..core.compile.compile import as_input, facts_of, is_fixed

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
        return ("tensor", *facts_of(value, shape))
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


# --- outside the trace ---------------------------------------------------------------------------


def restore(described: Any) -> Any:
    """Return arguments like those described, with meta tensors, which have no values."""
    match described:
        case ("tensor", *facts):
            return stand_in(*facts)
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
