"""Second captures of a function, compared with the first; raises `NotCaptured` if they differ.

- With the same arguments, where a value may have come from outside them: the graphs must be equal.
- With tensors that are not contiguous, where the code looks at memory: the graphs must be equal.
- With missing cotangents, for a backward that is told which are missing: torch tells a class that
  calls `set_materialize_grads(False)`, jax a rule with symbolic zeros. It must give the gradients
  that it gives for zeros, because a graph gets zeros everywhere.

Tested by `tests/functions/test_missing_cotangents.py`, `tests/functions/test_classes_refused.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ....core import ops
from ....core.functions.recipe import NotCaptured, Recipe, Variant
from ....core.ir import questions
from ....core.ir.graph import Graph, Location, Node, every_node, make_node, walk
from ....core.ir.op import BOOL, INPUT_SHAPE, SCALAR_SHAPE, WHOLE
from ....core.lowering.function_graph import FunctionGraph
from ....core.ops.properties import CONSTANT, LINEAR, ZERO, is_zero
from ....core.passes.facts import shape_fact
from ....core.passes.simplify import simplify
from ....core.trace.lookups import note
from ....core.trace.source import BRANCHES, MISSING, NO_GRADIENTS
from ....core.trace.trace import NeedsConcrete, Value, constant, known_shape, setting
from ....core.trace.xp import all as xp
from ....errors import TraceError
from ...capture.copies.witness import numbers_from_elsewhere
from ...capture.dialect import find_dialect
from ...capture.values.indexing import Picked
from ...lowering.calls import drop_calls
from ...passes.memory import without_kept
from ...passes.residuals import drop_marks
from ...passes.shapes import needed_shapes
from ...trace.code_trace import CodeTrace, Pair
from ..calls.assumptions import evaluate
from ..calls.explained_errors import is_users_own
from ..proof.verdicts import ProofSubject, leave_open


def check_tensors(first: CodeTrace, second: CodeTrace) -> None:
    """Compare the framework's tensors that became constants in two captures."""
    # A tensor that is the same object in both captures comes from outside. Its value must be a
    # fact, because other constants may be computed from it.
    shared_ids = {id(a) for a in first.memory.lifted for b in second.memory.lifted if a is b}
    facts = {fact: fact.meaning() for fact in first.memory.outside.values()}
    note(facts)
    if not shared_ids <= first.memory.outside.keys() or None in facts.values():
        advice = first.words.advise(
            "pass it as an argument", "make it a NumPy array, whose values are taken once"
        )
        raise NotCaptured(
            first.error(f"reads a tensor from outside, which may change between calls{advice}")
        )


