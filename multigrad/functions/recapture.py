"""Captures that are made more than once, and must agree.

Again, where something may have come from outside the arguments: the two must be the same graphs.
With missing cotangents: a backward that is told which (torch tells a class that calls
`set_materialize_grads(False)`, jax tells rules with symbolic zeros) must give what it gives for
zeros, which a graph gets everywhere. On each way through branches by values in somebody else's
code, of which values choose: torch runs the original, the compilers of jax and TensorFlow cannot.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ..capture.copies.capture import numbers_from_elsewhere
from ..capture.dialect import find_dialect
from ..errors import TraceError
from ..graph import ops
from ..graph.ir import questions
from ..graph.ir.graph import Graph, Location, Node, every_node, make_node, walk
from ..graph.ir.types import BOOL, INPUT_SHAPE, SCALAR_SHAPE, WHOLE
from ..graph.ops.properties import CONSTANT, LINEAR, is_zero
from ..graph.passes.facts import needed_shapes, shape_fact
from ..graph.passes.residuals import drop_marks
from ..graph.passes.simplify import simplify
from ..lowering.function_graph import FunctionGraph
from ..trace.assertions import BRANCHES, MISSING
from ..trace.axes import known_shape
from ..trace.derived.derivatives import drop_calls
from ..trace.lookups import note
from ..trace.trace import NeedsConcrete, Trace, Value, constant, setting
from ..trace.xp import all as xp
from .calls.binding import evaluate
from .calls.recipe import NotCaptured, Variant


def check_tensors(first: Trace, second: Trace) -> None:
    """Compare the framework's tensors that became constants in two captures."""
    # One that is not made anew comes from outside. The values of those are facts, as others may be
    # computed from them.
    outside = {id(a) for a in first.memory.lifted for b in second.memory.lifted if a is b}
    facts = {fact: fact.meaning() for fact in first.memory.outside.values()}
    note(facts)
    if not outside <= first.memory.outside.keys() or None in facts.values():
        advice = first.words.advise(
            "pass it as an argument", "make it a NumPy array, whose values are taken once"
        )
        raise NotCaptured(
            first.error(f"reads a tensor from outside, which may change between calls{advice}")
        )


