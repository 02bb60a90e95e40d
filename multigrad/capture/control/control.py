"""Loops and branches that libraries have functions for (`while_loop`, `cond`, `switch`).

A loop is unrolled as long as its condition is known, and recorded as a loop once values decide it.
Of a branch on values every alternative is recorded and one result is chosen.

A recorded loop has a graph for its turn and one for its condition. Values from around the loop, and
all that does not depend on the carry, are computed once before it and passed to every turn.

An alternative that is not taken may give NaN or inf, which times zero is NaN. So the values that it
reads pass no cotangent there, as in JAX's vmapped branches
(jax/_src/lax/control_flow/conditionals.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...graph import ops
from ...graph.ir.graph import Graph, Node, Region, derive_node, make_node, walk
from ...graph.ir.types import (
    BOOL,
    INPUT_SHAPE,
    INT32,
    SCALAR_SHAPE,
    UNKNOWN,
    T,
    Type,
    dtype_name,
    is_float,
)
from ...graph.ops.arrays.loops import keeps
from ...graph.passes.simplify import simplify, substitute
from ...graph.support.trees import optree
from ...trace.axes import known_shape
from ...trace.coercion import lift_array
from ...trace.derived.custom_calls import drop_calls, renew_calls
from ...trace.derived.scans import asked_of
from ...trace.trace import Trace, Value, apply, lift
from ...trace.xp import all as xp
from ..meanings.parts import rank, shape_of

Tensor = Any
Tensors = Sequence[Value]
MOST_OPERATIONS = 5000  # of one unrolled loop; compilers take minutes for more


def record_loop(
    trace: Trace,
    initial: Tensors,
    goes_on: Callable[[Tensors], Value],
    turn: Callable[[Tensors], Tensors],
) -> list[Value]:
    """Record a loop and return the values that it carries at its end.

    Args:
        initial: the tensors that it begins with.
        goes_on: records the condition, given the carried values.
        turn: records the next carried values.

    Raises:
        TypeError: a turn changes a dtype or a shape, makes an assertion or draws random numbers.
    """
    types = [known_type(value) for value in initial]
    before = len(trace.limits.assumed), trace.draws
    with symbols_of(trace, initial, types) as carry:
        test = goes_on(carry)
        after = list(turn(carry))
    if (len(trace.limits.assumed), trace.draws) != before:
        raise TypeError("a loop that goes on by values, and asserts something or draws in a turn")
    if test.node.type.kind != "tensor" or test.node.type.dtype != BOOL:
        raise TypeError(f"a loop whose condition is {test.node.type}, not one bool")
    check_kept(types, after)
    carried = [value.node for value in carry]
    nodes = (test.node, *(value.node for value in after))
    plain_graph = drop_calls(Graph(trace.name, (), nodes))
    constants = constants_of(trace, carried, plain_graph.outputs)

    def regions(types: Sequence[Type]) -> tuple[Region, Region]:
        # The first output is the condition; both regions have the same inputs.
        words = [f"carry_{i}" for i in range(len(carried))]
        # A fresh pair per call: `settle_types` may ask again with wider types.
        inputs = make_inputs([*zip(words, carried, types, strict=True)], constants)
        first, *rest = plain_graph.outputs
        return (
            region_of("body", inputs, rest, trace),
            region_of("condition", inputs, [first], trace),
        )

    (body, condition), _ = settle_types(types, regions)
    operands = [*(value.node for value in initial), *constants]
    where = trace.source.location()
    results = []
    for position, node in enumerate(body.graph.outputs):
        attrs = {"condition": condition, "body": body, "position": position}
        node = derive_node(ops.WHILE_LOOP, operands, attrs)
        if where is not None:
            trace.source.locations.setdefault(node, where)
        results.append(trace.value(node))
    return results


def settle_types(
    types: Sequence[Type], regions: Callable[[Sequence[Type]], Sequence[Region]]
) -> tuple[Sequence[Region], Sequence[Type]]:
    """Return the regions of a loop and the types that a turn keeps.

    The first region's outputs begin with what is carried.
    """
    while True:
        made = regions(types)
        new = [node.type for node in made[0].graph.outputs[: len(types)]]
        if all(map(keeps, new, types)):
            return made, types
        # The length may be the input's in other words; whether it stays is checked at run time.
        types = [
            type_ if keeps(other, type_) else Type("tensor", type_.dtype, UNKNOWN)
            for type_, other in zip(types, new, strict=True)
        ]


def carry(
    trace: Trace,
    values: Sequence[Any],
    goes_on: Callable[..., Any],
    step: Callable[..., Any],
    most: int | None,
) -> Any:
    """Record a loop and return its final variables: tensors and numbers in any structure.

    Args:
        most: the maximum number of turns.

    Raises:
        TypeError: a turn changes a structure, a dtype or a shape, makes an assertion or draws.
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
        after, other = optree.tree_flatten([*step(*variables), count + 1], none_is_leaf=True)
        if other != tree:
            raise TypeError(f"a loop that carries {tree}, and {other} after a turn")
        return numbers.after(after)

    numbers = Numbers(trace, leaves)
    ends = numbers.record(lambda initial: record_loop(trace, initial, condition, turn))
    return optree.tree_unflatten(tree, ends)[:-1]


