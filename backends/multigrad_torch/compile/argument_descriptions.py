"""Arguments as constants: traced code describes them, and `prepare` makes the like from that.

Dynamo passes only constants to code outside the trace. So `describe` turns arguments into nested
plain tuples, of which the first word says what follows:

    ("tensor", dtype, shape, requires_grad, device type)
    ("value", the value itself)                     also numbers, made concrete
    ("tuple" or "list", descriptions)               another word is a namedtuple's: refused
    ("dict", names in order, descriptions)

A shape is the number of axes; the tuple of lengths only where `prepare` has asked for it, because
Dynamo guards on what is read.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeAlias

import torch

from multigrad.errors import MultigradError

from ..dialect import introspection

Tensor: TypeAlias = Any
# Types that Dynamo takes as constants, or that `describe` takes apart.
PLAIN = (
    *(torch.Tensor, tuple, list, dict, str, bytes, int, float, complex, type(None), slice, range),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, Enum),
)


# --- in traced code ------------------------------------------------------------------------------


def is_object(value: Any) -> bool:
    """Return whether an argument is not one of the constants that Dynamo knows."""
    return not (isinstance(value, PLAIN) or callable(value))


def describe(value: Any, tensors: list[Tensor], has_lengths: bool) -> Any:
    """Return the description of an argument, and append its tensors to `tensors` in order."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        shape = tuple([make_concrete(n) for n in value.shape]) if has_lengths else value.ndim
        # Under a transform, tensors that are differentiated do not say so.
        requires_grad = value.requires_grad or (
            value.is_floating_point() and torch._C._are_functorch_transforms_active()
        )
        return ("tensor", value.dtype, shape, requires_grad, value.device.type)
    if isinstance(value, tuple | list):
        inner = [describe(each, tensors, has_lengths) for each in value]
        return (type(value).__name__, tuple(inner))
    if isinstance(value, dict):
        names = sorted(value)
        inner = [describe(value[name], tensors, has_lengths) for name in names]
        return ("dict", tuple(names), tuple(inner))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return ("value", make_concrete(value))
    return ("value", value)


def make_concrete(n: Any) -> Any:
    """Return a number itself: Dynamo makes a symbol of one that has changed between calls."""
    return torch.fx.experimental.symbolic_shapes.guard_scalar(n)


# --- outside the trace ---------------------------------------------------------------------------


def restore(described: Any) -> Any:
    """Return arguments like those described, with meta tensors, which have no values."""
    match described:
        case ("tensor", dtype, shape, requires_grad, device_type):
            lengths = (1,) * shape if isinstance(shape, int) else shape
            tensor = torch.empty(lengths, dtype=dtype, device="meta", requires_grad=requires_grad)
            return introspection.stand_on(tensor, device_type)
        case ("value", value):
            return value
        case ("dict", names, inner):
            return dict(zip(names, map(restore, inner), strict=True))
        case ("tuple", inner):
            return tuple(map(restore, inner))
        case ("list", inner):
            return list(map(restore, inner))
        case _:
            raise MultigradError(f"compiled code takes no {described[0]} of tensors")


def has_lengths(described: Any) -> bool:
    """Return whether each tensor of a description has its lengths."""
    match described:
        case ("tensor", _, shape, _, _):
            return isinstance(shape, tuple)
        case ("value", _):
            return True
        case _:
            return all(map(has_lengths, described[-1]))


def has_keywords(described: Any) -> bool:
    """Return whether a Function's `(args, kwargs)` as described have any of the latter."""
    _, (_, (_, names, _)) = described
    return bool(names)
