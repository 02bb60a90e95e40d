"""Loops that go on by a condition: `while_loop` of the libraries, `xp.fori_loop` to a tensor.

    run_loop                  unrolls the loop as long as its condition is a known number
      record_structured_loop  once a tensor decides: variables of any structure become tensors
        record_loop           records one turn, and one node WHILE_LOOP for each carried tensor

A recorded loop has a graph for its turn and one for its condition, which are regions of its nodes.
Their inputs are what is carried, then the constants: values from around the loop, and all that does
not depend on the carry, which are computed once before it. `control_flow.py` makes its regions
of the same parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ....core import ops
from ....core.ir.graph import Graph, Node, Region, dependents, make_node, walk
from ....core.ir.op import BOOL, INPUT_SHAPE, INT32, SCALAR_SHAPE, UNKNOWN, T, Type
from ....core.passes.simplify import rebuild, simplify, substitute
from ....core.support.trees import optree
from ....core.trace.coercion import lift_array
from ....core.trace.trace import Value, apply, is_symbolic_tensor, known_shape, lift
from ....core.trace.xp import all as xp
from ...lowering.calls import drop_calls
from ...ops.loops import keeps
from ...trace.code_trace import CodeTrace
from ...trace.derived.scans import asked_of, loop_values
from .parts import rank

Tensor = Any
Tensors = Sequence[Value]
MOST_OPERATIONS = 5000  # of one unrolled loop; compilers take minutes for more


# --- unrolled as long as the condition is known --------------------------------------------------
def run_loop(
    values: Sequence[Any],
    goes_on: Callable[..., Any],
    step: Callable[..., Any],
    most: int | None = None,
) -> Any:
    """Return a loop's final variables; the loop is unrolled as long as its condition is known.

    Args:
        values: the variables that it begins with: tensors and numbers in any structure.
        goes_on: (*variables) -> the condition.
        step: (*variables) -> the next variables.
        most: the maximum number of turns.

    Raises:
        TypeError: it has more turns than can be unrolled, counts in floats that round, or a turn
            changes a dtype or a shape in a loop that ends depending on values.
    """
    count, trace = 0, find_trace(values)
    operations_before = _count_operations(trace)
    while most is None or count < most:
        condition = goes_on(*values)
        if is_symbolic_tensor(condition):
            # The turns so far are unrolled; from here on values decide, so the rest is one loop.
            turns_left = None if most is None else most - count
            return record_structured_loop(condition.trace, values, goes_on, step, turns_left)
        if not condition:
            break
        previous, values = values, step(*values)
        count += 1
        if trace is None:
            trace = find_trace(values)
            operations_before = _count_operations(trace)
        if max(count, _count_operations(trace) - operations_before) > MOST_OPERATIONS:
            raise TypeError(
                f"a loop of {count} turns and more: at most {MOST_OPERATIONS} operations are "
                "unrolled"
            )
        _check_counters(previous, values)
    return values


def _count_operations(trace: CodeTrace | None) -> int:
    return 0 if trace is None else len(trace.source.locations)


def _check_counters(before: Any, after: Any) -> None:
    """Refuse a float that a turn changes and float32 would round.

    How often such a sum stays below a limit depends on the dtype, and a number has none here.
    """
    pairs = zip(optree.tree_leaves(before), optree.tree_leaves(after), strict=False)
    for old, new in (map(_known_number, pair) for pair in pairs):
        if isinstance(new, float) and new != old and float(np.float32(new)) != new:
            raise TypeError(
                f"a loop whose number {new} is another one in float32. Count by integers"
            )


def _known_number(value: Any) -> Any:
    is_known = isinstance(value, Value) and value.node.op is ops.CONST
    return value.node.attr("value") if is_known else value


def find_trace(values: Any) -> CodeTrace | None:
    leaves = optree.tree_leaves(values, none_is_leaf=True)
    return next((leaf.trace for leaf in leaves if isinstance(leaf, Value)), None)


# --- recorded once a tensor decides ---------------------------------------------------------------
def record_structured_loop(
    trace: CodeTrace,
    values: Sequence[Any],
    goes_on: Callable[..., Any],
    step: Callable[..., Any],
    most: int | None,
) -> Any:
    """Record a loop over variables in any structure, and return the final ones as tensors.

    It carries their leaves, and the number of turns at the end. For the arguments and errors see
    `run_loop`.
    """
    leaves, tree = optree.tree_flatten([*values, 0], none_is_leaf=True)

    def condition(carried: Tensors) -> Value:
        *variables, count = optree.tree_unflatten(tree, carried)
        verdict = goes_on(*variables)
        if not isinstance(verdict, Value) or rank(verdict):
            raise TypeError(f"a loop whose condition is no bool without axes: {verdict!r:.60}")
        return verdict if most is None else xp.logical_and(count < most, verdict)

    def turn(carried: Tensors) -> list[Value]:
        *variables, count = optree.tree_unflatten(tree, carried)
        carry, nesting = optree.tree_flatten([*step(*variables), count + 1], none_is_leaf=True)
        if nesting != tree:
            raise TypeError(f"a loop that carries {tree}, and {nesting} after a turn")
        return numbers.after_turn(carry)

    numbers = CarriedNumbers(trace, leaves)
    ends = numbers.record(lambda initial: record_loop(trace, initial, condition, turn))
    return optree.tree_unflatten(tree, ends)[:-1]


def record_loop(
    trace: CodeTrace,
    initial: Tensors,
    goes_on: Callable[[Tensors], Value],
    turn: Callable[[Tensors], Tensors],
) -> list[Value]:
    """Record a loop over tensors and return those that it carries at its end.

    Raises:
        TypeError: a turn changes a dtype or a shape, makes an assertion or draws random numbers.
    """
    # One turn and its condition are recorded on symbols of what is carried.
    types = [without_lengths(value.node.type) for value in initial]
    effects_before = count_effects(trace)
    with carried_symbols(trace, initial, types) as symbols:
        test = goes_on(symbols)
        carry_after = list(turn(symbols))
    if count_effects(trace) != effects_before:
        raise TypeError("a loop that goes on by values, and asserts something or draws in a turn")
    if test.node.type.kind != "tensor" or test.node.type.dtype != BOOL:
        raise TypeError(f"a loop whose condition is {test.node.type}, not one bool")
    check_types_kept(types, carry_after)
    # Then cut out of the trace: from the symbols and the constants to the results.
    carried = [value.node for value in symbols]
    nodes = (test.node, *(value.node for value in carry_after))
    condition_node, *after_nodes = drop_calls(Graph(trace.name, (), nodes)).outputs
    constants = find_constants(trace, carried, (condition_node, *after_nodes))

    def make_regions(types: Sequence[Type]) -> tuple[Region, Region]:
        names = [f"carry_{i}" for i in range(len(carried))]
        inputs = make_inputs([*zip(names, carried, types, strict=True)], constants)
        return (
            make_region("body", inputs, after_nodes, trace),
            make_region("condition", inputs, [condition_node], trace),
        )

    (body, condition), _ = widen_until_kept(types, make_regions)
    operands = [*(value.node for value in initial), *constants]
    return loop_values(trace, ops.WHILE_LOOP, operands, {"condition": condition, "body": body})


# --- numbers that are carried ---------------------------------------------------------------------
class WrongGuess(Exception):
    """A carried number, by its place, has another dtype after a turn than was guessed."""


class CarriedNumbers:
    """The carry of a loop, whose numbers become tensors of the dtype that they have after a turn.

        total = 0.0
        while ...: total = total + x_float64.sum()

    At first 0.0 is taken for a tensor of T. The first turn gives float64: `after_turn` raises
    WrongGuess, and `record` begins anew with that dtype, at most once for each leaf.

    Attributes:
        leaves: what is carried at the beginning: tensors and numbers.
        dtypes: of each leaf; those of numbers are guesses.
    """

    def __init__(self, trace: CodeTrace, leaves: Sequence[Any]) -> None:
        self.trace, self.leaves = trace, leaves
        self.dtypes = [guess_dtype(trace, leaf) for leaf in leaves]

    def after_turn(self, leaves: Sequence[Any]) -> list[Value]:
        """Return the carry after a turn as tensors; WrongGuess if a number is one of another dtype
        now.
        """
        for i, (initial, leaf) in enumerate(zip(self.leaves, leaves, strict=True)):
            dtype = leaf.node.type.dtype if is_symbolic_tensor(leaf) else ""
            is_scalar = isinstance(initial, Value) and initial.node.type.kind == "scalar"
            is_number = is_scalar or isinstance(initial, bool | int | float)  # it takes any dtype
            if is_number and dtype not in ("", self.dtypes[i]):
                raise WrongGuess(i, dtype)
        return self._as_tensors(leaves)

    def record(self, record: Callable[[Tensors], list[Value]]) -> list[Value]:
        """Return the results of `record`, called with the initial values of a loop as tensors."""
        for _ in self.leaves or [None]:
            try:
                return record(self._as_tensors(self.leaves))
            except WrongGuess as guess:
                position, dtype = guess.args
                self.dtypes[position] = dtype
        raise TypeError("a loop that carries a number, which takes other dtypes at each turn")

    def _as_tensors(self, leaves: Sequence[Any]) -> list[Value]:
        return [as_tensor(self.trace, x, d) for x, d in zip(leaves, self.dtypes, strict=True)]


def guess_dtype(trace: CodeTrace, leaf: Any) -> str:
    """Return the dtype of a leaf; for a number, the dtype of its kind."""
    type_ = (leaf.node if isinstance(leaf, Value) else lift(trace, leaf)).type
    kinds = {"bool": BOOL, "int": INT32, "float": T}
    return type_.dtype if type_.kind == "tensor" else kinds[type_.dtype]


def as_tensor(trace: CodeTrace, leaf: Any, dtype: str) -> Value:
    """Return a leaf as a tensor; a number gets the given dtype."""
    value = leaf if isinstance(leaf, Value) else trace.value(lift(trace, leaf))
    return filled(trace, value, dtype, ()) if value.node.type.kind == "scalar" else value


def filled(trace: CodeTrace, number: Value, dtype: str, like: Value | Sequence[int]) -> Value:
    # Shaped like another or by lengths. Unlike `xp.full_like` it takes integer dtypes too.
    if isinstance(like, Value):
        return apply(ops.FULL_LIKE, like, number, dtype=dtype)
    ones = trace.value(lift_array(trace, np.ones(tuple(like) or (1,))))
    full = apply(ops.FULL_LIKE, ones, number, dtype=dtype)
    return full if like else xp.reshape(full, ())


# --- the regions of a loop: types, symbols, constants, graphs -------------------------------------
def widen_until_kept(
    types: Sequence[Type], make_regions: Callable[[Sequence[Type]], Sequence[Region]]
) -> tuple[Sequence[Region], Sequence[Type]]:
    """Return the regions of a loop and the types of its carry, which a turn keeps.

    Args:
        types: of what is carried at the beginning.
        make_regions: (types of the carry) -> new regions; the outputs of the first one begin with
            what is carried.
    """
    while True:
        regions = make_regions(types)
        new_types = [node.type for node in regions[0].graph.outputs[: len(types)]]
        if all(map(keeps, new_types, types)):
            return regions, types
        # The length may be the input's in other words; whether it stays is checked at run time.
        types = [
            type_ if keeps(new_type, type_) else Type("tensor", type_.dtype, UNKNOWN)
            for type_, new_type in zip(types, new_types, strict=True)
        ]


def without_lengths(type_: Type) -> Type:
    """Return a type with an unknown shape, unless that is the input's or empty."""
    if type_.kind != "tensor" or type_.shape in (INPUT_SHAPE, SCALAR_SHAPE, UNKNOWN):
        return type_
    return Type(type_.kind, type_.dtype, UNKNOWN)


