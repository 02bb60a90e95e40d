"""Shapes as facts of a capture: which inputs' shapes tell that of a value, and what it then is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import ops
from ..ir.graph import Node, walk
from ..ir.types import BOOL, FLOATS, INPUT_SHAPE, SCALAR_SHAPE, WHOLE, T

# Facts that tell no calls apart: that code is shown the device of its input, equal tensors as
# others, what it makes from numbers alone as symbols.
IDENTITY, BUFFERS = "identity", "buffers"
GIVEN = ("device", IDENTITY, BUFFERS)


def is_tensor_input(node: Node) -> bool:
    """Return whether a node is an input that has a shape."""
    return node.op is ops.INPUT and node.type.kind == "tensor" and node.type.shape != SCALAR_SHAPE


def is_place(node: Node) -> bool:
    """Return whether a node is a tensor of integers."""
    return node.type.kind == "tensor" and node.type.dtype in WHOLE


def shape_fact(node: Node, what: str) -> str | None:
    """Return the name of the fact that tells a value's "shape" or "ndim"; None: it is computed from
    others.
    """
    if node.type.shape == INPUT_SHAPE:
        return what
    return f"{what}:{node.attr('name')}" if is_tensor_input(node) else None


def needed_shapes(node: Node) -> tuple[str, ...]:
    """Return the facts from which a value's shape follows."""
    found = (shape_fact(n, "shape") for n in walk((node,)) if is_tensor_input(n))
    return tuple(dict.fromkeys(fact for fact in found if fact is not None))


def computed_shape(node: Node, facts: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of a value by its meaning, run on zeros of the inputs' shapes."""
    import numpy as np

    done: dict[Node, Any] = {}
    with np.errstate(all="ignore"):
        for each in walk((node,)):
            if is_tensor_input(each):
                dtype = "int32" if each.type.dtype in WHOLE else "float32"
                dtype = BOOL if each.type.dtype == BOOL else dtype
                done[each] = np.zeros(facts[shape_fact(each, "shape") or ""], dtype)
            elif each.op is ops.INPUT:
                kept = each.type.kind == "tensor" and each.type.dtype in (BOOL, *WHOLE)
                one = np.dtype(each.type.dtype if kept else "float32").type(1)
                done[each] = (0, 0) if each.type.kind == "key" else one
            elif each.op is ops.CONST:
                done[each] = each.attr("value")
            elif each.op is ops.CALL:
                done[each] = done[each.operands[0]]
            elif each.op is ops.WHILE_LOOP:  # a turn keeps the shape
                done[each] = done[each.operands[each.attr("position")]]
            elif each.op.shape_of is not None:
                shape = each.op.shape_of(*(np.shape(done[o]) for o in each.operands))
                done[each] = np.zeros(shape, "int64" if each.type.dtype in WHOLE else "float32")
            else:
                attrs = dict(each.attrs)
                if attrs.get("dtype") in (T, *FLOATS):
                    attrs["dtype"] = np.dtype("float32")
                value = each.op.numpy(*(done[o] for o in each.operands), **attrs)
                # A place made of numbers that stand for others may lie outside.
                done[each] = np.zeros_like(value) if is_place(each) else value
    return tuple(np.shape(done[node]))
