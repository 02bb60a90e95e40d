"""Control flow that libraries have functions for: a loop is unrolled as long as it goes on by what
is known, and recorded as a loop where values end it (`loops.py`); of a branch by values all ways
are recorded and one result is chosen.

A way that is not taken may give NaN or inf, which times zero is NaN: so what it reads lets no
cotangent through there, as jax has it where it maps over a branch
(jax/_src/lax/control_flow/conditionals.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ...graph import ops
from ...graph.ir.graph import Graph, Node, walk
from ...graph.ir.types import INPUT_SHAPE, SCALAR_SHAPE, dtype_name, is_float
from ...graph.passes.simplify import substitute
from ...graph.support.trees import optree
from ...trace.trace import Trace, Value
from ...trace.xp import all as xp
from ..meanings.parts import shape_of
from .loops import carry

Tensor = Any
MOST_OPERATIONS = 5000  # of one unrolled loop: more take a compiler minutes


# --- loops ----------------------------------------------------------------------------------------
def turns(
    values: Sequence[Any],
    goes_on: Callable[..., Any],
    step: Callable[..., Any],
    most: int | None = None,
) -> Any:
    """Return what a loop's variables are at its end, unrolled as long as that is known.

    Args:
        most: it turns no more than this.

    Raises:
        TypeError: it has more than is unrolled, counts in what floats round, or a turn changes a
            dtype or a shape where values end it.
    """
    size = Size(values)
    while most is None or size.turns < most:
        condition = goes_on(*values)
        if isinstance(condition, Value) and condition.node.type.kind == "tensor":
            left = None if most is None else most - size.turns
            return carry(condition.trace, values, goes_on, step, left)
        if not condition:
            break
        before, values = values, step(*values)
        size.add(values)
        check_counters(before, values)
    return values


class Size:
    """Counts what a loop records."""

    def __init__(self, values: Any) -> None:
        self.turns = 0
        self.trace = find_trace(values)
        self.before = 0 if self.trace is None else len(self.trace.locations)

    def add(self, values: Any) -> None:
        """Count a turn that gives these.

        Raises:
            TypeError: the loop has become larger than what is unrolled.
        """
        self.turns += 1
        if self.trace is None:
            self.trace = find_trace(values)
            self.before = 0 if self.trace is None else len(self.trace.locations)
        recorded = 0 if self.trace is None else len(self.trace.locations) - self.before
        if max(self.turns, recorded) > MOST_OPERATIONS:
            raise TypeError(
                f"a loop of {self.turns} turns and more: at most {MOST_OPERATIONS} operations are "
                "unrolled"
            )


def check_counters(before: Any, after: Any) -> None:
    """Refuse a number that a turn changes and float32 would round: how often its sum is below a
    limit depends on the dtype, and a number has none here.
    """
    pairs = zip(optree.tree_leaves(before), optree.tree_leaves(after), strict=False)
    for old, new in (map(number_of, pair) for pair in pairs):
        if isinstance(new, float) and new != old and float(np.float32(new)) != new:
            raise TypeError(
                f"a loop whose number {new} is another one in float32. Count by integers"
            )


def number_of(value: Any) -> Any:
    """Return the number that a symbol is known to be; anything else as it is."""
    is_known = isinstance(value, Value) and value.node.op is ops.CONST
    return value.node.attr("value") if is_known else value


def find_trace(values: Any) -> Trace | None:
    """Return the trace of the first symbolic value in a structure."""
    leaves = optree.tree_leaves(values, none_is_leaf=True)
    return next((leaf.trace for leaf in leaves if isinstance(leaf, Value)), None)


# --- branches -------------------------------------------------------------------------------------
def guards_of(which: Value, count: int) -> list[Any]:
    """Return for each of so many ways whether a number takes it, the last one any other."""
    taken = [xp.equal(which, i) for i in range(count - 1)]
    others = taken[0]
    for each in taken[1:]:
        others = xp.logical_or(others, each)
    return [*taken, xp.logical_not(others)]


def guarded(value: Tensor, taken: Any) -> Tensor:
    """Return a value whose cotangent is zero where its way is not taken, whatever it was."""
    return xp.where(taken, value, xp.stop_gradient(value))


def branch(guards: Sequence[Value], ways: Sequence[Callable[[], Any]]) -> Any:
    """Return the result of the way whose guard is true, each a bool without axes.

    Raises:
        TypeError: the ways give other structures, shapes or dtypes, or do more than to compute.
    """
    trace = guards[0].trace
    found = [_record(trace, guard, way) for guard, way in zip(guards, ways, strict=True)]
    results, tree = found[-1]
    for guard, (leaves, other) in zip(guards[-2::-1], found[-2::-1], strict=True):
        if other != tree:
            raise TypeError(f"its branches return {other} and {tree}; give them one structure")
        results = [choose(guard, a, b) for a, b in zip(leaves, results, strict=True)]
    return optree.tree_unflatten(tree, results)


def choose(taken: Any, a: Any, b: Any) -> Any:
    """Return the one or the other of two alike.

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
    """Return the leaves of what a way gives, and their structure."""
    outside = set(trace.locations)
    before = len(trace.assumed), trace.draws
    result = way()
    if (len(trace.assumed), trace.draws) != before:
        raise TypeError("a branch that asserts something or draws, which only its own turn may do")
    leaves, tree = optree.tree_flatten(result, none_is_leaf=True)
    nodes = tuple(leaf.node for leaf in leaves if isinstance(leaf, Value))
    read = {
        node: guarded(trace.value(node), guard).node
        for node in _reads(nodes, trace.locations.keys() - outside)
    }
    graph = substitute(Graph(trace.name, (), nodes, trace.locations), read)
    for node, where in graph.locations.items():
        trace.locations.setdefault(node, where)
    plain: Iterator[Node] = iter(graph.outputs)
    return [trace.value(next(plain)) if isinstance(leaf, Value) else leaf for leaf in leaves], tree


def _reads(outputs: Iterable[Node], recorded: set[Node]) -> list[Node]:
    """Return the float tensors that the nodes recorded in a way read from around it."""
    inner: set[Node] = set()
    found: dict[Node, None] = {}
    for node in walk(outputs):
        if node in recorded or any(operand in inner for operand in node.operands):
            inner.add(node)
            found.update(dict.fromkeys(o for o in node.operands if o not in inner))
    return [
        node
        for node in found
        if node.type.kind == "tensor"
        and is_float(node.type)
        and node.op not in (ops.CONST, ops.ARRAY)
    ]