def check_types_kept(types: Sequence[Type], after: Tensors) -> None:
    if len(types) != len(after):
        raise TypeError(f"a loop that carries {len(types)} tensors, and {len(after)} after a turn")
    for type_, value in zip(types, after, strict=True):
        type_after = value.node.type
        if (type_after.kind, type_after.dtype) != (type_.kind, type_.dtype):
            raise TypeError(f"a loop that carries {type_}, and {type_after} after a turn")


def count_effects(trace: CodeTrace) -> tuple[int, int]:
    """Return how many assertions and draws are recorded, which the turns of a loop cannot make."""
    return len(trace.limits.assumed), trace.draws


@contextmanager
def carried_symbols(
    trace: CodeTrace, initial: Tensors, types: Sequence[Type], rows: int = 0
) -> Iterator[list[Value]]:
    """Yield symbols of these types for the carry during a turn.

    A question about a symbol's shape becomes one about the value that the loop begins with; facts
    about the symbols are removed at the end. The last `rows` symbols stand for rows.
    """
    sources: dict[str, Value] = {}  # by the symbol's name
    carry = []
    for i, (value, type_) in enumerate(zip(initial, types, strict=True)):
        # Numbered per capture, not per process: the same names recur in each capture, which would
        # else ask for new facts forever.
        trace.facts.carried += 1
        name = f"carried {trace.facts.carried}"
        sources[name] = value
        carry.append(trace.value(make_node(ops.INPUT, (), {"name": name}, type_)))
        shape = known_shape(value)
        if shape is not None:
            shape = shape[1:] if i >= len(initial) - rows else shape
            trace.facts.update({f"shape:{name}": shape, f"ndim:{name}": len(shape)})
    try:
        with asked_of({name: value.node for name, value in sources.items()}):
            yield carry
    finally:
        for name in sources:
            trace.facts.pop(f"shape:{name}", None)
            trace.facts.pop(f"ndim:{name}", None)


