"""Saved forms: graphs with what they hold for, one of which stands where a source would.

Each was captured for one layout of the arguments, under some facts about them (their dtype, rank).
Where there are several, the one that fits is taken, by the same `NeedsConcrete` by which a source
asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...graph import ops
from ...graph.ir.graph import Graph, Location, Node, every_node, make_node
from ...graph.ir.types import KEY
from ...graph.passes.serialize import draws
from ...graph.passes.simplify import substitute
from ...graph.support.data import dataclass
from ...trace.trace import NeedsConcrete, Trace, Value


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """Graphs that were captured together, with the key of each draw as an input.

    Attributes:
        layout: what they were captured for: whether a rule has tin; the `Variant` of a Function.
        facts: what is known of the arguments where they hold.
        drawn: where in the source each key is drawn, in the order of draws.
    """

    layout: Any
    facts: Mapping[str, Any]
    graphs: tuple[Graph, ...]
    drawn: tuple[Location | None, ...]

    @staticmethod
    def of(layout: Any, facts: Mapping[str, Any], *graphs: Graph) -> Form:
        """Return the form of graphs that draw from one key.

        Raises:
            FormatError: their keys are not made as those of draws.
        """
        named, drawn = zip(*map(_name_draws, graphs), strict=True)
        return Form(layout, facts, named, max(drawn, key=len))

    def enter(self, trace: Trace) -> dict[str, Value]:
        """Return a capture's next keys, as inputs; it learns what a source would have told it."""
        trace.routes.setdefault("a saved document", "")
        for graph in self.graphs:
            constants = (node.attr("value") for node in every_node(graph) if node.op is ops.CONST)
            trace.numbers.update(number for number in constants if isinstance(number, float))
        keys = {}
        for j, location in enumerate(self.drawn):
            key = keys[_draw_name(j)] = trace.next_key()
            if location is not None:
                trace.locations.setdefault(key.node, location)
        return keys


def choose(forms: Iterable[Form], known: Mapping[str, Any]) -> Form | None:
    """Return the form that holds for what is known of the arguments, None where none does.

    Raises:
        NeedsConcrete: more has to be known.
    """
    fitting = [
        form
        for form in forms
        if all(known.get(name, value) == value for name, value in form.facts.items())
    ]
    for form in fitting:
        if form.facts.keys() <= known.keys():
            return form
    if fitting:
        raise NeedsConcrete(*(name for name in fitting[0].facts if name not in known))
    return None


def _name_draws(graph: Graph) -> tuple[Graph, tuple[Location | None, ...]]:
    """Return a graph with each of its draws' keys as an input, and where they are drawn."""
    places = draws(graph)
    inputs: dict[Node, Node] = {
        node: make_node(ops.INPUT, (), {"name": _draw_name(j)}, KEY) for node, j in places.items()
    }
    known = {j: graph.locations.get(node) for node, j in places.items()}
    drawn = tuple(known.get(j) for j in range(1 + max(known, default=-1)))
    return substitute(graph, inputs), drawn


def _draw_name(j: int) -> str:
    """Return the input's name of the j-th draw; no param can have it."""
    return f"draw {j}"
