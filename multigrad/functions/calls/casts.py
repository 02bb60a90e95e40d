"""What runs a call while its framework chooses the dtypes of calls by itself, as autocast does.

A graph holds the dtypes of its capture, where casts to the dtype that a tensor had are no ops. So
the original runs where the code is the framework's own; any other graph runs apart from the choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...backend.contract import Backend
from ...trace.scope.draws import Draws
from .arguments import Layout
from .binding import Entry
from .native import run_as_it_is
from .recipe import Recipe, Variant

SAME, ORIGINAL, GRAPH = "same", "original", "graph"


def way_if_cast(recipe: Recipe, native: bool | None, variant: Variant, backend: Backend) -> str:
    """Return what runs a captured form while its framework chooses dtypes: the same as else, the
    original, or the graph in its own dtypes.
    """
    casts, graphs = backend.autodiff.casts, variant.graphs
    if casts is None or graphs.is_rule:
        return SAME
    if backend.name == recipe.dialect():  # of its own calls more is known than of ops
        return SAME if not variant.is_cast else GRAPH if native is False else ORIGINAL
    nodes = (*graphs.forward.nodes, *graphs.backward.nodes)
    return GRAPH if any(casts.of(node.op) for node in nodes) else SAME


def follow_casts(
    entry: Entry, native: Entry | None, recipe: Recipe, layout: Layout, backend: Backend
) -> Entry:
    """Return an entry that asks at each call whether the framework chooses dtypes now.

    Args:
        native: runs the original; None: the graph runs then, too.
    """
    casts, run, call = backend.autodiff.casts, entry.run, entry.call
    assert casts is not None
    is_on = casts.is_on

    def run_aside(leaves: Sequence[Any], draws: Draws) -> Any:
        transform = casts.transforms()
        if native is None or draws.counter is not None or transform == "forward mode":
            with casts.without():
                return run(leaves, draws)
        if transform:  # which an original with nothing but a backward does not support
            return run_as_it_is(recipe, layout, backend, leaves, None)
        return native.run(leaves, draws)

    def following(leaves: Sequence[Any], draws: Draws) -> Any:
        return run_aside(leaves, draws) if is_on() else run(leaves, draws)

    def following_call(leaves: Sequence[Any], draws: Draws) -> Any:  # with a frame less
        return run_aside(leaves, draws) if is_on() else call(*leaves)  # type: ignore[misc]

    return Entry(following if call is None else following_call)
