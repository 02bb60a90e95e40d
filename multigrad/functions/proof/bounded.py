"""Graphs run in float64 by their ops' meanings, with a bound for each element of the results.

The bound is the largest magnitude among the values that led to the element, since that is what
rounding is proportional to: in float32 `(1e8 + x) - 1e8` is x to within a few ulps of 1e8, not of
x. It limits what "the same numbers" may be. Where it is not enough, `rounded.py` measures what
rounding does; what an op leaves to each library, as the signs of vectors, is in `choices.py`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...graph import ops
from ...graph.ir.graph import Graph, Node, Region
from ...graph.ir.types import FLOATS, T
from ...graph.ops.arrays.loops import scan_by, turn_by
from ...graph.ops.numerics import as_numpy_dtype
from ...graph.ops.results import PER_ELEMENT

Array = Any
MOST_TURNS = 2_000  # of a graph's loop, which NumPy runs op by op
COMPARISONS = (ops.EQ, ops.NE, ops.LT, ops.LE, ops.GT, ops.GE)
# (a node, its value, the values of its operands) -> the value that is used in its place.
Change = Callable[[Node, Any, Sequence[Any]], Any]


def run_bounded(
    graphs: Graph | Sequence[Graph],
    inputs: Mapping[str, Any],
    dtype: Any,
    choose: Change | None = None,
) -> list[Bounded]:
    """Return the outputs of a graph, or of several, of which shared nodes run once.

    Args:
        inputs: arrays in float64, numbers, and the key, by the inputs' names.
        dtype: the one that T stands for; random numbers are drawn in it, since each dtype has its
            own.
        choose: makes the choices that ops leave to each library; None: NumPy's.
    """
    graphs = [graphs] if isinstance(graphs, Graph) else graphs
    values: dict[Node, Any] = {}
    with np.errstate(all="ignore"):
        for node in itertools.chain(*[graph.nodes for graph in graphs]):
            if node.op is ops.INPUT:
                values[node] = inputs[node.attr("name")]
            elif node not in values:
                values[node] = meaning(node, [values[o] for o in node.operands], dtype, choose)

    @functools.cache
    def largest() -> dict[Node, Any]:
        magnitudes: dict[Node, Any] = {}
        for node, value in values.items():
            magnitudes[node] = _largest(node, value, [magnitudes[o] for o in node.operands])
        return magnitudes

    outputs = [node for graph in graphs for node in graph.outputs]
    return [Bounded(values[node], partial(_picked, largest, node)) for node in outputs]


def _picked(largest: Callable[[], Mapping[Node, Any]], node: Node) -> Any:
    return largest()[node]


class Bounded:
    """A value in float64, and for each element the largest magnitude that led to it.

    Args:
        largest: these magnitudes, or a function that finds them when they are first read: most
            results agree to the last digit, and nobody asks.
    """

    __slots__ = ("_largest", "value")

    def __init__(self, value: Any, largest: Any) -> None:
        self.value, self._largest = value, largest

    @property
    def largest(self) -> Any:
        if callable(self._largest):
            self._largest = self._largest()
        return self._largest


def meaning(node: Node, operands: Sequence[Any], dtype: Any, change: Change | None = None) -> Any:
    """Return the value of a node by its op's meaning in float64, given its operands.

    Args:
        dtype: the one that T stands for.
        change: applied to each value, those inside loops included.
    """
    if node.op is ops.CONST:
        return node.attr("value")
    attrs = dict(node.attrs)
    if attrs.get("dtype") in (T, *FLOATS):
        attrs["dtype"] = np.dtype("float64")
    values = [_beside_tensors(v, node, dtype) if isinstance(v, float) else v for v in operands]
    if node.op in LOOPS and change is not None:
        position = attrs.pop("position")
        function_of = functools.partial(_function_of, dtype=dtype, change=change)
        return LOOPS[node.op](function_of, values, **attrs)[position]
    if node.op.random:
        narrow = [np.asarray(v, dtype) if isinstance(v, np.ndarray) else v for v in values[1:]]
        value = np.asarray(node.op.numpy(values[0], *narrow, **attrs), np.float64)
    else:
        value = node.op.numpy(*values, **attrs)
    return value if change is None else change(node, value, values)


def _beside_tensors(number: float, node: Node, dtype: Any) -> Any:
    # The width decides comparisons: float32's 0.7 is below float64's, so x >= 0.7 differs.
    dtypes = {o.type.dtype for o in node.operands if o.type.kind == "tensor"} & {T, *FLOATS}
    if len(dtypes) != 1:
        return np.float64(number)
    (float_dtype,) = dtypes
    narrow = as_numpy_dtype(dtype if float_dtype == T else float_dtype)
    if narrow.itemsize < 4 and node.op not in COMPARISONS:  # torch computes these in float32
        narrow = np.dtype(np.float32)
    return np.float64(narrow.type(number))


# By op: (what makes a function of a region, values, **attributes) -> all that the loop carries.
LOOPS: dict[ops.Op, Callable[..., tuple[Any, ...]]] = {ops.WHILE_LOOP: turn_by, ops.SCAN: scan_by}


def _function_of(region: Region, dtype: Any, change: Change) -> Callable[..., tuple[Any, ...]]:
    def compute(*values: Array) -> tuple[Any, ...]:
        graph = region.graph
        done: dict[Node, Any] = dict(zip(graph.inputs, values, strict=True))
        for node in graph.nodes:
            if node not in done:
                done[node] = meaning(node, [done[o] for o in node.operands], dtype, change)
        return tuple(done[node] for node in graph.outputs)

    return compute


def _largest(node: Node, value: Any, of_operands: Sequence[Any]) -> Any:
    # Of an operand the same element counts if the op works element by element, else its largest.
    if node.type.kind == "key":
        return 0.0
    largest = magnitude(value)
    shape = getattr(value, "shape", ())
    per_element = node.op.result in PER_ELEMENT
    for each in of_operands:
        if not per_element or len(getattr(each, "shape", ())) > len(shape):
            each = np.maximum.reduce(each, axis=None, initial=0.0)
        try:
            larger = np.maximum(largest, each)
        except ValueError:  # the shapes do not match
            larger = None
        if larger is None or larger.shape != shape:
            larger = np.maximum(largest, np.maximum.reduce(each, axis=None, initial=0.0))
        largest = larger
    return largest


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
    if np.logical_and.reduce(finite, axis=None):
        return magnitude
    return np.where(finite, magnitude, 0.0)
