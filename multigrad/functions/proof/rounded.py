"""Graphs run in float64 with each step rounded at random, as coarsely as a dtype rounds.

Several such runs, each with another seed, lie as far apart as rounding may move a result
(`rounding.py` measures that).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...graph import ops
from ...graph.ir.graph import Graph, Node
from ...graph.ops.elementwise import special
from ...graph.ops.results import PER_ELEMENT
from .bounded import Change, meaning

Array = Any
# How far libraries' series for the special functions lie apart in float32, in eps.
SERIES = 64.0
# Libraries compose these of terms that cancel, and lose digits that our formulas keep.
COMPOSED = (ops.TANH_SHRINK, ops.SQUAREPLUS)


def run_rounded(
    graphs: Sequence[Graph],
    inputs: Mapping[str, Any],
    dtype: Any,
    roundings: Mapping[str, float],
    smallest: Mapping[str, float],
    seed: int,
    choose: Change | None = None,
) -> list[Array]:
    """Return the graphs' outputs in float64, each step rounded at random.

    Args:
        inputs, dtype, choose: see `run_bounded`.
        roundings: by how much of itself a value moves at most, by the name of its dtype.
        smallest: the smallest normal number, by that name; runs of an odd seed flush what is
            smaller to 0, as many kernels do.
    """
    generator = np.random.default_rng(seed)
    flushed = smallest if seed % 2 else {}

    def rounded(node: Node, value: Any) -> Any:
        if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind != "f":
            return value
        # A ufunc has no module before NumPy 2.2.
        is_series = getattr(node.op.numpy, "__module__", None) == special.__name__
        by = roundings.get(node.type.dtype, 0.0) * (SERIES if is_series else 1.0)
        value = np.asarray(value, np.float64) * (
            1.0 + by * generator.uniform(-1.0, 1.0, value.shape)
        )
        least = flushed.get(node.type.dtype, 0.0)
        return np.where(np.abs(value) < least, 0.0, value) if least else value

    def chosen_and_rounded(node: Node, value: Any, operands: Sequence[Any]) -> Any:
        return rounded(node, value if choose is None else choose(node, value, operands))

    def operand_of(node: Node, operand: Node) -> Any:
        # A sum is rounded as often as it has terms, in an order that each library chooses.
        value = values[operand]
        return value if node.op.result in PER_ELEMENT else rounded(node, value)

    values: dict[Node, Any] = {}
    with np.errstate(all="ignore"):
        for node in itertools.chain(*[graph.nodes for graph in graphs]):
            if node.op is ops.INPUT:
                values[node] = inputs[node.attr("name")]
            elif node not in values:
                operands = [operand_of(node, operand) for operand in node.operands]
                values[node] = meaning(node, operands, dtype, chosen_and_rounded)
                if node.op in COMPOSED:
                    values[node] = values[node] + (rounded(node, operands[0]) - operands[0])
    return [values[node] for graph in graphs for node in graph.outputs]
