"""A capture that is made once more, as something may have come from outside of the arguments: the
two must be the same graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...capture.copies.capture import numbers_from_elsewhere
from ...errors import TraceError
from ...graph import ops
from ...graph.ir.graph import Graph, Location, every_node
from ...trace.scope.reads import note
from ...trace.trace import NeedsConcrete, Trace
from ..calls.failures import NotCaptured
from ..calls.recipe import Variant


def check_tensors(first: Trace, second: Trace) -> None:
    """Compare the framework's tensors that became constants: one that is not made anew comes from
    outside. The values of those outside are facts, as others may be computed from them.

    Raises:
        NotCaptured: they cannot be told.
    """
    outside = {id(a) for a in first.lifted for b in second.lifted if a is b}
    facts = {fact: fact.meaning() for fact in first.sources.values()}
    note(facts)
    if not outside <= first.sources.keys() or None in facts.values():
        advice = first.words.advise(
            "pass it as an argument", "make it a NumPy array, whose values are taken once"
        )
        raise NotCaptured(
            first.error(
                f"reads a tensor from outside of it, which may change between calls{advice}"
            )
        )


def check_draws(trace: Trace, variant: Variant, other: Variant, *, drew: bool) -> None:
    """Compare the graphs of the two.

    Args:
        drew: a generator moved in both; not in another thread, which draws once.

    Raises:
        NotCaptured: they are not the same.
    """
    if drew or not are_same(variant, other):
        advice = trace.words.advise("draw with xp.rand_like(x)", "pass the number as an argument")
        raise NotCaptured(
            trace.error(
                "gives another graph each time: it draws a number from a generator that no key "
                f"seeds, or reads one that changes{advice}",
                find_difference(trace, variant, other) or find_number(trace, variant),
            )
        )


def find_difference(trace: Trace, variant: Variant, other: Variant) -> Location | None:
    """Return the line of what stands in one of two captured forms alone."""
    for one, two in zip(graphs_of(variant), graphs_of(other), strict=True):
        known = set(two.nodes)
        for node in one.nodes:
            if node not in known and node in trace.locations:
                return trace.locations[node]
    return None


def find_number(trace: Trace, variant: Variant) -> Location | None:
    """Return the line of a number or an array that does not stand in the source: it was drawn."""
    statics = {leaf.name: leaf.value for leaf in variant.layout.leaves if leaf.kind == "static"}
    drawn = numbers_from_elsewhere(graphs_of(variant), trace, statics)
    for node in (node for graph in graphs_of(variant) for node in every_node(graph)):
        constants = [each.attr("value") for each in node.operands if each.op is ops.CONST]
        is_array = any(each.op is ops.ARRAY for each in node.operands)
        is_drawn = any(isinstance(value, float) and abs(value) in drawn for value in constants)
        if (is_array or is_drawn) and node in trace.locations:
            return trace.locations[node]
    return None


def check_memory(variant: Variant, again: Any) -> None:
    """Record it for tensors that do not lie in memory in order, which shows in no value.

    Raises:
        NotCaptured: that gives other graphs.
    """
    again.trace.is_dense = False
    try:
        other = again.run_asking()
    except NeedsConcrete:
        raise
    except Exception:  # noqa: BLE001  # the user's code: it takes no other tensors
        return
    if not are_same(variant, other):
        problem = "computes something else for tensors that are not contiguous"
        raise NotCaptured(again.trace.error(f"{problem}, which is not captured"))


def are_same(a: Variant, b: Variant) -> bool:
    """Return whether two captured forms have the same graphs."""
    pairs = zip(graphs_of(a), graphs_of(b), strict=True)
    return all(one.outputs == other.outputs for one, other in pairs)


def graphs_of(variant: Variant) -> tuple[Graph, Graph]:
    """Return its forward and its backward."""
    return variant.graphs.forward, variant.graphs.backward


@contextmanager
def refusing_read(name: str, watched: list[Callable[[], str]]) -> Iterator[None]:
    """Refuse a capture that reads a variable, of which it would hold the number alone; so whatever
    else fails there.

    Raises:
        NotCaptured: it does.
    """
    try:
        yield
    except (NeedsConcrete, NotCaptured):
        raise
    except Exception as failure:
        _check_read(name, watched, failure)
        raise
    _check_read(name, watched, None)


def _check_read(name: str, watched: list[Callable[[], str]], failure: Exception | None) -> None:
    read = ", ".join(filter(None, [names() for names in watched]))
    if read:
        message = f"reads {read}, which waits for a gradient. Pass it as an argument"
        raise NotCaptured(TraceError(f"function {name!r} {message}")) from failure
