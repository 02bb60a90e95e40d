"""A graph run in float64, with the largest intermediate value behind each element: what "the same
numbers" allows. Where that is not enough, it runs with each step rounded otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...graph import ops
from ...graph.ir.graph import Graph, Node, Region
from ...graph.ir.types import FLOATS, T
from ...graph.ops.arrays.loops import turn_by
from ...graph.ops.elementwise import special
from ...graph.ops.results import PER_ELEMENT

Array = Any
SERIES = 64.0  # eps: how far libraries' series for the special functions lie apart in float32
Change = Callable[[Node, Any], Any]


@dataclass(frozen=True, slots=True)
class Bounded:
    """A value in float64, and the largest magnitude that was met on the way to each element."""

    value: Any
    largest: Any


def run_bounded(graph: Graph, given: Mapping[str, Any], dtype: Any) -> list[Bounded]:
    """Run a graph by its ops' meanings in float64.

    Args:
        given: arrays in float64, numbers, and the key, by the inputs' names.
        dtype: of the inputs, in which random numbers are drawn: another draws others.
    """
    done: dict[Node, Bounded] = {}
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            done[node] = _run_node(node, done, given, dtype)
    return [done[node] for node in graph.outputs]


def run_rounded(
    graphs: Sequence[Graph],
    given: Mapping[str, Any],
    dtype: Any,
    roundings: Mapping[str, float],
    smallest: Mapping[str, float],
    seed: int,
) -> list[Array]:
    """Return the graphs' results where each step is rounded at random: how far these lie from one
    another is what rounding may decide.

    Args:
        dtype: of the inputs.
        roundings: how coarsely steps are rounded, by the name of their dtype.
        smallest: by that name, too: what is smaller is 0 in each second run, as many kernels have
            it.
    """
    generator = np.random.default_rng(seed)
    flushed = smallest if seed % 2 else {}

    def rounded(node: Node, value: Any) -> Any:
        if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind != "f":
            return value
        by = roundings.get(node.type.dtype, 0.0) * (SERIES if _is_series(node) else 1.0)
        value = np.asarray(value, np.float64) * (
            1.0 + by * generator.uniform(-1.0, 1.0, value.shape)
        )
        least = flushed.get(node.type.dtype, 0.0)
        return np.where(np.abs(value) < least, 0.0, value) if least else value

    def operand_of(node: Node, operand: Node) -> Any:
        """A sum is rounded as often as it has terms, in an order that each library chooses."""
        value = done[operand]
        return value if node.op.result in PER_ELEMENT else rounded(node, value)

    done: dict[Node, Any] = {}
    with np.errstate(all="ignore"):
        for node in (node for graph in graphs for node in graph.nodes):
            if node.op is ops.INPUT:
                done[node] = given[node.attr("name")]
            elif node not in done:
                operands = [operand_of(node, operand) for operand in node.operands]
                done[node] = meaning(node, operands, dtype, rounded)
                if node.op in COMPOSED:
                    done[node] = done[node] + (rounded(node, operands[0]) - operands[0])
    return [done[node] for graph in graphs for node in graph.outputs]


# Libraries compose these of terms that cancel, and lose digits that our formulas keep.
COMPOSED = (ops.TANH_SHRINK, ops.SQUAREPLUS)


def _is_series(node: Node) -> bool:
    return node.op.numpy.__module__ == special.__name__


def meaning(node: Node, operands: Sequence[Any], dtype: Any, change: Change | None = None) -> Any:
    """Return what a node is by its op's meaning in float64, given its operands.

    Args:
        change: what becomes of each value, within loops too.
    """
    if node.op is ops.CONST:
        return node.attr("value")
    attrs = dict(node.attrs)
    if attrs.get("dtype") in (T, *FLOATS):
        attrs["dtype"] = np.dtype("float64")
    values = [_wide(value) for value in operands]
    if node.op is ops.WHILE_LOOP and change is not None:
        turned = turn_by(lambda region: _compute(region, dtype, change), values, **_regions(attrs))
        return turned[attrs["position"]]
    if node.op.random:
        narrow = [np.asarray(v, dtype) if isinstance(v, np.ndarray) else v for v in values[1:]]
        value = np.asarray(node.op.numpy(values[0], *narrow, **attrs), np.float64)
    else:
        value = node.op.numpy(*values, **attrs)
    return value if change is None else change(node, value)


def _regions(attrs: Mapping[str, Any]) -> dict[str, Region]:
    return {"condition": attrs["condition"], "body": attrs["body"]}


def _compute(region: Region, dtype: Any, change: Change) -> Callable[..., tuple[Any, ...]]:
    def compute(*values: Array) -> tuple[Any, ...]:
        graph = region.graph
        done: dict[Node, Any] = dict(zip(graph.inputs, values, strict=True))
        for node in graph.nodes:
            if node not in done:
                done[node] = meaning(node, [done[o] for o in node.operands], dtype, change)
        return tuple(done[node] for node in graph.outputs)

    return compute


def _run_node(
    node: Node, done: Mapping[Node, Bounded], given: Mapping[str, Any], dtype: Any
) -> Bounded:
    if node.op is ops.INPUT:
        value = given[node.attr("name")]
        return Bounded(value, 0.0 if node.type.kind == "key" else magnitude(value))
    if node.op is ops.CONST:
        return Bounded(node.attr("value"), magnitude(node.attr("value")))
    operands = [done[operand] for operand in node.operands]
    value = meaning(node, [o.value for o in operands], dtype)
    largest = magnitude(value)
    per_element = node.op.result in PER_ELEMENT
    for operand in operands:
        before = operand.largest
        if not per_element or np.ndim(before) > np.ndim(value):  # of another shape: as a whole
            before = np.max(before, initial=0.0)
        try:
            wider = np.maximum(largest, before)
        except ValueError:
            wider = np.maximum(largest, np.max(before, initial=0.0))
        if np.shape(wider) != np.shape(value):
            wider = np.maximum(largest, np.max(before, initial=0.0))
        largest = wider
    return Bounded(value, largest)


def _wide(value: Any) -> Any:
    return np.float64(value) if isinstance(value, float) else value


def magnitude(value: Any) -> Any:
    """Return |value| where it is finite, else 0: what is not finite says nothing of rounding."""
    if isinstance(value, bool | int | float):
        return abs(float(value)) if math.isfinite(value) else 0.0
    array = np.asarray(value)
    if array.dtype.kind == "b":
        return 1.0
    if array.dtype.kind not in "fiu":
        return 0.0
    magnitude = np.abs(array.astype(np.float64, copy=False))
    finite = np.isfinite(magnitude)
    return magnitude if finite.all() else np.where(finite, magnitude, 0.0)