class Other(Exception):
    """A carried number has another dtype after a turn than was guessed: (place, dtype)."""


class Numbers:
    """The carry of a loop; its numbers become tensors of the dtype they have after a turn."""

    def __init__(self, trace: Trace, leaves: Sequence[Any]) -> None:
        self.trace, self.leaves = trace, leaves
        self.dtypes = [guess_dtype(trace, leaf) for leaf in leaves]

    def after(self, leaves: Sequence[Any]) -> list[Value]:
        """Return the carry after a turn as tensors."""
        for i, (first, leaf, dtype) in enumerate(
            zip(self.leaves, leaves, self.dtypes, strict=True)
        ):
            type_ = leaf.node.type if isinstance(leaf, Value) else None
            if is_number(first) and type_ and type_.kind == "tensor" and type_.dtype != dtype:
                raise Other(i, type_.dtype)
        return self._tensors(leaves)

    def record(self, record: Callable[[Tensors], list[Value]]) -> list[Value]:
        """Return the results of `record`, called with the initial values of a loop as tensors.

        Raises:
            TypeError: a number takes another dtype at each turn.
        """
        for _ in self.leaves or [None]:
            try:
                return record(self._tensors(self.leaves))
            except Other as other:  # the dtype that a number takes when it meets tensors
                position, dtype = other.args
                self.dtypes[position] = dtype
        raise TypeError("a loop that carries a number, which takes other dtypes at each turn")

    def _tensors(self, leaves: Sequence[Any]) -> list[Value]:
        return [as_tensor(self.trace, x, d) for x, d in zip(leaves, self.dtypes, strict=True)]


def is_number(leaf: Any) -> bool:
    """Return whether a leaf takes the dtype of what it meets."""
    if isinstance(leaf, Value):
        return leaf.node.type.kind == "scalar"
    return isinstance(leaf, bool | int | float)


def guess_dtype(trace: Trace, leaf: Any) -> str:
    """Return the dtype of a leaf; for a number, the dtype of its kind."""
    type_ = (leaf.node if isinstance(leaf, Value) else lift(trace, leaf)).type
    kinds = {"bool": BOOL, "int": INT32, "float": T}
    return type_.dtype if type_.kind == "tensor" else kinds[type_.dtype]


def as_tensor(trace: Trace, leaf: Any, dtype: str) -> Value:
    """Return a leaf as a tensor; a number gets the given dtype."""
    value = leaf if isinstance(leaf, Value) else trace.value(lift(trace, leaf))
    return filled(trace, value, dtype, ()) if value.node.type.kind == "scalar" else value


def filled(trace: Trace, number: Value, dtype: str, like: Value | Sequence[int]) -> Value:
    """Return a tensor filled with a number, shaped like another or by lengths.

    Unlike `xp.full_like` it takes integer dtypes too.
    """
    if isinstance(like, Value):
        return apply(ops.FULL_LIKE, like, number, dtype=dtype)
    ones = trace.value(lift_array(trace, np.ones(tuple(like) or (1,))))
    full = apply(ops.FULL_LIKE, ones, number, dtype=dtype)
    return full if like else xp.reshape(full, ())


def known_type(value: Value) -> Type:
    return plain(value.node.type)


def plain(type_: Type) -> Type:
    """Return a type without its shape, unless that is the input's or empty."""
    if type_.kind != "tensor" or type_.shape in (INPUT_SHAPE, SCALAR_SHAPE, UNKNOWN):
        return type_
    return Type(type_.kind, type_.dtype, UNKNOWN)


def check_kept(types: Sequence[Type], after: Tensors) -> None:
    if len(types) != len(after):
        raise TypeError(f"a loop that carries {len(types)} tensors, and {len(after)} after a turn")
    for type_, value in zip(types, after, strict=True):
        new = value.node.type
        if (new.kind, new.dtype) != (type_.kind, type_.dtype):
            raise TypeError(f"a loop that carries {type_}, and {new} after a turn")


