"""A graph run in float64, with the largest intermediate value behind each element.

That bounds what "the same numbers" may be. Where it is not enough, the graph runs with each step
rounded otherwise. What an op leaves open (the signs of vectors, integers of floats out of range)
may be chosen: a graph is right where under one choice all of its results are the original's, first
that of the library on which the original ran, then the one that fits best. A step that turns one
vector around by itself is no choice, and is found.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any

import numpy as np

from ...backend.discovery import load_backend
from ...graph import ops
from ...graph.ir.graph import Graph, Node, Region, every_node
from ...graph.ir.types import FLOATS, WHOLE, T
from ...graph.ops.arrays.loops import scan_by, turn_by
from ...graph.ops.elementwise import special
from ...graph.ops.numerics import as_numpy_dtype
from ...graph.ops.results import PER_ELEMENT
from ...graph.support.class_bases import dataclass

Array = Any
SERIES = 64.0  # eps: how far libraries' series for the special functions lie apart in float32
COMPARISONS = (ops.EQ, ops.NE, ops.LT, ops.LE, ops.GT, ops.GE)
Change = Callable[[Node, Any, Sequence[Any]], Any]  # a node, its value, its operands


class Bounded:
    """A value in float64, and the largest magnitude that was met on the way to each element.

    Args:
        largest: that, or what finds it when somebody asks: most results are right to the last
            digits.
    """

    __slots__ = ("_largest", "value")

    def __init__(self, value: Any, largest: Any) -> None:
        self.value, self._largest = value, largest

    @property
    def largest(self) -> Any:
        if callable(self._largest):
            self._largest = self._largest()
        return self._largest


def run_bounded(
    graphs: Graph | Sequence[Graph],
    inputs: Mapping[str, Any],
    dtype: Any,
    choose: Change | None = None,
) -> list[Bounded]:
    """Run a graph by its ops' meanings in float64; of several, what they share runs once.

    Args:
        inputs: arrays in float64, numbers, and the key, by the inputs' names.
        dtype: of the inputs, in which random numbers are drawn: another draws others.
        choose: makes the choices that ops leave open.
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


def run_rounded(
    graphs: Sequence[Graph],
    inputs: Mapping[str, Any],
    dtype: Any,
    roundings: Mapping[str, float],
    smallest: Mapping[str, float],
    seed: int,
    choose: Change | None = None,
) -> list[Array]:
    """Return the graphs' results where each step is rounded at random.

    How far the results of several runs lie apart is what rounding may decide.

    Args:
        dtype: of the inputs.
        roundings: how coarsely steps are rounded, by the name of their dtype.
        smallest: by that name, too: what is smaller is 0 in each second run, as many kernels have
            it.
        choose: makes the choices that ops leave open.
    """
    generator = np.random.default_rng(seed)
    # Every second run flushes small numbers to 0, as many kernels do.
    flushed = smallest if seed % 2 else {}

    def changed(node: Node, value: Any, operands: Sequence[Any]) -> Any:
        return rounded(node, value if choose is None else choose(node, value, operands))

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

    def operand_of(node: Node, operand: Node) -> Any:
        # A sum is rounded as often as it has terms, in an order that each library chooses.
        value = done[operand]
        return value if node.op.result in PER_ELEMENT else rounded(node, value)

    done: dict[Node, Any] = {}
    with np.errstate(all="ignore"):
        for node in itertools.chain(*[graph.nodes for graph in graphs]):
            if node.op is ops.INPUT:
                done[node] = inputs[node.attr("name")]
            elif node not in done:
                operands = [operand_of(node, operand) for operand in node.operands]
                done[node] = meaning(node, operands, dtype, changed)
                if node.op in COMPOSED:
                    done[node] = done[node] + (rounded(node, operands[0]) - operands[0])
    return [done[node] for graph in graphs for node in graph.outputs]


# Libraries compose these of terms that cancel, and lose digits that our formulas keep.
COMPOSED = (ops.TANH_SHRINK, ops.SQUAREPLUS)


def meaning(node: Node, operands: Sequence[Any], dtype: Any, change: Change | None = None) -> Any:
    """Return the value of a node by its op's meaning in float64, given its operands.

    Args:
        change: maps each value to the one that is used, within loops too.
    """
    if node.op is ops.CONST:
        return node.attr("value")
    attrs = dict(node.attrs)
    if attrs.get("dtype") in (T, *FLOATS):
        attrs["dtype"] = np.dtype("float64")
    values = [_beside_tensors(v, node, dtype) if isinstance(v, float) else v for v in operands]
    if node.op in TURNING and change is not None:
        position = attrs.pop("position")
        compute = functools.partial(_compute, dtype=dtype, change=change)
        return TURNING[node.op](compute, values, **attrs)[position]
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


# What runs a loop, given what makes a function of a region.
TURNING = {ops.WHILE_LOOP: turn_by, ops.SCAN: scan_by}


