"""Branches on values: `cond`, `switch` and `case` of the libraries, and `xp.cond`.

Every alternative is recorded, and `where` chooses one result by its guard, a bool without axes:

    cond(x > 0, log, neg)      guards: [x > 0, not (x > 0)]
                               where(x > 0, log(guarded(x)), neg(guarded(x)))

An alternative that is not taken may give NaN or inf, which times zero is NaN. So the values that it
reads pass no cotangent there, as in JAX's vmapped branches
(jax/_src/lax/control_flow/conditionals.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ...graph import ops
from ...graph.ir.graph import Graph, Node, walk
from ...graph.ir.types import INPUT_SHAPE, SCALAR_SHAPE, dtype_name, is_float
from ...graph.passes.simplify import substitute
from ...graph.support.trees import optree
from ...trace.trace import Trace, Value
from ...trace.xp import all as xp
from ..meanings.parts import shape_of
from .loops import count_effects

Tensor = Any


def guards_of(which: Value, count: int) -> list[Any]:
    """Return a guard for each alternative of a choice by number; the last takes all other numbers.

    Args:
        which: the number of the alternative, from 0.
    """
    taken = [xp.equal(which, i) for i in range(count - 1)]
    others = taken[0]
    for each in taken[1:]:
        others = xp.logical_or(others, each)
    return [*taken, xp.logical_not(others)]


def guarded(value: Tensor, taken: Any) -> Tensor:
    """Return a value whose cotangent is zero, never NaN, where its alternative is not taken."""
    return xp.where(taken, value, xp.stop_gradient(value))


def branch(guards: Sequence[Value], alternatives: Sequence[Callable[[], Any]]) -> Any:
    """Return the result of the alternative whose guard is true; a guard is a bool without axes.

    Raises:
        TypeError: the results differ in structure, shape or dtype, or an alternative asserts or
        draws.
    """
    trace = guards[0].trace
    recorded = [_record(trace, *each) for each in zip(guards, alternatives, strict=True)]
    # From the last alternative backwards, each guard chooses between its result and the rest.
    chosen, tree = recorded[-1]
    for guard, (leaves, other) in zip(guards[-2::-1], recorded[-2::-1], strict=True):
        if other != tree:
            raise TypeError(f"its branches return {other} and {tree}; give them one structure")
        chosen = [choose(guard, a, b) for a, b in zip(leaves, chosen, strict=True)]
    return optree.tree_unflatten(tree, chosen)


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


class Recorded(NamedTuple):
    """The result of an alternative: its leaves, and the structure that they had."""

    leaves: list[Any]
    tree: Any


def _record(trace: Trace, guard: Value, alternative: Callable[[], Any]) -> Recorded:
    """Record an alternative; what it reads from around it is guarded afterwards."""
    outside = set(trace.source.locations)
    before = count_effects(trace)
    result = alternative()
    if count_effects(trace) != before:
        raise TypeError("a branch that asserts something or draws, which only its own turn may do")
    leaves, tree = optree.tree_flatten(result, none_is_leaf=True)
    outputs = tuple(leaf.node for leaf in leaves if isinstance(leaf, Value))
    # All nodes recorded in between belong to the alternative.
    guarded_reads = {
        node: guarded(trace.value(node), guard).node
        for node in _reads(outputs, trace.source.locations.keys() - outside)
    }
    graph = Graph(trace.name, (), outputs, trace.source.locations)
    graph = substitute(graph, guarded_reads)
    for node, where in graph.locations.items():
        trace.source.locations.setdefault(node, where)
    nodes = iter(graph.outputs)
    return Recorded(
        [trace.value(next(nodes)) if isinstance(leaf, Value) else leaf for leaf in leaves], tree
    )


def _reads(outputs: Iterable[Node], recorded: set[Node]) -> list[Node]:
    """Return the float tensors that the nodes of an alternative read from around it; constants need
    no guard.
    """
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
