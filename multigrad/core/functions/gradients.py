"""Gradients as a gradient function returns them, matched to the arguments.

They may come flat (one for each tensor, or for each argument) or structured like the arguments:
`match_gradients`. In a capture each is then checked against its argument (`check_gradient`).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

from ...errors import GradientError
from ..ir.graph import Node
from ..ir.op import BOOL, INPUT_SHAPE, SCALAR_SHAPE, UNKNOWN, T, Type, is_float
from ..passes.facts import shape_fact
from ..support.trees import optree, with_own_classes
from ..trace.coercion import cast_node, lift_array
from ..trace.trace import NeedsConcrete, Trace, Value, known_shape
from ..trace.xp import all as xp
from .arguments import PLAIN, Forgotten, Layout, Leaf, replace_at

# --- matched to the leaves of the arguments -------------------------------------------------------
CONTAINERS = (tuple, list, dict)


def match_gradients(function: str, returned: Any, layout: Layout) -> list[Any]:
    """Return a gradient (or None) for each leaf of the arguments."""
    leaves = layout.leaves
    returned = with_own_classes(returned)
    args, kwargs = layout.rebuild(range(len(leaves)))
    # Keywords that hold floats wait for gradients too.
    floats = [i for i, leaf in enumerate(leaves) if leaf.is_float or leaf.dtype == T]
    has_keywords = any(i >= layout.positional for i in floats)
    by_structure = _match_structure(returned, args, kwargs, len(leaves), has_keywords)
    if by_structure is not None:
        return refuse_objects(function, by_structure, layout)
    flat = optree.tree_leaves(returned, none_is_leaf=True)
    everything = list(range(len(leaves)))
    positional = everything if has_keywords else everything[: layout.positional]
    # The first count that fits wins, from all leaves to the floats alone.
    for targets in (everything, positional, list(layout.indices("tensor")), floats):
        if len(flat) == len(targets):
            if len(flat) > 1:
                _refuse_unordered(function, args, kwargs)
            gradients = replace_at([None] * len(leaves), targets, flat)
            return refuse_objects(function, gradients, layout)
    count = "1 gradient" if len(flat) == 1 else f"{len(flat)} gradients"
    paths = ", ".join(leaf.path for leaf in leaves)
    raise GradientError(
        f"function {function!r} returned {count} for {len(leaves)} arguments ({paths}); expected "
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


def check_gradient(
    trace: Trace, leaf: Leaf, argument: Node, gradient: Any, *, casts: bool = False
) -> Value | None:
    """Return a gradient as a symbolic value of its argument's type; None where there is none.

    `casts`: a gradient that is no float becomes one, as in the library of imported code.
    """
    if gradient is None:
        return None
    type_ = argument.type
    start = f"{'rule' if trace.kind == 'rule' else 'function'} {trace.name!r} returned"
    # Libraries take a number for a tensor without axes.
    if is_one_number(gradient) and has_no_axes(trace, argument):
        return trace.value(xp.full_like(trace.value(argument), gradient).node)
    if not isinstance(gradient, Value):
        if isinstance(gradient, bool | int | float | str | bytes) or callable(gradient):
            or_none = "" if trace.kind == "rule" else ", or None"
            raise GradientError(
                f"{start} {gradient!r:.60} as the gradient of argument {leaf.path!r}; expected a "
                f"tensor of its shape, such as xp.zeros_like({leaf.path}){or_none}"
            )
        gradient = trace.value(lift_array(trace, gradient))
    actual_type = gradient.node.type
    if actual_type.kind == "scalar":
        raise GradientError(
            f"{start} a number as the gradient of argument {leaf.path!r}; expected a tensor of its "
            f"shape: xp.full_like({leaf.path}, number)"
        )
    if not _may_agree(trace, gradient, type_):
        raise GradientError(
            f"{start} a gradient of {describe(actual_type)} for argument {leaf.path!r}, whose "
            f"shape is {describe(type_)}; expected the same shape"
        )
    # As the frameworks' engines do; some of them cast what is no float, too.
    is_cast = is_float(actual_type) or (casts and is_float(type_))
    if actual_type.dtype != type_.dtype and is_cast:
        return trace.value(cast_node(gradient.node, type_.dtype))
    if actual_type.dtype == BOOL:
        raise GradientError(
            f"{start} bools as the gradient of argument {leaf.path!r}; multiply by the upstream "
            "gradient"
        )
    if actual_type.dtype != type_.dtype:
        # They may differ for some dtypes of the first tensor, so the dtype becomes a fact.
        facts = trace.facts
        if "dtype" not in facts:
            raise NeedsConcrete("dtype")
        actual = [facts["dtype"] if t.dtype == "T" else t.dtype for t in (actual_type, type_)]
        if actual[0] != actual[1]:
            raise GradientError(
                f"{start} a {actual[0]} gradient for argument {leaf.path!r} of {actual[1]}; cast "
                "it back"
            )
    return gradient


def is_one_number(gradient: Any) -> bool:
    """Return whether a gradient is a number, which libraries take for a tensor without axes."""
    if isinstance(gradient, Value):
        return gradient.node.type.kind == "scalar" and gradient.node.type.dtype != BOOL
    if isinstance(gradient, np.ndarray | np.generic):
        return gradient.ndim == 0 and gradient.dtype.kind in "iuf"
    return isinstance(gradient, int | float) and not isinstance(gradient, bool)


def has_no_axes(trace: Trace, argument: Node) -> bool:
    """Return whether an argument has no axes; where that is not fixed, it becomes a fact."""
    if argument.type.shape == SCALAR_SHAPE:
        return True
    ndim, shape = (shape_fact(argument, name) for name in ("ndim", "shape"))
    if shape is not None and shape in trace.facts:
        return trace.facts[shape] == ()
    if ndim is not None and ndim not in trace.facts:
        raise NeedsConcrete(ndim)
    return ndim is not None and trace.facts[ndim] == 0


def _may_agree(trace: Trace, gradient: Value, type_: Type) -> bool:
    # UNKNOWN is decided when the backward runs.
    actual, expected = gradient.node.type.shape, type_.shape
    if actual == expected or UNKNOWN in (actual, expected):
        return True
    if INPUT_SHAPE not in (actual, expected):
        return False
    # The first tensor may have no axes, or one of length 1: a fact decides.
    fact = "ndim" if SCALAR_SHAPE in (actual, expected) else "shape"
    if fact not in trace.facts and "shape" not in trace.facts:
        raise NeedsConcrete(fact)
    shape = trace.facts.get("shape")
    if fact == "ndim":
        return (trace.facts["ndim"] if shape is None else len(shape)) == 0
    gradient_shape = known_shape(gradient)
    return gradient_shape is None or gradient_shape == shape


def describe(type_: Type) -> str:
    shape = type_.shape
    if shape == INPUT_SHAPE:
        return "the first tensor's shape"
    if isinstance(shape, tuple) and shape and shape[0] == "reduced":
        _, axis, keepdims = shape
        words = "with 1 for" if keepdims else "without"
        return f"the first tensor's shape {words} {'all axes' if axis is None else f'axis {axis}'}"
    return "one number" if shape == () else f"[{type_}]"