@contextmanager
def symbols_of(
    trace: Trace, initial: Tensors, types: Sequence[Type], rows: int = 0
) -> Iterator[list[Value]]:
    """Yield symbols for the carry during a turn; the last `rows` are rows of their values.

    A question about a symbol's shape becomes one about the value that the loop begins with.
    """
    sources: dict[str, Value] = {}
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


def constants_of(trace: Trace, carry: Sequence[Node], results: Sequence[Node]) -> list[Node]:
    """Return the nodes that the results read from around the loop, without known numbers.

    Raises:
        TypeError: one of them is a random key.
    """
    moving, read = set(carry), dict[Node, None]()
    order = walk(results)
    for node in order:
        if any(operand in moving for operand in node.operands):
            moving.add(node)
            read.update(dict.fromkeys(o for o in node.operands if o not in moving))
    read.update(dict.fromkeys(node for node in results if node not in moving))
    constants = [node for node in read if node.op is not ops.CONST]
    if any(node.type.kind == "key" for node in constants):
        raise TypeError("a loop that goes on by values, and draws in a turn")
    # If no operand has the input's dtype, `T` in the body would be unknown: pass the input too.
    tells = any(node.type.dtype == T for node in (*carry, *constants))
    like = trace.like()
    if (
        not tells
        and like.type.dtype == T
        and any(dict(node.attrs).get("dtype") == T for node in moving)
    ):
        constants.append(like)
    return constants


def make_inputs(
    named: Sequence[tuple[str, Node, Type]], constants: Sequence[Node]
) -> dict[Node, Node]:
    """Return the inputs of a region, by the nodes that they replace."""
    fixed = [(f"constant_{i}", node, plain(node.type)) for i, node in enumerate(constants)]
    return {
        node: make_node(ops.INPUT, (), {"name": name}, type_)
        for name, node, type_ in (*named, *fixed)
    }


def region_of(
    name: str, given: Mapping[Node, Node], outputs: Sequence[Node], trace: Trace
) -> Region:
    graph = Graph(name, (), tuple(outputs), trace.source.locations)
    graph = renew_calls(graph, substitute(graph, given), given)
    places = {node: where for node, where in graph.locations.items() if node in graph.nodes}
    return Region(simplify(Graph(name, tuple(given.values()), graph.outputs, places)))


# --- loops ----------------------------------------------------------------------------------------
def turns(
    values: Sequence[Any],
    goes_on: Callable[..., Any],
    step: Callable[..., Any],
    most: int | None = None,
) -> Any:
    """Return a loop's final variables; the loop is unrolled as long as its condition is known.

    Args:
        most: the maximum number of turns.

    Raises:
        TypeError: it has more turns than can be unrolled, counts in floats that round, or a turn
            changes a dtype or a shape in a loop that ends depending on values.
    """
    count, trace = 0, find_trace(values)
    before = operations_of(trace)
    while most is None or count < most:
        condition = goes_on(*values)
        if isinstance(condition, Value) and condition.node.type.kind == "tensor":
            # The turns so far are unrolled; from here on values decide, so the rest is one loop.
            left = None if most is None else most - count
            return carry(condition.trace, values, goes_on, step, left)
        if not condition:
            break
        old, values = values, step(*values)
        count += 1
        if trace is None:
            trace = find_trace(values)
            before = operations_of(trace)
        if max(count, operations_of(trace) - before) > MOST_OPERATIONS:
            raise TypeError(
                f"a loop of {count} turns and more: at most {MOST_OPERATIONS} operations are "
                "unrolled"
            )
        check_counters(old, values)
    return values


def operations_of(trace: Trace | None) -> int:
    return 0 if trace is None else len(trace.source.locations)


def check_counters(before: Any, after: Any) -> None:
    """Refuse a float that a turn changes and float32 would round.

    How often such a sum stays below a limit depends on the dtype, and a number has none here.
    """
    pairs = zip(optree.tree_leaves(before), optree.tree_leaves(after), strict=False)
    for old, new in (map(number_of, pair) for pair in pairs):
        if isinstance(new, float) and new != old and float(np.float32(new)) != new:
            raise TypeError(
                f"a loop whose number {new} is another one in float32. Count by integers"
            )


def number_of(value: Any) -> Any:
    """Return the known number of a symbol; anything else unchanged."""
    is_known = isinstance(value, Value) and value.node.op is ops.CONST
    return value.node.attr("value") if is_known else value