def check_draws(trace: CodeTrace, variant: Variant, other: Variant, *, drew: bool) -> None:
    """Compare the graphs of two captures.

    `drew`: a random generator advanced during both, so the code draws from it. One that advanced
    during one alone was used by another thread.
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


def find_difference(trace: CodeTrace, variant: Variant, other: Variant) -> Location | None:
    """Return the line of a node that only one of two captured forms has."""
    for graph, other_graph in zip(graphs_of(variant), graphs_of(other), strict=True):
        other_nodes = set(other_graph.nodes)
        for node in graph.nodes:
            if node not in other_nodes and node in trace.source.locations:
                return trace.source.locations[node]
    return None


def find_number(trace: CodeTrace, variant: Variant) -> Location | None:
    """Return the line of a number or an array that is not in the source: it was drawn."""
    statics = {leaf.name: leaf.value for leaf in variant.layout.leaves if leaf.kind == "static"}
    numbers = numbers_from_elsewhere(graphs_of(variant), trace, statics)
    for node in (node for graph in graphs_of(variant) for node in every_node(graph)):
        constants = [each.attr("value") for each in node.operands if each.op is ops.CONST]
        is_array = any(each.op is ops.ARRAY for each in node.operands)
        is_drawn = any(isinstance(value, float) and abs(value) in numbers for value in constants)
        if (is_array or is_drawn) and node in trace.source.locations:
            return trace.source.locations[node]
    return None


def check_memory(variant: Variant, again: Any) -> None:
    """Record again for tensors that are not contiguous, which no value tells from others.

    `again` is a recording of the same function that has not run yet.
    """
    again.trace.memory.is_dense = False
    try:
        other_variant = again.run_asking()
    except NeedsConcrete:
        raise
    except NotCaptured as error:
        if error.__cause__ is not None and is_users_own(again.trace, error.__cause__):
            return
        raise  # what such tensors lead to, no graph has
    except Exception:  # noqa: BLE001  # the user's code refuses such tensors itself
        return
    if not are_same(variant, other_variant):
        problem = "computes something else for tensors that are not contiguous"
        raise NotCaptured(again.trace.error(f"{problem}, which is not captured"))


def are_same(a: Variant, b: Variant) -> bool:
    pairs = zip(graphs_of(a), graphs_of(b), strict=True)
    return all(graph_a.outputs == graph_b.outputs for graph_a, graph_b in pairs)


def graphs_of(variant: Variant) -> tuple[Graph, Graph]:
    return variant.graphs.forward, variant.graphs.backward


@contextmanager
def refusing_read(name: str, watched: list[Callable[[], str]]) -> Iterator[None]:
    """Raise if a capture has read a variable, whose value would be a constant of the graph.

    A capture that failed may have failed for that reason, so its variables are reported, too.
    `watched` are functions that each list the variables that a library has seen read.
    """
    failure: Exception | None = None
    try:
        yield
    except (NeedsConcrete, NotCaptured):
        raise
    except Exception as error:  # noqa: BLE001  # raised below, unless a variable was read
        failure = error
    variables = ", ".join(filter(None, [names() for names in watched]))
    if variables:
        message = f"reads {variables}, which waits for a gradient. Pass it as an argument"
        raise NotCaptured(TraceError(f"function {name!r} {message}")) from failure
    if failure is not None:
        raise failure


UNKNOWN_SHAPE = (31,)  # the shape of a sample where no fact tells it
TOLERANCE = 1e-6  # relative, in float64: formulas that differ in rounding alone
MAX_OUTPUTS = 4  # of which every choice is tried; of more, one alone is missing or given


def missing_choices(count: int) -> Iterator[tuple[int, ...]]:
    """Yield the choices of missing cotangents among `count`, at least one of which is given."""
    sizes = range(1, count) if count <= MAX_OUTPUTS else dict.fromkeys((1, count - 1))
    for size in sizes:
        yield from itertools.combinations(range(count), size)


def compare_missing(
    trace: CodeTrace,
    pull: Callable[[list[Any]], dict[str, Node]],
    make_missing: Callable[[Any], Any],
    cotangents: list[Any],
    *,
    gradients: dict[str, Node],
    drawn: int,
) -> None:
    """Compare what a backward gives for missing cotangents with what it gives for zeros.

    Args:
        pull: runs the backward for cotangents; returns gradients by the inputs' names.
        make_missing: returns the library's object for a missing cotangent, of a value's shape.
        cotangents: those of all outputs; missing already for an output that never has one.
        gradients: those that `pull` returned for `cotangents`.
        drawn: how many draws the trace had made before that; each further run begins there.
    """
    # The other outputs have no gradient: no call gives a cotangent for them.
    symbols = [(i, each) for i, each in enumerate(cotangents) if isinstance(each, Value)]
    positions = [i for i, each in symbols if each.node.op is ops.INPUT]
    for choice in missing_choices(len(positions)):
        missing = {positions[i]: make_missing(cotangents[positions[i]]) for i in choice}
        try:
            with setting(trace, draws=drawn):
                reduced = pull([missing.get(i, each) for i, each in enumerate(cotangents)])
        except NotCaptured:
            # The backward raises for these, as it would in its own library: no wrong gradient.
            continue
        if not is_as_zero(trace, gradients, reduced, [cotangents[i].node for i in missing]):
            trace.omit(MISSING)
            raise NotCaptured(
                trace.error(
                    "gives another gradient where a cotangent is missing than where it is zero, "
                    f"which no graph tells apart{trace.words.advise('take both for the same')}"
                )
            )
        if gradients.keys() - reduced.keys():  # of which a graph makes zeros
            trace.omit(NO_GRADIENTS)


def is_as_zero(
    trace: CodeTrace, whole: dict[str, Node], gradients: dict[str, Node], missing: Collection[Node]
) -> bool:
    """Return whether `gradients` equal `whole` where the cotangents `missing` are zero.

    Both are by the inputs' names. Equal are the same ops, or the same numbers on a sample.
    """
    names = tuple(whole)
    expected_gradients = set_to_zero(_simplified([whole[name] for name in names]), missing)
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


def set_to_zero(nodes: Sequence[Node], zeros: Collection[Node]) -> list[Node | None]:
    """Return the values of nodes where the nodes `zeros` are zero; None for zero."""
    values: dict[Node, Node | None] = {}
    for node in Graph("gradients", (), tuple(nodes)).nodes:
        operands = [values[operand] for operand in node.operands]
        if node in zeros:
            values[node] = None
        elif all(new is old for new, old in zip(operands, node.operands, strict=True)):
            values[node] = node
        else:
            values[node] = _rebuild(node, operands)
    return [values[node] for node in nodes]


def _rebuild(node: Node, operands: Sequence[Node | None]) -> Node | None:
    # Return the node for other operands, of which None is zero; None if it is zero itself.
    degrees = [LINEAR if each is None else ZERO if is_zero(each) else CONSTANT for each in operands]
    read = [degree for i, degree in enumerate(degrees) if i not in node.op.shape_only]
    # An op that is linear in its zero operands is zero.
    if LINEAR in read and node.op.degree is not None and node.op.degree(node, read) == LINEAR:
        return None
    nonzero = [each for each in operands if each is not None]
    if node.op in (ops.ADD, ops.SUB) and len(nonzero) == 1 and nonzero[0].type == node.type:
        is_positive = node.op is ops.ADD or operands[0] is not None
        return nonzero[0] if is_positive else make_node(ops.NEG, nonzero, {}, node.type)

    def zeros_like(old: Node) -> Node:
        attrs = {"dtype": old.type.dtype}
        return make_node(ops.FULL_LIKE, (old, constant(0.0)), attrs, old.type)

    pairs = zip(operands, node.operands, strict=True)
    all_operands = [zeros_like(old) if new is None else new for new, old in pairs]
    return make_node(node.op, all_operands, dict(node.attrs), node.type)


def are_close(trace: CodeTrace, a: Node | None, b: Node | None) -> bool | None:
    """Return whether two values (None: zero) are equal on a sample; None: no sample fits them."""
    # A fixed seed: whether a function is captured must not depend on luck.
    generator = np.random.default_rng(7)
    arrays: dict[str, Any] = {}
    for node in walk([each for each in (a, b) if each is not None]):
        if node.op is ops.INPUT:
            shape = trace.facts.get(shape_fact(node, "shape") or "", UNKNOWN_SHAPE)
            is_tensor = node.type.kind == "tensor" and node.type.shape != SCALAR_SHAPE
            array = generator.normal(size=shape if is_tensor else ())
            if node.type.dtype == BOOL:
                array = array > 0
            elif node.type.dtype in WHOLE:
                array = abs(array.round()).astype(np.int64)
            arrays[node.attr("name")] = array
    try:
        values = [0.0 if each is None else evaluate(each, arrays, "float64") for each in (a, b)]
    except Exception:  # noqa: BLE001  (whatever NumPy says of such shapes)
        return None
    return np.allclose(*values, rtol=TOLERANCE, atol=1e-12, equal_nan=True)


def check_output(trace: CodeTrace, output: Any) -> Any:
    """Return an output that is no symbolic value: a number, a word, None."""
    if isinstance(output, bool | int | float | str | type(None)):
        return output
    problem = f"returns a {type(output).__name__} that it did not compute from its arguments"
    if isinstance(output, Picked):
        advice = trace.words.advise("use xp.where(mask, x, 0)")
        problem = f"selects elements by a mask, so that the values decide on the size{advice}"
    elif isinstance(output, Pair):
        problem = "returns complex numbers: return their real and their imaginary part"
    raise NotCaptured(trace.error(problem))


def note_open(recipe: Recipe, reason: str) -> str:
    code = next((getattr(f, "__code__", None) for f in recipe.functions), None)
    return leave_open(ProofSubject(recipe.subject, code, __name__.partition(".")[0]), reason)


# --- one graph for a function that branches on tensor values --------------------------------------
# The function is recorded once per path through its branches; the paths are merged into one graph
# with `where`. The graph is for other frameworks: torch runs the original, whereas the compilers of
# jax and TensorFlow cannot branch on values. Tested by
# `tests/capture/control/test_branches_by_values.py`.
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


def record_paths(record: Callable[[BranchPath], tuple[CodeTrace, Variant]]) -> Variant:
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
    record: Callable[[BranchPath], tuple[CodeTrace, Variant]],
    path: BranchPath,
    counts: Iterator[int],
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


def _merge_paths(trace: CodeTrace, condition: Node, a: Variant, b: Variant) -> Variant:
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
    trace: CodeTrace, condition: Node, a: FunctionGraph, b: FunctionGraph
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
        forward=_join(a.forward, b.forward, outputs),
        backward=_join(a.backward, b.backward, gradients),
        wrt=wrt,
        first_order=a.first_order and b.first_order,
        keeps_output=False,
        second_order=False,  # its where() would give NaN of a path that is not taken
    )


def _choose(trace: CodeTrace, condition: Value, a: Node | None, b: Node | None) -> Node | None:
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


def _join(a: Graph, b: Graph, outputs: Sequence[Node | None]) -> Graph:
    # Return `a` with the inputs of both, and with other outputs.
    inputs = tuple(dict.fromkeys((*a.inputs, *b.inputs)))
    locations = {**b.locations, **a.locations}
    return simplify(replace(a, inputs=inputs, outputs=tuple(outputs), locations=locations))
