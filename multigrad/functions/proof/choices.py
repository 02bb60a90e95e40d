"""What an op leaves to each library: the signs of vectors, and integers of floats out of range.

A graph is right where under one choice all of its results are the original's: first that of the
library on which the original ran, then the one that fits best. A step that turns one vector around
by itself is no choice, and is found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from ...backend.finding.discovery import load_backend
from ...graph import ops
from ...graph.ir.graph import Graph, Node, every_node
from ...graph.ir.types import FLOATS, WHOLE, T
from ...graph.ops.numerics import as_numpy_dtype
from ...graph.support.data import dataclass

Array = Any
# Ops that give vectors in columns, and the row in which these begin.
SIGNED = {ops.EIGH: 1, ops.SVD: 1, ops.QR: 0}
TURNS = 2  # as often each vector may be turned around


def has_signs(graphs: Sequence[Graph]) -> bool:
    """Return whether graphs leave signs open."""
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
        """Return the library's own vectors."""
        tensors, own = load_backend(self.library).tensors, node.operands[0].type.dtype
        narrow = self.dtype if own == T else as_numpy_dtype(own)
        kernel = load_backend(self.library).kernels.rows[node.op]
        try:
            found = kernel(tensors.from_numpy(operands[0].astype(narrow)), **dict(node.attrs))
            return _vectors(node, np.asarray(tensors.to_numpy(found)).astype(np.float64))
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
    """Give floats that no integer of a dtype holds the smallest one, as processors do."""
    is_cast = node.op is ops.CAST and node.type.dtype in WHOLE
    if not is_cast or node.operands[0].type.dtype not in (T, *FLOATS):
        return value
    limits, whole = np.iinfo(value.dtype), np.trunc(np.asarray(operands[0], np.float64))
    inside = (whole >= float(limits.min)) & (whole < float(limits.max) + 1.0)
    return np.where(inside, value, limits.min).astype(value.dtype)


# --- equal elements -------------------------------------------------------------------------------
@dataclass
class Ties:
    """Notes whether a sort meets equal elements.

    Attributes:
        are_met: that.
    """

    are_met: bool = False

    def __call__(self, node: Node, value: Any, operands: Sequence[Any]) -> Any:
        """Return a node's value as it is."""
        if node.op is ops.ARGSORT:
            ordered = np.take_along_axis(operands[0], value, node.attr("axis"))
            self.are_met |= bool((np.diff(ordered, axis=node.attr("axis")) == 0).any())
        return value
