"""Branches by values in somebody else's code: each way through it is recorded, and values choose
among what the ways give.

Torch runs the original, which takes one way. The compilers of jax and TensorFlow cannot: there the
graphs run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...capture.code.table import find_dialect
from ...errors import TraceError
from ...graph.ir import questions
from ...graph.ir.graph import Graph, Node
from ...graph.ir.types import BOOL, INPUT_SHAPE, SCALAR_SHAPE
from ...graph.passes.facts import needed_shapes
from ...graph.passes.residuals import drop_marks
from ...graph.passes.simplify import simplify
from ...lowering.function_graph import FunctionGraph
from ...trace.assertions import BRANCHES
from ...trace.axes import known_shape
from ...trace.derived.calls import drop_calls
from ...trace.trace import NeedsConcrete, Trace, Value
from ...trace.xp import all as xp
from ..calls.recipe import NotCaptured, Variant

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
        with value.trace.plainly():
            test = value if value.node.type.dtype == BOOL else xp.not_equal(value, 0)
            has_axes = test.node.type.shape != SCALAR_SHAPE
            guard = (xp.reshape(test, ()) if has_axes else test).node
        if value.trace.rename is not None:  # whose names are others on each way
            guard = drop_calls(Graph("", (), (guard,))).outputs[0]
        if guard not in self.guards:
            if len(self.guards) == MOST_GUARDS:
                return None
            if self.error is None:
                asked = questions.count()
                self.error = error()
                questions.forget(asked)
            self.guards.append(guard)
        return self.taken[self.guards.index(guard)]

    @property
    def taken(self) -> tuple[bool, ...]:
        """How each of its branches was taken."""
        return self.told + (True,) * (len(self.guards) - len(self.told))


def record_ways(record: Callable[[Way], tuple[Trace, Variant]]) -> Variant:
    """Return the graphs of a function, of all its ways.

    Args:
        record: records one of them.

    Raises:
        NotCaptured: they cannot be recorded, or put together.
    """
    first, count = Way(), 0

    def explore(way: Way) -> Variant:
        nonlocal count
        count += 1
        if count > MOST_WAYS:
            raise TypeError(f"it has more than {MOST_WAYS} ways")
        trace, variant = record(way)
        for i in reversed(range(len(way.told), len(way.guards))):
            other = Way((*way.taken[:i], False))
            found = explore(other)
            if other.guards[: i + 1] != way.guards[: i + 1]:
                raise TypeError("it asks for something else each time")
            variant = _either(trace, way.guards[i], variant, found)
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
    """Return what gives the one where a condition holds, else the other.

    Raises:
        TypeError: they are not alike, or do more than to compute.
    """
    if (a.outputs, a.fixed, a.assumed) != (b.outputs, b.fixed, b.assumed):
        raise TypeError("its ways return other things, or assert others")
    if a.notes or b.notes or a.updates or b.updates:
        raise TypeError("its ways change what they are given")
    graphs = _either_graph(trace, guard, a.graphs, b.graphs)
    omissions = {**b.omissions, **a.omissions}
    if any(dialect.mutable for dialect in map(find_dialect, trace.routes) if dialect is not None):
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
    with trace.plainly():
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
    """Return the one or the other of two alike.

    Raises:
        NeedsConcrete: whether they are is not known.
        TypeError: they differ in dtype or shape.
    """
    if a is b:
        return a
    if a is None or b is None:
        raise TypeError("one of its ways returns nothing")
    own, other = a.type, b.type
    if (own.kind, own.dtype) != (other.kind, other.dtype):
        raise TypeError(f"its ways return {own} and {other}")
    if own.shape != other.shape or own.shape not in (INPUT_SHAPE, SCALAR_SHAPE):
        shapes = [trace.shapes.known(node) for node in (a, b)]
        if None in shapes:
            raise NeedsConcrete(*needed_shapes(a), *needed_shapes(b), noted=False)
        if shapes[0] != shapes[1]:
            raise TypeError(f"its ways return the shapes {shapes[0]} and {shapes[1]}")
    return xp.where(taken, trace.value(a), trace.value(b)).node


def _graph(a: Graph, b: Graph, outputs: Sequence[Node | None]) -> Graph:
    """Return a graph with the inputs and places of two."""
    inputs = tuple(dict.fromkeys((*a.inputs, *b.inputs)))
    locations = {**b.locations, **a.locations}
    return simplify(replace(a, inputs=inputs, outputs=tuple(outputs), locations=locations))