def find_constants(trace: CodeTrace, carry: Sequence[Node], results: Sequence[Node]) -> list[Node]:
    """Return the nodes that the results read from around the loop, without known numbers; TypeError
    for a random key.
    """
    # In the order of computation: what depends on the carry, and what this reads that does not.
    nodes = walk(results)
    dependent = dependents(nodes, carry)
    operands = [operand for node in nodes if node in dependent for operand in node.operands]
    nodes_read = dict.fromkeys(node for node in (*operands, *results) if node not in dependent)
    constants = [node for node in nodes_read if node.op is not ops.CONST]
    if any(node.type.kind == "key" for node in constants):
        raise TypeError("a loop that goes on by values, and draws in a turn")
    # An op that gives T takes it from a tensor of T among the region's inputs: pass one, if needed.
    gives_input_dtype = any(dict(node.attrs).get("dtype") == T for node in dependent)
    has_input_dtype = any(node.type.dtype == T for node in (*carry, *constants))
    if gives_input_dtype and not has_input_dtype and trace.like().type.dtype == T:
        constants.append(trace.like())
    return constants


def make_inputs(
    carried: Sequence[tuple[str, Node, Type]], constants: Sequence[Node]
) -> dict[Node, Node]:
    """Return new inputs of a region, by the nodes that they replace.

    Of each that changes from turn to turn, `carried` has the name, the node and the type.
    """
    rows_of_constants = [
        (f"constant_{i}", node, without_lengths(node.type)) for i, node in enumerate(constants)
    ]
    return {
        node: make_node(ops.INPUT, (), {"name": name}, type_)
        for name, node, type_ in (*carried, *rows_of_constants)
    }


