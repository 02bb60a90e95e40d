"""Graphs run in float64 by their ops' meanings: with bounds, or rounded at random.

`run_bounded` gives each element a bound: the largest magnitude among the values that led to it,
since that is what rounding is proportional to: in float32 `(1e8 + x) - 1e8` is x to within a few
ulps of 1e8, not of x. It limits what "the same numbers" may be. Where it is not enough,
`rounding.py` measures what rounding does by `run_rounded`. Both take a `Change`, which makes the
choices that ops leave to each library: signs of vectors, integers of floats out of range, ties.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ....core import ops
from ....core.backend.discovery import load_backend
from ....core.ir.graph import Graph, Node, Region, every_node
from ....core.ir.op import FLOATS, PER_ELEMENT, WHOLE, T
from ....core.ops.numerics import as_numpy_dtype
from ...ops.loops import scan_by, turn_by

Array = Any
# (a node, its value, the values of its operands) -> the value that is used in its place.
Change = Callable[[Node, Any, Sequence[Any]], Any]


# --- with bounds ----------------------------------------------------------------------------------
MOST_TURNS = 2_000  # of a graph's loop, which NumPy runs op by op
COMPARISONS = (ops.EQ, ops.NE, ops.LT, ops.LE, ops.GT, ops.GE)


def run_bounded(
    graphs: Graph | Sequence[Graph],
    inputs: Mapping[str, Any],
    dtype: Any,
    choose: Change | None = None,
) -> list[Bounded]:
    """Return the outputs of a graph, or of several, of which shared nodes run once.

    Args:
        inputs: arrays in float64, numbers, and the key, by the inputs' names.
        dtype: the one that T stands for; random numbers are drawn in it.
        choose: makes the choices that ops leave to each library; None: NumPy's.
    """
    graphs = [graphs] if isinstance(graphs, Graph) else graphs
    values = _compute(graphs, _given(graphs, inputs), partial(meaning, dtype=dtype, change=choose))

    @functools.cache
    def largest() -> dict[Node, Any]:
        magnitudes: dict[Node, Any] = {}
        for node, value in values.items():
            magnitudes[node] = _largest(node, value, [magnitudes[o] for o in node.operands])
        return magnitudes

    outputs = [node for graph in graphs for node in graph.outputs]
    return [Bounded(values[node], lambda node=node: largest()[node]) for node in outputs]


def _given(graphs: Sequence[Graph], inputs: Mapping[str, Any]) -> dict[Node, Any]:
    nodes = itertools.chain(*[graph.nodes for graph in graphs])
    return {node: inputs[node.attr("name")] for node in nodes if node.op is ops.INPUT}


def _compute(
    graphs: Sequence[Graph],
    values: dict[Node, Any],
    value_of: Callable[[Node, Sequence[Any]], Any],
) -> dict[Node, Any]:
    """Return the values of all nodes, among them those of the inputs that are given."""
    with np.errstate(all="ignore"):
        for node in itertools.chain(*[graph.nodes for graph in graphs]):
            if node not in values:
                values[node] = value_of(node, [values[o] for o in node.operands])
    return values


class Bounded:
    """A value in float64, and for each element the largest magnitude that led to it.

    `largest` may be a function that finds these when they are first read: most results agree to the
    last digit, and nobody asks.
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

    `dtype` is the one that T stands for; `change` is applied to each value, inside loops, too.
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
        inputs = dict(zip(graph.inputs, values, strict=True))
        results = _compute([graph], inputs, partial(meaning, dtype=dtype, change=change))
        return tuple(results[node] for node in graph.outputs)

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


# --- with each step rounded at random, as coarsely as a dtype rounds ------------------------------
# Several such runs, each with another seed, lie as far apart as rounding may move a result.

# How far libraries' series for these functions lie apart in float32, in eps.
SERIES = 64.0
BY_SERIES = (ops.LGAMMA, ops.DIGAMMA, ops.POLYGAMMA)
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
        series = SERIES if node.op in BY_SERIES else 1.0
        scale = roundings.get(node.type.dtype, 0.0) * series
        value = np.asarray(value, np.float64) * (
            1.0 + scale * generator.uniform(-1.0, 1.0, value.shape)
        )
        least = flushed.get(node.type.dtype, 0.0)
        return np.where(np.abs(value) < least, 0.0, value) if least else value

    def chosen_and_rounded(node: Node, value: Any, operands: Sequence[Any]) -> Any:
        return rounded(node, value if choose is None else choose(node, value, operands))

    def value_of(node: Node, operands: Sequence[Any]) -> Any:
        # A sum is rounded as often as it has terms, in an order that each library chooses.
        if node.op.result not in PER_ELEMENT:
            operands = [rounded(node, operand) for operand in operands]
        value = meaning(node, operands, dtype, chosen_and_rounded)
        if node.op in COMPOSED:
            value = value + (rounded(node, operands[0]) - operands[0])
        return value

    values = _compute(graphs, _given(graphs, inputs), value_of)
    return [values[node] for graph in graphs for node in graph.outputs]


