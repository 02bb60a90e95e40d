"""Gradients as a gradient function returns them, matched to the arguments.

They may come flat (one for each tensor, or for each argument) or structured like the arguments.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from ....core.functions.arguments import Layout
from ....core.ir.op import T
from ....core.support.trees import optree
from ....core.trace.trace import Value
from ....errors import GradientError
from ...trace.contents import with_own_classes
from .arguments import PLAIN, Forgotten, replace_at

CONTAINERS = (tuple, list, dict)


def match_gradients(function: str, returned: Any, layout: Layout) -> list[Any]:
    """Return a gradient (or None) for each leaf of the arguments."""
    leaves = layout.leaves
    returned = with_own_classes(returned)
    args, kwargs = layout.rebuild(range(len(leaves)))
    # Keywords that hold floats wait for gradients too.
    floats = [i for i, leaf in enumerate(leaves) if leaf.is_float or leaf.dtype == T]
    count = len(optree.tree_leaves(args, none_is_leaf=True))  # of those by position
    has_keywords = any(i >= count for i in floats)
    by_structure = _match_structure(returned, args, kwargs, len(leaves), has_keywords)
    if by_structure is not None:
        return refuse_objects(function, by_structure, layout)
    flat = optree.tree_leaves(returned, none_is_leaf=True)
    everything = list(range(len(leaves)))
    positional = everything if has_keywords else everything[:count]
    # The first count that fits wins, from all leaves to the floats alone.
    for targets in (everything, positional, list(layout.indices("tensor")), floats):
        if len(flat) == len(targets):
            if len(flat) > 1:
                _refuse_unordered(function, args, kwargs)
            gradients = replace_at([None] * len(leaves), targets, flat)
            return refuse_objects(function, gradients, layout)
    words = "1 gradient" if len(flat) == 1 else f"{len(flat)} gradients"
    paths = ", ".join(leaf.path for leaf in leaves)
    raise GradientError(
        f"function {function!r} returned {words} for {len(leaves)} arguments ({paths}); expected "
        "one for each that is passed, None where there is none"
    )


def refuse_objects(function: str, gradients: list[Any], layout: Layout) -> list[Any]:
    """Return the gradients; raise if one is for an object whose tensors are not seen."""
    for leaf, gradient in zip(layout.leaves, gradients, strict=True):
        if gradient is None or leaf.kind != "static" or isinstance(leaf.value, PLAIN):
            continue
        value = leaf.value
        kind = value.kind if isinstance(value, Forgotten) else type(value).__name__
        raise GradientError(
            f"function {function!r} returned a gradient for argument {leaf.path!r}, a {kind}, "
            "whose tensors are not seen. Register its class with optree.register_pytree_node (a "
            "dataclass: decorate it with optree.dataclasses.dataclass), or pass its tensors as "
            "arguments"
        )
    return gradients


def _refuse_unordered(function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    dicts = [kwargs]

    def note_dict(node: Any) -> bool:
        if isinstance(node, dict) and not isinstance(node, OrderedDict):
            dicts.append(node)
        return False

    optree.tree_map(lambda _: None, args, is_leaf=note_dict)
    for mapping in dicts:
        names = [name for name, value in mapping.items() if optree.tree_leaves(value)]
        # Leaves come by sorted keys; keywords in the call's order, which its function cannot know.
        if len(names) > 1 and (mapping is kwargs or names != sorted(names, key=str)):
            example = ", ".join(f"{name!r}: ..." for name in names[:4])
            raise GradientError(
                f"function {function!r} returned flat gradients for arguments by name, which have "
                f"no order. Nest them like the arguments: {{{example}}}"
            )


def _match_structure(
    returned: Any, args: tuple[Any, ...], kwargs: dict[str, Any], count: int, named: bool
) -> list[Any] | None:
    if isinstance(returned, list):
        returned = tuple(returned)
    candidates: list[tuple[Any, Any]] = []
    if isinstance(returned, tuple):
        if kwargs and len(returned) == len(args) + 1 and isinstance(returned[-1], dict):
            candidates.append(((*args, kwargs), returned))
        # Keywords that wait for gradients rule out a tuple for those by position.
        if len(returned) == len(args) and not named:
            candidates.append((args, returned))
        is_pair = len(returned) == 2 and isinstance(returned[0], tuple | list)
        if kwargs and is_pair and isinstance(returned[1], dict):
            candidates.append(((args, kwargs), returned))
    if len(args) == 1 and not kwargs:
        candidates.append(((args[0],), (returned,)))
    for shape, nesting in candidates:
        gradients: list[Any] = [None] * count
        if _assign(shape, nesting, gradients):
            return gradients
    return None


def _assign(shape: Any, nesting: Any, gradients: list[Any]) -> bool:
    if isinstance(shape, int):
        if not isinstance(nesting, Value) and isinstance(nesting, CONTAINERS):
            return False
        gradients[shape] = nesting
        return True
    # No gradient for an argument is none for all its leaves.
    if nesting is None:
        return True
    if isinstance(shape, dict):
        if not isinstance(nesting, dict) or not nesting.keys() <= shape.keys():
            return False
        return all(_assign(shape[name], nesting[name], gradients) for name in nesting)
    if isinstance(shape, list | tuple):
        if not isinstance(nesting, list | tuple) or len(nesting) != len(shape):
            return False
        return all(_assign(a, b, gradients) for a, b in zip(shape, nesting, strict=True))
    if type(shape) is not type(nesting):  # a registered node: as a whole
        return False
    inner, nested = (optree.tree_leaves(tree, none_is_leaf=True) for tree in (shape, nesting))
    return len(inner) == len(nested) and all(
        _assign(a, b, gradients) for a, b in zip(inner, nested, strict=True)
    )
