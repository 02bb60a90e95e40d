"""Fast kernels: how a graph gets them, and `without`, which turns them off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..backend.discovery import entry_points, load_backend, loaded
from ..backend.rows import DISABLED, FastKernels, Pattern
from ..errors import MultigradError, suggest
from ..graph.ir.graph import Graph, Node
from ..graph.ir.types import WHOLE
from ..graph.passes.simplify import rebuild
from ..graph.support.threads import set_within


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Turn off fast kernels for code lowered inside the block (`xg.lower`; layers keep theirs).

    Examples:
        >>> import torch
        >>> from multigrad.lowering.patterns import all_patterns, without
        >>> step = xg.lower("triangular", "torch", forward="Heaviside")
        >>> with without(*all_patterns()):  # to see whether a fast kernel is to blame
        ...     plain = xg.lower("triangular", "torch", forward="Heaviside")
        >>> x = torch.tensor([0.25, -2.0])
        >>> bool((step.apply(x) == plain.apply(x)).all())
        True

    Raises:
        MultigradError: no loaded backend has a row of that name.
        BackendNotFound: the name begins with a backend whose framework is not installed.
    """
    for backend in {name.partition(".")[0] for name in names} & set(entry_points()):
        load_backend(backend)
    rows = all_patterns()
    for name in names:
        if name not in rows:
            raise MultigradError(
                f"no fast kernel {name!r}{suggest(name, rows)} "
                f"(of the loaded backends: {', '.join(sorted(rows)) or 'none'})"
            )
    # A context variable, so that other threads keep their kernels.
    with set_within(DISABLED, DISABLED.get() | set(names)):
        yield


def all_patterns() -> dict[str, Pattern]:
    """Return the rows of all loaded backends by name."""
    return {row.name: row for backend in loaded() for row in backend.kernels.fast.patterns}


def apply_patterns(graph: Graph, fast: FastKernels, off: frozenset[str]) -> Graph:
    """Return the graph with a backend's own kernels, except for the rows that are off."""
    # Before rewrites of single nodes, which would hide what they look for.
    for row in fast.patterns:
        if row.rewrite_graph is not None and row.name not in off:
            graph = row.rewrite_graph(graph)

    if fast.by_op.keys().isdisjoint(graph.ops):
        return graph

    def change(node: Node) -> Node:
        rows = fast.by_op.get(node.op, ())
        if rows and not {each.type.dtype for each in (node, *node.operands)}.isdisjoint(WHOLE):
            return node  # they are written for floats and bools
        for name, rewrite in rows:
            replacement = None if name in off else rewrite(node)
            if replacement is not None:
                return replacement
        return node

    return rebuild(graph, change)
