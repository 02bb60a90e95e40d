"""The derivative of code that has no backward of its own, while it is recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ....core import ops
from ....core.functions.recipe import NotCaptured
from ....core.ir.graph import Graph, Node, every_node
from ....core.ir.op import is_float
from ....core.lowering.derivatives import accumulate_all
from ....core.trace.trace import Value
from ....core.trace.xp import all as xp
from ...passes.shapes import needed_shapes


def true_derivative(
    recording: Any, values: list[Value], cotangents: list[Value]
) -> tuple[tuple[Node, ...], tuple[str, ...]]:
    """Return the true derivative by the ops' VJPs."""
    nodes = tuple(value.node for value in (*values, *cotangents))
    if recording.first is not None and recording.first.derived[:1] == (nodes,):
        return recording.first.derived[1]
    if lost := recording.trace.backward.lost_gradient:
        raise NotCaptured(
            recording.trace.error(
                f"takes the derivative of {lost}, whose own gradient is not captured. Give the "
                "function a backward"
            )
        )
    tensors = [leaf.name for leaf in recording.layout.tensors]
    wrt = tuple(name for name in tensors if is_float(recording.inputs[name].type))
    targets = [recording.inputs[name] for name in wrt]
    seeds = [
        (value.node, cotangent)
        for value, cotangent in zip(values, cotangents, strict=True)
        if is_float(value.node.type)
    ]
    gradients = accumulate_all(recording.trace, seeds, targets)
    gradient_nodes = tuple(
        xp.zeros_like(recording.trace.value(target)).node if gradient is None else gradient.node
        for target, gradient in zip(targets, gradients, strict=True)
    )
    # Calls of other functions have gradients of their own, which each run takes anew.
    if all(node.op is not ops.CALL for node in every_node(Graph("", (), nodes))):
        recording.derived = nodes, (gradient_nodes, wrt)
    return gradient_nodes, wrt


def facts_of_inputs(facts: Iterable[str], sources: Mapping[str, Value]) -> Iterator[str]:
    """Yield the facts that imply these; for a cotangent's, those of its output's shape."""
    for fact in facts:
        source = sources.get(fact.partition(":")[2])
        yield from (fact,) if source is None else needed_shapes(source.node)