def check_draws(trace: Trace, variant: Variant, other: Variant, *, drew: bool) -> None:
    """Compare the graphs of two captures.

    Args:
        drew: a generator moved in both; not in another thread, which draws once.
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
    """Return the line of a node that only one of two captured forms has."""
    for one, two in zip(graphs_of(variant), graphs_of(other), strict=True):
        known = set(two.nodes)
        for node in one.nodes:
            if node not in known and node in trace.source.locations:
                return trace.source.locations[node]
    return None


def find_number(trace: Trace, variant: Variant) -> Location | None:
    """Return the line of a number or an array that is not in the source: it was drawn."""
    statics = {leaf.name: leaf.value for leaf in variant.layout.leaves if leaf.kind == "static"}
    drawn = numbers_from_elsewhere(graphs_of(variant), trace, statics)
    for node in (node for graph in graphs_of(variant) for node in every_node(graph)):
        constants = [each.attr("value") for each in node.operands if each.op is ops.CONST]
        is_array = any(each.op is ops.ARRAY for each in node.operands)
        is_drawn = any(isinstance(value, float) and abs(value) in drawn for value in constants)
        if (is_array or is_drawn) and node in trace.source.locations:
            return trace.source.locations[node]
    return None


def check_memory(variant: Variant, again: Any) -> None:
    """Record again for tensors that are not contiguous, which shows in no value."""
    again.trace.memory.is_dense = False
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
    pairs = zip(graphs_of(a), graphs_of(b), strict=True)
    return all(one.outputs == other.outputs for one, other in pairs)


def graphs_of(variant: Variant) -> tuple[Graph, Graph]:
    return variant.graphs.forward, variant.graphs.backward


@contextmanager
def refusing_read(name: str, watched: list[Callable[[], str]]) -> Iterator[None]:
    """Raise if a capture has read a variable, whose number it would hold; even if it failed."""
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


# --- missing cotangents --------------------------------------------------------------------------


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
    gradients: dict[str, Node],
    drawn: int,
) -> None:
    """Compare what a backward gives for missing cotangents with what it gives for zeros.

    Args:
        pull: gives gradients by the inputs' names.
        given: what makes a missing cotangent, and the cotangents for all outputs.
        gradients: what they gave, whose draws began at `drawn`.

    Raises:
        NotCaptured: it is not the same.
    """
    missing, cotangents = given
    # The positions of the cotangents that a call gives.
    rows = [(i, each) for i, each in enumerate(cotangents) if isinstance(each, Value)]
    heads = [i for i, each in rows if each.node.op is ops.INPUT]
    for chosen in choices(len(heads)):
        out = {heads[i]: missing(cotangents[heads[i]]) for i in chosen}
        try:
            with setting(trace, draws=drawn):
                without = pull([out.get(i, each) for i, each in enumerate(cotangents)])
        except NotCaptured:  # then it fails where it was written, too
            continue
        if not is_as_zero(trace, gradients, without, [cotangents[i].node for i in out]):
            trace.omit(MISSING)
            raise NotCaptured(
                trace.error(
                    "gives another gradient where a cotangent is missing than where it is zero, "
                    f"which no graph tells apart{trace.words.advise('take both for the same')}"
                )
            )


def is_as_zero(
    trace: Trace, whole: dict[str, Node], gradients: dict[str, Node], missing: Collection[Node]
) -> bool:
    """Return whether gradients are those of all cotangents where some of these are zero.

    By the inputs' names: the same ops, or on a sample the same numbers.
    """
    names = tuple(whole)
    expected_gradients = vanished(_simplified([whole[name] for name in names]), missing)
    actual = dict(zip(gradients, _simplified(list(gradients.values())), strict=True))
    pairs = [
        (expected, actual.get(name))
        for name, expected in zip(names, expected_gradients, strict=True)
    ]
    if all(a is b or (a is None and b is not None and is_zero(b)) for a, b in pairs):
        return True
    return all(are_close(trace, a, b) for a, b in pairs)


def _simplified(nodes: Sequence[Node]) -> tuple[Node, ...]:
    return simplify(Graph("gradients", (), tuple(nodes))).outputs


def vanished(nodes: Sequence[Node], zeros: Collection[Node]) -> list[Node | None]:
    """Return the nodes that remain where others are zero; None for zero."""
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
    degrees = [LINEAR if each is None else CONSTANT for each in operands]
    read = [degree for i, degree in enumerate(degrees) if i not in node.op.shape_only]
    # What is linear in zeros is zero.
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
    """Return whether two values, None for zero, are the same numbers on a sample.

    None: they cannot be computed in the shapes that are known.
    """
    # The same sample each time: a capture must not depend on luck.
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


# --- each way through branches by values ---------------------------------------------------------


MOST_WAYS = 16  # of one function; each is recorded, and computed where it is not at home
MOST_GUARDS = 8  # on one way: a loop that values end has no last one


class Way:
    """The branches of one recording, taken as told, then as if each condition held.

    Attributes:
        guards: the conditions, in the order in which they were met.
        error: what to say where the ways cannot be put together.
    """

    def __init__(self, told: Sequence[bool] = ()) -> None:
        self.told = tuple(told)
        self.guards: list[Node] = []
        self.error: TraceError | None = None

    def take(self, value: Value, error: Callable[[], TraceError]) -> bool | None:
        """Return whether a condition holds on this way; None: it decides no more branches.

        Raises:
            NeedsConcrete: whether it has one element is not known.
        """
        shape = known_shape(value)
        if shape is None:
            raise NeedsConcrete(*needed_shapes(value.node))
        if math.prod(shape) != 1:
            return None
        with value.trace.backward.plainly():
            test = value if value.node.type.dtype == BOOL else xp.not_equal(value, 0)
            has_axes = test.node.type.shape != SCALAR_SHAPE
            guard = (xp.reshape(test, ()) if has_axes else test).node
        if value.trace.backward.rename is not None:  # whose names are others on each way
            guard = drop_calls(Graph("", (), (guard,))).outputs[0]
        if guard not in self.guards:
            if len(self.guards) == MOST_GUARDS:
                return None
            if self.error is None:
                # What the message asks of symbols is no question of the code's.
                asked = questions.count()
                self.error = error()
                questions.forget(asked)
            self.guards.append(guard)
        return self.taken[self.guards.index(guard)]

    @property
    def taken(self) -> tuple[bool, ...]:
        return self.told + (True,) * (len(self.guards) - len(self.told))


def record_ways(record: Callable[[Way], tuple[Trace, Variant]]) -> Variant:
    """Return one variant for all ways of a function.

    Raises `NotCaptured` if they cannot be recorded, or put together.
    """
    first, count = Way(), 0

    def explore(way: Way) -> Variant:
        nonlocal count
        count += 1
        if count > MOST_WAYS:
            raise TypeError(f"it has more than {MOST_WAYS} ways")
        trace, variant = record(way)
        # From the last condition to the first, so that each is turned around once.
        for i in reversed(range(len(way.told), len(way.guards))):
            other = Way((*way.taken[:i], False))
            alternative = explore(other)
            if other.guards[: i + 1] != way.guards[: i + 1]:
                raise TypeError("it asks for something else each time")
            variant = _either(trace, way.guards[i], variant, alternative)
        return variant

    try:
        return explore(first)
    except NeedsConcrete:
        raise
    except Exception as error:
        if first.error is None:
            raise
        raise NotCaptured(first.error) from error


def _either(trace: Trace, guard: Node, a: Variant, b: Variant) -> Variant:
    # One graph holds both ways only if they differ in nothing but tensors.
    if (a.outputs, a.fixed, a.assumed) != (b.outputs, b.fixed, b.assumed):
        raise TypeError("its ways return other things, or assert others")
    if a.notes or b.notes or a.updates or b.updates:
        raise TypeError("its ways change what they are given")
    graphs = _either_graph(trace, guard, a.graphs, b.graphs)
    omissions = {**b.omissions, **a.omissions}
    if any(
        dialect.tensors.mutable
        for dialect in map(find_dialect, trace.source.routes)
        if dialect is not None
    ):
        omissions[BRANCHES] = BRANCHES  # jax and TensorFlow compile
    facts, combines = {**b.facts, **a.facts}, a.combines or b.combines
    return replace(
        a, graphs=graphs, omissions=omissions, facts=facts, combines=combines, reach=None
    )


def _either_graph(trace: Trace, guard: Node, a: FunctionGraph, b: FunctionGraph) -> FunctionGraph:
    if a.is_random or b.is_random or a.undifferentiable != b.undifferentiable:
        raise TypeError("its ways draw, or give gradients to other outputs")
    (test,) = drop_marks(drop_calls(Graph(trace.name, (), (guard,)))).outputs
    assert test is not None
    taken = trace.value(test)
    ways = [dict(zip(each.wrt, drop_marks(each.backward).outputs, strict=True)) for each in (a, b)]
    wrt = tuple(name for name in a.inputs if any(name in way for way in ways))
    with trace.backward.plainly():
        outputs = [
            _choose(trace, taken, x, y)
            for x, y in zip(a.forward.outputs, b.forward.outputs, strict=True)
        ]
        gradients = []
        for name in wrt:
            x = a.forward.input(name)
            assert x is not None
            zero = xp.zeros_like(trace.value(x)).node
            gradients.append(_choose(trace, taken, *(way.get(name, zero) for way in ways)))
    return replace(
        a,
        forward=_graph(a.forward, b.forward, outputs),
        backward=_graph(a.backward, b.backward, gradients),
        wrt=wrt,
        first_order=a.first_order and b.first_order,
        keeps_output=False,
        second_order=False,  # its where() would give NaN of a way that is not taken
    )


def _choose(trace: Trace, taken: Value, a: Node | None, b: Node | None) -> Node | None:
    # Raises `NeedsConcrete` if it is not known whether the two are alike, `TypeError` if not.
    if a is b:
        return a
    if a is None or b is None:
        raise TypeError("one of its ways returns nothing")
    first, other = a.type, b.type
    if (first.kind, first.dtype) != (other.kind, other.dtype):
        raise TypeError(f"its ways return {first} and {other}")
    if first.shape != other.shape or first.shape not in (INPUT_SHAPE, SCALAR_SHAPE):
        shapes = [trace.shapes.known(node) for node in (a, b)]
        if None in shapes:
            raise NeedsConcrete(*needed_shapes(a), *needed_shapes(b), noted=False)
        if shapes[0] != shapes[1]:
            raise TypeError(f"its ways return the shapes {shapes[0]} and {shapes[1]}")
    return xp.where(taken, trace.value(a), trace.value(b)).node


def _graph(a: Graph, b: Graph, outputs: Sequence[Node | None]) -> Graph:
    inputs = tuple(dict.fromkeys((*a.inputs, *b.inputs)))
    locations = {**b.locations, **a.locations}
    return simplify(replace(a, inputs=inputs, outputs=tuple(outputs), locations=locations))