def _compute(region: Region, dtype: Any, change: Change) -> Callable[..., tuple[Any, ...]]:
    def compute(*values: Array) -> tuple[Any, ...]:
        graph = region.graph
        done: dict[Node, Any] = dict(zip(graph.inputs, values, strict=True))
        for node in graph.nodes:
            if node not in done:
                done[node] = meaning(node, [done[o] for o in node.operands], dtype, change)
        return tuple(done[node] for node in graph.outputs)

    return compute


def _largest(node: Node, value: Any, before: Sequence[Any]) -> Any:
    # The magnitudes behind the operands count, element by element if the op works that way.
    if node.type.kind == "key":
        return 0.0
    largest = magnitude(value)
    shape = getattr(value, "shape", ())
    per_element = node.op.result in PER_ELEMENT
    for each in before:
        # Of another shape, its largest value counts for all elements.
        if not per_element or len(getattr(each, "shape", ())) > len(shape):
            each = np.maximum.reduce(each, axis=None, initial=0.0)
        try:
            wider = np.maximum(largest, each)
        except ValueError:
            wider = None
        if wider is None or wider.shape != shape:
            wider = np.maximum(largest, np.maximum.reduce(each, axis=None, initial=0.0))
        largest = wider
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


# --- what an op leaves to each library -----------------------------------------------------------


# Ops that give vectors in columns, and the row in which these begin.
SIGNED = {ops.EIGH: 1, ops.SVD: 1, ops.QR: 0}
TURNS = 2  # as often each vector may be turned around


def has_signs(graphs: Sequence[Graph]) -> bool:
    return any(node.op in SIGNED for graph in graphs for node in every_node(graph))


# --- signs ----------------------------------------------------------------------------------------
@dataclass
class Signs:
    """The signs that a library gives to vectors on numbers of a dtype, times others.

    Attributes:
        others: by the node, for each vector; of those that have been met.
    """

    library: str
    dtype: Any
    others: dict[Node, Array] = field(default_factory=dict)

    def __call__(self, node: Node, value: Any, operands: Sequence[Any]) -> Any:
        """Return a node's value in float64 with these signs."""
        if node.op not in SIGNED or not np.size(value):
            return value
        rows = _vectors(node, value)
        others = self.others.setdefault(node, np.ones((*rows.shape[:-2], rows.shape[-1])))
        along = np.sum(rows * self._given(node, value, operands), -2)
        turned = rows * (np.where(along < 0, -1.0, 1.0) * others)[..., None, :]
        return np.concatenate((value[..., : SIGNED[node.op], :], turned), -2)

    def _given(self, node: Node, value: Any, operands: Sequence[Any]) -> Array:
        tensors, float_dtype = load_backend(self.library).tensors, node.operands[0].type.dtype
        narrow = self.dtype if float_dtype == T else as_numpy_dtype(float_dtype)
        kernel = load_backend(self.library).kernels.rows[node.op]
        try:
            vectors = kernel(tensors.from_numpy(operands[0].astype(narrow)), **dict(node.attrs))
            return _vectors(node, np.asarray(tensors.to_numpy(vectors)).astype(np.float64))
        except Exception:  # a kernel for other dtypes, a matrix that is not finite
            return _vectors(node, value)

    def fit(self, cost: Callable[[], float]) -> None:
        """Turn each vector around whose other sign costs less."""
        least = cost()
        for _ in range(TURNS):
            for signs in self.others.values():
                for at in np.ndindex(signs.shape):
                    signs[at] = -signs[at]
                    now = cost()
                    if now < least:
                        least = now
                    else:
                        signs[at] = -signs[at]


def _vectors(node: Node, value: Array) -> Array:
    return value[..., SIGNED[node.op] :, :]


# --- floats out of range --------------------------------------------------------------------------
def lowest(node: Node, value: Any, operands: Sequence[Any]) -> Any:
    """Return a cast with the smallest integer for floats out of range, as processors give it."""
    is_cast = node.op is ops.CAST and node.type.dtype in WHOLE
    if not is_cast or node.operands[0].type.dtype not in (T, *FLOATS):
        return value
    limits, whole = np.iinfo(value.dtype), np.trunc(np.asarray(operands[0], np.float64))
    inside = (whole >= float(limits.min)) & (whole < float(limits.max) + 1.0)
    return np.where(inside, value, limits.min).astype(value.dtype)


# --- equal elements -------------------------------------------------------------------------------
def note_ties(met: list[Node], node: Node, value: Any, operands: Sequence[Any]) -> Any:
    """Return a node's value unchanged; a sort that has met equal elements is added to `met`."""
    if node.op is ops.ARGSORT:
        ordered = np.take_along_axis(operands[0], value, node.attr("axis"))
        if (np.diff(ordered, axis=node.attr("axis")) == 0).any():
            met.append(node)
    return value
