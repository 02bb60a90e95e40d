"""Facts about shapes in a capture, by which the shapes of its inputs and of their reductions are
known. Those of other values follow from the operands': `engine/passes/shapes.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from .. import ops
from ..ir.graph import Node
from ..ir.op import INPUT_SHAPE, SCALAR_SHAPE
from ..ops.numerics import Axis
from ..ops.shapes import Shape, reduced
from ..support.lazy_modules import of_engine, provided

# Facts that do not distinguish calls: code is shown the device of its input; equal tensors as
# different ones; what it makes from numbers alone as symbols; it calls NumPy's functions on numbers
# alone; or on tensors too.
IDENTITY, BUFFERS = "identity", "buffers"
ON_NUMBERS, ON_TENSORS = "on numbers", "on tensors"
GIVEN = ("device", IDENTITY, BUFFERS, ON_NUMBERS, ON_TENSORS)
SHARDS = "shards"  # how many there are: no capture knows it, as a graph is one for any number
LIBRARY = "library"  # of a call's tensors, where the code mentions none


def is_tensor_input(node: Node) -> bool:
    return node.op is ops.INPUT and node.type.kind == "tensor" and node.type.shape != SCALAR_SHAPE


def shape_fact(node: Node, what: str) -> str | None:
    """Return the fact that tells a value's "shape" or "ndim", or None if it is computed."""
    if node.type.shape == INPUT_SHAPE:
        return what
    return f"{what}:{node.attr('name')}" if is_tensor_input(node) else None


needed_shapes = of_engine(__name__, "needed_shapes", "the shape of what is computed")
computed_shape = of_engine(__name__, "computed_shape", "the shape of what is computed")


class Shapes:
    """Shapes of values under facts that may change."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.facts = facts
        self.computed: Any = None  # the engine's, made when it is needed

    def known(self, node: Node) -> Shape | None:
        """Return the shape of a tensor; None where a fact is missing."""
        fact, relation = shape_fact(node, "shape"), node.type.shape
        if fact is not None:
            return self.facts.get(fact)
        if relation == SCALAR_SHAPE:
            return ()
        if relation[0] == "reduced" and "shape" in self.facts:
            _, axis, keepdims = cast("tuple[str, Axis, bool]", relation)
            return reduced(self.facts["shape"], axis=axis, keepdims=keepdims)
        return shape_by_operands(self, node) if self.facts else None

    def rank(self, node: Node) -> int | None:
        fact, shape = shape_fact(node, "ndim"), self.known(node)
        if shape is None and fact is None and self.facts:
            shape = shape_by_operands(self, node, of_shards=True)
        return self.facts.get(fact or "") if shape is None else len(shape)


@provided
def shape_by_operands(shapes: Shapes, node: Node, of_shards: bool = False) -> Shape | None:
    """Return the shape of a computed value; None where a fact is missing.

    `of_shards`: nor if that is how many shards there are; the shape is then that of one.
    """
    return None
