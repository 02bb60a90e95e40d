"""What ops leave to each library: signs of vectors, integers of floats out of range, ties in sorts.

A graph is right where under one choice all of its results are the original's. Each choice here is a
`Change` that a run of graphs takes: it maps (node, value, operands) to the value that is used. For
signs the choice is first that of the library that the original ran on, then the one that fits best
(`VectorSigns.fit`). A choice is made once per node, so a step that turns one vector around by
itself is a fault, and is found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from ...backend.discovery import load_backend
from ...graph import ops
from ...graph.ir.graph import Graph, Node, every_node
from ...graph.ir.types import FLOATS, WHOLE, T
from ...graph.ops.numerics import as_numpy_dtype
from ...graph.support.class_bases import dataclass

Array = Any


# --- the signs of vectors -------------------------------------------------------------------------
# Ops whose results have vectors as columns, and the row where these begin (above: eigenvalues).
FIRST_ROWS = {ops.EIGH: 1, ops.SVD: 1, ops.QR: 0}
MOST_PASSES = 2  # of `fit` over all vectors


def has_signs(graphs: Sequence[Graph]) -> bool:
    return any(node.op in FIRST_ROWS for graph in graphs for node in every_node(graph))


@dataclass
class VectorSigns:
    """The signs that a library's kernels give to vectors in a dtype, times `flips`.

    Attributes:
        flips: 1 or -1 for each vector, by the node that gives them; filled as runs meet the nodes,
            and changed by `fit`.
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
        least = cost()
        for _ in range(MOST_PASSES):
            for flips in self.flips.values():
                for at in np.ndindex(flips.shape):
                    flips[at] = -flips[at]
                    now = cost()
                    if now < least:
                        least = now
                    else:
                        flips[at] = -flips[at]


def _vectors(node: Node, value: Array) -> Array:
    return value[..., FIRST_ROWS[node.op] :, :]


# --- floats out of range --------------------------------------------------------------------------
def choose_smallest_integer(node: Node, value: Any, operands: Sequence[Any]) -> Any:
    """Return a cast that gives the smallest integer for floats out of range, as processors do."""
    is_cast = node.op is ops.CAST and node.type.dtype in WHOLE
    if not is_cast or node.operands[0].type.dtype not in (T, *FLOATS):
        return value
    limits, whole = np.iinfo(value.dtype), np.trunc(np.asarray(operands[0], np.float64))
    inside = (whole >= float(limits.min)) & (whole < float(limits.max) + 1.0)
    return np.where(inside, value, limits.min).astype(value.dtype)


# --- ties in sorts --------------------------------------------------------------------------------
def note_ties(met: list[Node], node: Node, value: Any, operands: Sequence[Any]) -> Any:
    """Return a node's value unchanged, and add a sort that meets equal elements to `met`."""
    if node.op is ops.ARGSORT:
        ordered = np.take_along_axis(operands[0], value, node.attr("axis"))
        if (np.diff(ordered, axis=node.attr("axis")) == 0).any():
            met.append(node)
    return value
