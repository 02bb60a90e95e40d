"""What a gradient function returned, as one gradient for each leaf of the arguments.

Gradients may come flat (one for each tensor, or for each argument) or structured like the arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import GradientError
from ..ir.constants import lift_array
from ..ir.record import NeedFact, Trace, Value
from ..ir.types import BOOL, INPUT_SHAPE, UNKNOWN, Type
from ..trees import optree
from .arguments import Layout, Leaf

Tensor = Any
CONTAINERS = (tuple, list, dict)


def match_gradients(function: str, returned: Any, layout: Layout) -> list[Any]:
    """Return a gradient (or None) for each leaf of the arguments.

    Raises:
        GradientError: their number or nesting fits neither the arguments nor their leaves.
    """
    leaves = layout.leaves
    tensors = layout.indices("tensor")
    args, kwargs = layout.rebuild(range(len(leaves)))
    structured = _match_structure(returned, args, kwargs, len(leaves))
    if structured is not None:
        return structured
    flat = optree.tree_leaves(returned, none_is_leaf=True)
    floats = tuple(i for i in tensors if leaves[i].is_float or leaves[i].dtype == "T")
    everything = tuple(range(len(leaves)))
    for targets in (everything, everything[: layout.positional], tensors, floats):
        if len(flat) == len(targets):
            gradients: list[Any] = [None] * len(leaves)
            for i, gradient in zip(targets, flat, strict=True):
                gradients[i] = gradient
            return gradients
    count = "1 gradient" if len(flat) == 1 else f"{len(flat)} gradients"
    paths = ", ".join(leaf.path for leaf in leaves)
    raise GradientError(
        f"function {function!r} returned {count} for {len(leaves)} arguments ({paths}); "
        f"expected one for each, None where there is none"
    )


def _match_structure(
    returned: Any, args: tuple[Any, ...], kwargs: dict[str, Any], count: int
) -> list[Any] | None:
    """Return the gradients where they are nested like the arguments, else None."""
    if isinstance(returned, list):
        returned = tuple(returned)
    candidates: list[tuple[Any, Any]] = []
    if isinstance(returned, tuple):
        if kwargs and len(returned) == len(args) + 1 and isinstance(returned[-1], dict):
            candidates.append(((*args, kwargs), returned))
        if len(returned) == len(args):
            candidates.append((args, returned))
    if len(args) == 1 and not kwargs:
        candidates.append(((args[0],), (returned,)))
    for shape, given in candidates:
        gradients: list[Any] = [None] * count
        if _assign(shape, given, gradients):
            return gradients
    return None


def _assign(shape: Any, given: Any, gradients: list[Any]) -> bool:
    """Write the gradients of a part of the arguments to their leaves; False where the nesting differs."""
    if isinstance(shape, int):
        if isinstance(given, CONTAINERS):
            return False
        gradients[shape] = given
        return True
    if given is None:
        return True
    if isinstance(shape, dict):
        if not isinstance(given, dict) or not given.keys() <= shape.keys():
            return False
        return all(_assign(shape[name], given[name], gradients) for name in given)
    if isinstance(shape, list | tuple):
        if not isinstance(given, list | tuple) or len(given) != len(shape):
            return False
        return all(_assign(a, b, gradients) for a, b in zip(shape, given, strict=True))
    if type(shape) is not type(given):  # a registered node: as a whole
        return False
    inner, other = (optree.tree_leaves(tree, none_is_leaf=True) for tree in (shape, given))
    return len(inner) == len(other) and all(
        _assign(a, b, gradients) for a, b in zip(inner, other, strict=True)
    )


def check_gradient(trace: Trace, leaf: Leaf, type_: Type, gradient: Any) -> Value | None:
    """Return a gradient as a symbolic value of its argument's type; None where there is none.

    Raises:
        GradientError: it has another dtype, or surely another shape.
    """
    if gradient is None:
        return None
    whose = f"function {trace.name!r} returned"
    if not isinstance(gradient, Value):
        if isinstance(gradient, bool | int | float | str | bytes) or callable(gradient):
            raise GradientError(
                f"{whose} {gradient!r:.60} as the gradient of argument {leaf.path!r}; expected a tensor "
                f"of its shape, such as xp.zeros_like({leaf.path}), or None"
            )
        gradient = trace.value(lift_array(trace, gradient))
    given = gradient.node.type
    if given.kind == "scalar":
        raise GradientError(
            f"{whose} a number as the gradient of argument {leaf.path!r}; expected a tensor of its "
            f"shape: xp.full_like({leaf.path}, number)"
        )
    known = UNKNOWN not in (given.shape, type_.shape)
    if known and given.shape != type_.shape:
        raise GradientError(
            f"{whose} a gradient of {describe(given)} for argument {leaf.path!r}, whose shape is "
            f"{describe(type_)}; expected the same shape"
        )
    if given.dtype == BOOL:
        raise GradientError(
            f"{whose} bools as the gradient of argument {leaf.path!r}; multiply by the upstream gradient"
        )
    if given.dtype != type_.dtype:
        facts = trace.facts
        if "dtype" not in facts:
            raise NeedFact("dtype")
        actual = [facts["dtype"] if t.dtype == "T" else t.dtype for t in (given, type_)]
        if actual[0] != actual[1]:
            raise GradientError(
                f"{whose} a {actual[0]} gradient for argument {leaf.path!r} of {actual[1]}; cast it back"
            )
    return gradient


def describe(type_: Type) -> str:
    """Return a type's shape in words."""
    if type_.shape == INPUT_SHAPE:
        return "the first tensor's shape"
    return "one number" if type_.shape == () else f"[{type_}]"


def names_of(layout: Layout, indices: Sequence[int]) -> tuple[str, ...]:
    """Return the names of leaves."""
    return tuple(layout.leaves[i].name for i in indices)