# --- choices: the signs of vectors ----------------------------------------------------------------
# A graph is right where under one choice all of its results are the original's. The signs are first
# those of the library that the original ran on, then those that fit best (`VectorSigns.fit`). A
# choice is made once per node, so a step that turns one vector around by itself is found.

# Ops whose results have vectors as columns, and the row where these begin (above: eigenvalues).
FIRST_ROWS = {ops.EIGH: 1, ops.SVD: 1, ops.QR: 0}
MOST_PASSES = 2  # of `fit` over all vectors


def has_signs(graphs: Sequence[Graph]) -> bool:
    return any(node.op in FIRST_ROWS for graph in graphs for node in every_node(graph))


@dataclass
class VectorSigns:
    """The signs that a library's kernels give to vectors in a dtype, times `flips`.

    `flips` has 1 or -1 for each vector, by its node; runs fill it with 1, and `fit` changes it.
    """

    library: str
    dtype: Any
    flips: dict[Node, Array] = field(default_factory=dict)

    def __call__(self, node: Node, value: Any, operands: Sequence[Any]) -> Any:
        """Return a node's value in float64 with these signs."""
        if node.op not in FIRST_ROWS or not np.size(value):
            return value
        vectors = _vectors(node, value)
        flips = self.flips.setdefault(node, np.ones((*vectors.shape[:-2], vectors.shape[-1])))
        products = np.sum(vectors * self._vectors_of_library(node, value, operands), -2)
        signs = np.where(products < 0, -1.0, 1.0) * flips
        rows_above = value[..., : FIRST_ROWS[node.op], :]
        return np.concatenate((rows_above, vectors * signs[..., None, :]), -2)

    def _vectors_of_library(self, node: Node, value: Any, operands: Sequence[Any]) -> Array:
        tensors, float_dtype = load_backend(self.library).tensors, node.operands[0].type.dtype
        narrow = self.dtype if float_dtype == T else as_numpy_dtype(float_dtype)
        kernel = load_backend(self.library).kernels.rows[node.op]
        try:
            vectors = kernel(tensors.from_numpy(operands[0].astype(narrow)), **dict(node.attrs))
            return _vectors(node, np.asarray(tensors.to_numpy(vectors)).astype(np.float64))
        except Exception:  # a kernel for other dtypes, a matrix that is not finite
            return _vectors(node, value)

    def fit(self, cost: Callable[[], float]) -> None:
        """Flip each vector whose other sign costs less, where `cost` runs the graphs with these."""
        least_cost = cost()
        for _ in range(MOST_PASSES):
            for flips in self.flips.values():
                for index in np.ndindex(flips.shape):
                    flips[index] = -flips[index]
                    new_cost = cost()
                    if new_cost < least_cost:
                        least_cost = new_cost
                    else:
                        flips[index] = -flips[index]


def _vectors(node: Node, value: Array) -> Array:
    return value[..., FIRST_ROWS[node.op] :, :]


# --- choices: floats out of range -----------------------------------------------------------------
def choose_smallest_integer(node: Node, value: Any, operands: Sequence[Any]) -> Any:
    """Return a cast that gives the smallest integer for floats out of range, as processors do."""
    is_cast = node.op is ops.CAST and node.type.dtype in WHOLE
    if not is_cast or node.operands[0].type.dtype not in (T, *FLOATS):
        return value
    limits, truncated = np.iinfo(value.dtype), np.trunc(np.asarray(operands[0], np.float64))
    is_inside = (truncated >= float(limits.min)) & (truncated < float(limits.max) + 1.0)
    return np.where(is_inside, value, limits.min).astype(value.dtype)


# --- choices: ties in sorts -----------------------------------------------------------------------
def note_ties(met: list[Node], node: Node, value: Any, operands: Sequence[Any]) -> Any:
    """Return a node's value unchanged, and add a sort that meets equal elements to `met`."""
    if node.op is ops.ARGSORT:
        sorted_values = np.take_along_axis(operands[0], value, node.attr("axis"))
        if (np.diff(sorted_values, axis=node.attr("axis")) == 0).any():
            met.append(node)
    return value


# --- matrices without a factorization -------------------------------------------------------------
def refuse_singular(eps: float, node: Node, value: Any, operands: Sequence[Any]) -> Any:
    """Return a node's value unchanged; raise LinAlgError for the QR of a matrix without full rank,
    to `eps`: its last vectors are what rounding makes of zeros.
    """
    if node.op is ops.QR and operands[0].size:
        # LAPACK prints a warning of its own for what is not finite.
        matrices = np.where(np.isfinite(operands[0]), operands[0], 0.0)
        sizes = np.linalg.svd(matrices, compute_uv=False)
        least = eps * max(matrices.shape[-2:]) * sizes[..., 0]
        if (matrices != operands[0]).any() or (sizes[..., -1] <= least).any():
            raise np.linalg.LinAlgError("a matrix without full rank")
    return value