def make_region(
    name: str, inputs: Mapping[Node, Node], outputs: Sequence[Node], trace: CodeTrace
) -> Region:
    """Return the graph of outputs from inputs, by the nodes that these replace."""
    recorded = Graph(name, (), tuple(outputs), trace.source.locations)
    graph = renew_calls(recorded, substitute(recorded, inputs), inputs)
    locations = {node: where for node, where in graph.locations.items() if node in graph.nodes}
    return Region(simplify(Graph(name, tuple(inputs.values()), graph.outputs, locations)))


def renew_calls(before: Graph, after: Graph, replacements: Mapping[Node, Node]) -> Graph:
    """Return `after`, which is `before` with nodes replaced, with calls that refer to the new ones.

    A call names its outputs as nodes, which a substitution does not see.
    """
    calls = {node.attr("function") for node in before.nodes if node.op is ops.CALL}
    if not calls:
        return after
    new_calls = {}
    for call in calls:
        outputs = substitute(Graph("", (), call.outputs), replacements).outputs
        new_calls[call] = replace(call, outputs=outputs)

    def renew(node: Node) -> Node:
        if node.op is not ops.CALL or node.attr("function") not in new_calls:
            return node
        attrs = {**dict(node.attrs), "function": new_calls[node.attr("function")]}
        return make_node(node.op, node.operands, attrs, node.type)

    return rebuild(after, renew)
