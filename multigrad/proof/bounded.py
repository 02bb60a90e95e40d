"""A graph run in float64, with the largest intermediate value behind each element: what "the same
numbers" allows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import ops
from ..ir.graph import Graph, Node
from ..ir.types import FLOATS, T
from ..ops.results import PER_ELEMENT

Array = Any


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


def _run_node(
    node: Node, done: Mapping[Node, Bounded], given: Mapping[str, Any], dtype: Any
) -> Bounded:
    if node.op is ops.INPUT:
        value = given[node.attr("name")]
        return Bounded(value, 0.0 if node.type.kind == "key" else _magnitude(value))
    if node.op is ops.CONST:
        return Bounded(node.attr("value"), _magnitude(node.attr("value")))
    attrs = dict(node.attrs)
    if attrs.get("dtype") in (T, *FLOATS):
        attrs["dtype"] = np.dtype("float64")
    operands = [done[operand] for operand in node.operands]
    values = [_wide(o.value) for o in operands]
    if node.op.random:
        narrow = [np.asarray(v, dtype) if isinstance(v, np.ndarray) else v for v in values[1:]]
        value = np.asarray(node.op.numpy(values[0], *narrow, **attrs), np.float64)
    else:
        value = node.op.numpy(*values, **attrs)
    largest = _magnitude(value)
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


def _magnitude(value: Any) -> Any:
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
