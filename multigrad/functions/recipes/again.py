"""A capture that is made once more, as something may have come from outside of the arguments: the
two must be the same graphs; and a backward that is told which cotangents nobody gives, which must
give what it gives for zeros: a graph gets zeros everywhere.

Torch tells it to a class that asks (`set_materialize_grads(False)`), jax to rules with symbolic
zeros.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...capture.copies.capture import numbers_from_elsewhere
from ...errors import TraceError
from ...graph import ops
from ...graph.ir.graph import Graph, Location, Node, every_node, make_node, walk
from ...graph.ir.types import BOOL, SCALAR_SHAPE, WHOLE
from ...graph.ops.properties import CONSTANT, LINEAR, is_zero
from ...graph.passes.facts import shape_fact
from ...graph.passes.simplify import simplify
from ...trace.assertions import MISSING
from ...trace.scope.reads import note
from ...trace.trace import NeedsConcrete, Trace, Value, constant
from ..calls.binding import evaluate
from ..calls.recipe import NotCaptured, Variant


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


# --- cotangents that nobody gives ----------------------------------------------------------------


UNTOLD = (31,)  # a sample's shape where no fact tells it
CLOSE = 1e-6  # relative, in float64: formulas differ in rounding alone
MOST_OUTPUTS = 4  # of which every choice is tried; of more, one alone is given or missing


def choices(count: int) -> Iterator[tuple[int, ...]]:
    """Yield which cotangents may be missing while another is given."""
    sizes = range(1, count) if count <= MOST_OUTPUTS else dict.fromkeys((1, count - 1))
    for size in sizes:
        yield from itertools.combinations(range(count), size)


def compare_missing(
    trace: Trace,
    pull: Callable[[list[Any]], dict[str, Node]],
    given: tuple[Callable[[Any], Any], list[Any]],
    found: dict[str, Node],
    drawn: int,
) -> None:
    """Compare what a backward gives for missing cotangents with what it gives for zeros.

    Args:
        pull: gives gradients by the inputs' names.
        given: what makes a missing cotangent, and the cotangents for all outputs.
        found: what they gave, whose draws began at `drawn`.

    Raises:
        NotCaptured: it is not the same.
    """
    missing, cotangents = given
    heads = [i for i, each in enumerate(cotangents) if is_input(each)]
    after = trace.draws
    for chosen in choices(len(heads)):
        out = {heads[i]: missing(cotangents[heads[i]]) for i in chosen}
        trace.draws = drawn
        try:
            own = pull([out.get(i, each) for i, each in enumerate(cotangents)])
        except NotCaptured:  # then it fails where it was written, too
            continue
        finally:
            trace.draws = after
        if not is_as_zero(trace, found, own, [cotangents[i].node for i in out]):
            trace.omit(MISSING)
            raise NotCaptured(
                trace.error(
                    "gives another gradient where a cotangent is missing than where it is zero, "
                    f"which no graph tells apart{trace.words.advise('take both for the same')}"
                )
            )


def is_input(value: Any) -> bool:
    """Return whether a cotangent is one that a call gives."""
    return isinstance(value, Value) and value.node.op is ops.INPUT


def is_as_zero(
    trace: Trace, whole: dict[str, Node], found: dict[str, Node], missing: Collection[Node]
) -> bool:
    """Return whether gradients, by the inputs' names, are those that all cotangents give where some
    are zero: the same ops, or on a sample the same numbers.
    """
    names = tuple(whole)
    given = vanished(_simplified([whole[name] for name in names]), missing)
    own = dict(zip(found, _simplified(list(found.values())), strict=True))
    pairs = [(expected, own.get(name)) for name, expected in zip(names, given, strict=True)]
    if all(a is b or (a is None and b is not None and is_zero(b)) for a, b in pairs):
        return True
    return all(are_close(trace, a, b) for a, b in pairs)


def _simplified(nodes: Sequence[Node]) -> tuple[Node, ...]:
    return simplify(Graph("gradients", (), tuple(nodes))).outputs


def vanished(nodes: Sequence[Node], zeros: Collection[Node]) -> list[Node | None]:
    """Return nodes as they are where others are zero; None for zero."""
    done: dict[Node, Node | None] = {}
    for node in Graph("gradients", (), tuple(nodes)).nodes:
        operands = [done[operand] for operand in node.operands]
        if node in zeros:
            done[node] = None
        elif all(new is old for new, old in zip(operands, node.operands, strict=True)):
            done[node] = node
        else:
            done[node] = _without(node, operands)
    return [done[node] for node in nodes]


def _without(node: Node, operands: Sequence[Node | None]) -> Node | None:
    """Return a node some of whose operands are zero."""
    degrees = [LINEAR if each is None else CONSTANT for each in operands]
    read = [degree for i, degree in enumerate(degrees) if i not in node.op.shape_only]
    if LINEAR in read and node.op.degree is not None and node.op.degree(node, read) == LINEAR:
        return None
    left = [each for each in operands if each is not None]
    if node.op in (ops.ADD, ops.SUB) and len(left) == 1 and left[0].type == node.type:
        is_kept = node.op is ops.ADD or operands[0] is not None
        return left[0] if is_kept else make_node(ops.NEG, left, {}, node.type)
    pairs = zip(operands, node.operands, strict=True)
    whole = [_zeros_like(old) if new is None else new for new, old in pairs]
    return make_node(node.op, whole, dict(node.attrs), node.type)


def _zeros_like(node: Node) -> Node:
    return make_node(ops.FULL_LIKE, (node, constant(0.0)), {"dtype": node.type.dtype}, node.type)


def are_close(trace: Trace, a: Node | None, b: Node | None) -> bool | None:
    """Return whether two values, None for zero, are the same on a sample, where their ops are not;
    None: in the shapes that are known they cannot be computed.
    """
    generator = np.random.default_rng(7)
    arrays: dict[str, Any] = {}
    for node in walk([each for each in (a, b) if each is not None]):
        if node.op is ops.INPUT:
            shape = trace.facts.get(shape_fact(node, "shape") or "", UNTOLD)
            is_tensor = node.type.kind == "tensor" and node.type.shape != SCALAR_SHAPE
            drawn = generator.normal(size=shape if is_tensor else ())
            whole = drawn > 0 if node.type.dtype == BOOL else abs(drawn.round()).astype(np.int64)
            is_whole = node.type.dtype in (BOOL, *WHOLE)
            arrays[node.attr("name")] = whole if is_whole else drawn
    try:
        values = [0.0 if each is None else evaluate(each, arrays, "float64") for each in (a, b)]
    except Exception:  # noqa: BLE001  (whatever NumPy says of such shapes)
        return None
    return np.allclose(*values, rtol=CLOSE, atol=1e-12, equal_nan=True)