def find_trace(values: Any) -> Trace | None:
    leaves = optree.tree_leaves(values, none_is_leaf=True)
    return next((leaf.trace for leaf in leaves if isinstance(leaf, Value)), None)


# --- branches -------------------------------------------------------------------------------------
def guards_of(which: Value, count: int) -> list[Any]:
    """Return a guard for each alternative; the last one takes every other number."""
    taken = [xp.equal(which, i) for i in range(count - 1)]
    others = taken[0]
    for each in taken[1:]:
        others = xp.logical_or(others, each)
    return [*taken, xp.logical_not(others)]


def guarded(value: Tensor, taken: Any) -> Tensor:
    """Return a value whose cotangent is zero, never NaN, where its alternative is not taken."""
    return xp.where(taken, value, xp.stop_gradient(value))


def branch(guards: Sequence[Value], ways: Sequence[Callable[[], Any]]) -> Any:
    """Return the result of the alternative whose guard is true; a guard is a bool without axes.

    Raises:
        TypeError: the results differ in structure, shape or dtype, or an alternative asserts or
        draws.
    """
    trace = guards[0].trace
    found = [_record(trace, guard, way) for guard, way in zip(guards, ways, strict=True)]
    # From the last alternative backwards, each guard chooses between its result and the rest.
    results, tree = found[-1]
    for guard, (leaves, other) in zip(guards[-2::-1], found[-2::-1], strict=True):
        if other != tree:
            raise TypeError(f"its branches return {other} and {tree}; give them one structure")
        results = [choose(guard, a, b) for a, b in zip(leaves, results, strict=True)]
    return optree.tree_unflatten(tree, results)


def choose(taken: Any, a: Any, b: Any) -> Any:
    """Return one of two values of the same shape and dtype.

    Raises:
        TypeError: they differ in shape or dtype.
    """
    nodes = [x.node for x in (a, b) if isinstance(x, Value)]
    if a is b or (len(nodes) == 2 and nodes[0] is nodes[1]):
        return a
    types = [node.type for node in nodes if node.type.kind == "tensor"]
    shapes = {type_.shape for type_ in types}
    if len(types) < 2 or len(shapes) > 1 or not shapes <= {INPUT_SHAPE, SCALAR_SHAPE}:
        lengths = shape_of(a), shape_of(b)
        if lengths[0] != lengths[1]:
            raise TypeError(f"its branches return the shapes {lengths[0]} and {lengths[1]}")
    dtypes = [getattr(x, "dtype", None) for x in (a, b)]
    names = {dtype_name(dtype) for dtype in dtypes if dtype is not None}
    kinds = {type(x) for x, dtype in zip((a, b), dtypes, strict=True) if dtype is None}
    if len(names) > 1 or len(kinds) > 1:
        raise TypeError(f"its branches return the dtypes {' and '.join(sorted(names))}")
    return xp.where(taken, a, b)


def _record(trace: Trace, guard: Value, way: Callable[[], Any]) -> tuple[list[Any], Any]:
    # All nodes recorded in between belong to the alternative; what they read from around it is
    # guarded afterwards.
    outside = set(trace.source.locations)
    before = len(trace.limits.assumed), trace.draws
    result = way()
    if (len(trace.limits.assumed), trace.draws) != before:
        raise TypeError("a branch that asserts something or draws, which only its own turn may do")
    leaves, tree = optree.tree_flatten(result, none_is_leaf=True)
    nodes = tuple(leaf.node for leaf in leaves if isinstance(leaf, Value))
    read = {
        node: guarded(trace.value(node), guard).node
        for node in _reads(nodes, trace.source.locations.keys() - outside)
    }
    graph = substitute(Graph(trace.name, (), nodes, trace.source.locations), read)
    for node, where in graph.locations.items():
        trace.source.locations.setdefault(node, where)
    plain: Iterator[Node] = iter(graph.outputs)
    return [trace.value(next(plain)) if isinstance(leaf, Value) else leaf for leaf in leaves], tree


def _reads(outputs: Iterable[Node], recorded: set[Node]) -> list[Node]:
    # The float tensors that the nodes of an alternative read from around it; constants need no
    # guard.
    inner: set[Node] = set()
    read: dict[Node, None] = {}
    for node in walk(outputs):
        if node in recorded or any(operand in inner for operand in node.operands):
            inner.add(node)
            read.update(dict.fromkeys(o for o in node.operands if o not in inner))
    return [
        node
        for node in read
        if node.type.kind == "tensor"
        and is_float(node.type)
        and node.op not in (ops.CONST, ops.ARRAY)
    ]
