"""The memory of results in a proof: whose they share, and whether they lie in order.

Values alone do not tell a copy from a view, nor does a graph, whose tensors nobody writes to. So
where tensors are written to, the original's results are compared with those of the lowered code,
which is then made to copy what the original copies. What it copies and the original does not is an
omission of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....core.backend.contract import Backend
from ....core.backend.values import owner_of
from ....core.functions.recipe import Variant
from ....core.ir.graph import Graph
from ....core.passes.simplify import COPY
from ....core.trace.source import SHARED
from ...passes.memory import in_memory

IN_ORDER = "contiguous C"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a result lies: the names of those before it whose memory it shares, and in order or
    not.
    """

    shared: frozenset[str]
    is_in_order: bool


def places_of(
    backend: Backend, given: Mapping[str, Any], results: Mapping[str, Any]
) -> dict[str, Place]:
    """Return where tensors lie, by name; {} on a framework without views, and in a transform."""
    address, in_order = backend.tensors.address, backend.tensors.is_contiguous
    transform = backend.autodiff.transform
    is_transformed = transform is not None and transform() is not None
    if address is None or in_order is None or is_transformed:
        return {}
    holders: dict[Any, set[str]] = {}
    for name, tensor in given.items():
        if owner_of(tensor) is backend:
            holders.setdefault(address(tensor), set()).add(name)
    places: dict[str, Place] = {}
    for name, tensor in results.items():
        if owner_of(tensor) is backend:
            same = holders.setdefault(address(tensor), set())
            places[name] = Place(frozenset(same), in_order(tensor))
            same.add(name)
    return places


def note_places(
    variant: Variant,
    run: tuple[str, bool],
    backend: Backend,
    given: Mapping[str, Any],
    results: Mapping[str, Any],
) -> None:
    """Note where results lie in a run, which is a sample's label and whether the original ran.

    The first sample on which both run tells of all.
    """
    places = variant.places
    if run in places or not any((label, not side) in places for label, side in places):
        places[run] = places_of(backend, given, results)


def as_placed(variant: Variant) -> Variant:
    """Return a form whose results lie where those of its code do, as a proof has found them."""
    graphs, places = variant.graphs, variant.places
    label = next((each for each, is_original in places if (each, not is_original) in places), None)
    if label is None:
        return variant
    original, lowered = places[label, True], places[label, False]
    places.clear()
    names = [f"gradient of {name}" for name in graphs.wrt]
    forward = _placed(graphs.forward, graphs.outputs, original, lowered)
    backward = _placed(graphs.backward, names, original, lowered)
    both = original.keys() & lowered.keys() & {*graphs.outputs}
    is_apart = any(original[name].shared - lowered[name].shared for name in both)
    omissions = {**variant.omissions, SHARED: SHARED} if is_apart else variant.omissions
    if forward is graphs.forward and backward is graphs.backward and not is_apart:
        return variant
    graphs = replace(graphs, forward=forward, backward=backward)
    return replace(variant, graphs=graphs, omissions=omissions, lowered={})


def _placed(
    graph: Graph,
    names: Sequence[str],
    original: Mapping[str, Place],
    lowered: Mapping[str, Place],
) -> Graph:
    nodes = [*graph.outputs]
    for i, name in enumerate(names):
        own, other = original.get(name), lowered.get(name)
        if own is None or other is None:
            continue
        if other.shared - own.shared:
            nodes[i] = in_memory(nodes[i], COPY)
        elif own.is_in_order and not other.is_in_order:
            nodes[i] = in_memory(nodes[i], IN_ORDER)
    return graph if nodes == [*graph.outputs] else replace(graph, outputs=tuple(nodes))
