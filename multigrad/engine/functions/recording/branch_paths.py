"""One graph for a function that branches on tensor values.

The function is recorded once per path through its branches; the paths are merged into one graph
with `where`. The graph is for other frameworks: torch runs the original, whereas the compilers of
jax and TensorFlow cannot branch on values. Tested by
`tests/capture/control/test_branches_by_values.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ....core.functions.capture_errors import NotCaptured
from ....core.functions.recipe import Variant
from ....core.ir import questions
from ....core.ir.graph import Graph, Node
from ....core.ir.op import BOOL, INPUT_SHAPE, SCALAR_SHAPE
from ....core.lowering.function_graph import FunctionGraph
from ....core.passes.facts import needed_shapes
from ....core.passes.simplify import simplify
from ....core.trace.axes import known_shape
from ....core.trace.source import BRANCHES
from ....core.trace.trace import NeedsConcrete, Trace, Value
from ....core.trace.xp import all as xp
from ....errors import TraceError
from ...capture.dialect import find_dialect
from ...lowering.calls import drop_calls
from ...passes.memory import without_kept
from ...passes.residuals import drop_marks

MAX_PATHS = 16  # of one function; each is recorded, and the merged graph computes all of them
MAX_CONDITIONS = 8  # on one path: a loop that ends by a tensor's value may never end


class BranchPath:
    """The branch decisions of one recording: those prescribed, then "true" for each later one.

    Attributes:
        conditions: the conditions met, in their order, each once.
        error: the error to raise if the paths cannot be merged: that of the first condition.
    """

    def __init__(self, prescribed: Sequence[bool] = ()) -> None:
        self.prescribed = tuple(prescribed)
        self.conditions: list[Node] = []
        self.error: TraceError | None = None

    def decide(self, value: Value, error: Callable[[], TraceError]) -> bool | None:
        """Return whether a condition holds on this path.

        None if it has several elements, or if the path has its most conditions already.
        `NeedsConcrete` if it is not known whether it has one element.
        """
        shape = known_shape(value)
        if shape is None:
            raise NeedsConcrete(*needed_shapes(value.node))
        if math.prod(shape) != 1:
            return None
        with value.trace.backward.plainly():
            test = value if value.node.type.dtype == BOOL else xp.not_equal(value, 0)
            has_axes = test.node.type.shape != SCALAR_SHAPE
            condition = (xp.reshape(test, ()) if has_axes else test).node
        if value.trace.backward.rename is not None:
            # Renamed nodes are new in each recording, so conditions are compared without them.
            condition = drop_calls(Graph("", (), (condition,))).outputs[0]
        if condition not in self.conditions:
            if len(self.conditions) == MAX_CONDITIONS:
                return None
            if self.error is None:
                # The error message asks for facts about symbols, which the code itself did not.
                question_count = questions.count()
                self.error = error()
                questions.forget(question_count)
            self.conditions.append(condition)
        return self.decisions[self.conditions.index(condition)]

    @property
    def decisions(self) -> tuple[bool, ...]:
        """Whether each condition holds on this path."""
        return self.prescribed + (True,) * (len(self.conditions) - len(self.prescribed))


def record_paths(record: Callable[[BranchPath], tuple[Trace, Variant]]) -> Variant:
    """Return one variant for all paths through a function's branches.

    `record` records it along one path. `NotCaptured` if it cannot, or if they cannot be merged.
    """
    root = BranchPath()
    try:
        return _explore(record, root, itertools.count(1))
    except NeedsConcrete:
        raise
    except Exception as error:
        if root.error is None:
            raise
        raise NotCaptured(root.error) from error


def _explore(
    record: Callable[[BranchPath], tuple[Trace, Variant]], path: BranchPath, counts: Iterator[int]
) -> Variant:
    # Return the variant for all paths that begin with the prescribed decisions.
    if next(counts) > MAX_PATHS:
        raise TypeError(f"it has more than {MAX_PATHS} paths")
    trace, variant = record(path)
    # From the last condition to the first: `variant` then already holds both branches of every
    # later condition, and each false branch is explored once.
    for i in reversed(range(len(path.prescribed), len(path.conditions))):
        false_path = BranchPath((*path.decisions[:i], False))
        false_variant = _explore(record, false_path, counts)
        if false_path.conditions[: i + 1] != path.conditions[: i + 1]:
            raise TypeError("its conditions differ each time it runs")
        variant = _merge_paths(trace, path.conditions[i], variant, false_variant)
    return variant


def _merge_paths(trace: Trace, condition: Node, a: Variant, b: Variant) -> Variant:
    # Return a variant that gives a's tensors if the condition holds, b's if not. One graph holds
    # both paths only if they differ in nothing but tensors.
    if (a.outputs, a.fixed, a.assumed) != (b.outputs, b.fixed, b.assumed):
        raise TypeError("its paths return other things, or assert others")
    if a.notes or b.notes or a.updates or b.updates:
        raise TypeError("its paths change what they are given")
    graphs = _merge_graphs(trace, condition, a.graphs, b.graphs)
    omissions = {**b.omissions, **a.omissions}
    dialects = filter(None, map(find_dialect, trace.source.routes))
    if any(dialect.tensors.mutable for dialect in dialects):
        omissions[BRANCHES] = BRANCHES  # torch runs the original; jax and TensorFlow compile
    facts = {**b.facts, **a.facts}
    return replace(a, graphs=graphs, omissions=omissions, facts=facts, reach=None)


def _merge_graphs(
    trace: Trace, condition: Node, a: FunctionGraph, b: FunctionGraph
) -> FunctionGraph:
    if a.is_random or b.is_random or a.undifferentiable != b.undifferentiable:
        raise TypeError("its paths draw, or give gradients to other outputs")
    bare = without_kept(drop_marks(drop_calls(Graph(trace.name, (), (condition,)))))
    (bare_condition,) = bare.outputs
    assert bare_condition is not None
    test = trace.value(bare_condition)
    by_name = [
        dict(zip(each.wrt, drop_marks(each.backward).outputs, strict=True)) for each in (a, b)
    ]
    wrt = tuple(name for name in a.inputs if any(name in each for each in by_name))
    with trace.backward.plainly():
        outputs = [
            _choose(trace, test, x, y)
            for x, y in zip(a.forward.outputs, b.forward.outputs, strict=True)
        ]
        gradients = []
        for name in wrt:
            x = a.forward.input(name)
            assert x is not None
            zero = xp.zeros_like(trace.value(x)).node
            gradients.append(_choose(trace, test, *(each.get(name, zero) for each in by_name)))
    return replace(
        a,
        forward=_rebuild(a.forward, b.forward, outputs),
        backward=_rebuild(a.backward, b.backward, gradients),
        wrt=wrt,
        first_order=a.first_order and b.first_order,
        keeps_output=False,
        second_order=False,  # its where() would give NaN of a path that is not taken
    )


def _choose(trace: Trace, condition: Value, a: Node | None, b: Node | None) -> Node | None:
    # Return where(condition, a, b). Raises `TypeError` if the two differ in kind, dtype or shape,
    # `NeedsConcrete` if their shapes are not known.
    if a is b:
        return a
    if a is None or b is None:
        raise TypeError("one of its paths returns nothing")
    a_type, b_type = a.type, b.type
    if (a_type.kind, a_type.dtype) != (b_type.kind, b_type.dtype):
        raise TypeError(f"its paths return {a_type} and {b_type}")
    if a_type.shape != b_type.shape or a_type.shape not in (INPUT_SHAPE, SCALAR_SHAPE):
        shapes = [trace.shapes.known(node) for node in (a, b)]
        if None in shapes:
            raise NeedsConcrete(*needed_shapes(a), *needed_shapes(b), noted=False)
        if shapes[0] != shapes[1]:
            raise TypeError(f"its paths return the shapes {shapes[0]} and {shapes[1]}")
    return xp.where(condition, trace.value(a), trace.value(b)).node


def _rebuild(a: Graph, b: Graph, outputs: Sequence[Node | None]) -> Graph:
    # Return `a` with the inputs of both, and with other outputs.
    inputs = tuple(dict.fromkeys((*a.inputs, *b.inputs)))
    locations = {**b.locations, **a.locations}
    return simplify(replace(a, inputs=inputs, outputs=tuple(outputs), locations=locations))
