"""`lax.custom_linear_solve` in a jaxpr; see `control.py`.

Jax differentiates it as the equation that it solves. What solves one, differentiated step by step,
has that derivative too, to any order, unless it stops gradients, as jax's own does before it
factors a matrix: those stops are taken out. One that does not solve the equation is found by the
proof, which compares gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from multigrad.graph import ops
from multigrad.graph.ir.graph import Node, make_node, walk

from .primitives import Operand, Scope

# What records a jaxpr: (scope, jaxpr, constants, arguments).
Run = Callable[[Scope, Any, Sequence[Any], Sequence[Operand]], list[Operand]]


def custom_linear_solve(
    run: Run, scope: Scope, equation: Any, operands: list[Operand]
) -> list[Operand]:
    """What solves a linear equation, of whose steps none stops a gradient."""
    lengths, jaxprs = equation.params["const_lengths"], equation.params["jaxprs"]
    start = lengths.matvec + lengths.vecmat
    constants = operands[start : start + lengths.solve]
    right = operands[start + lengths.solve + lengths.transpose_solve :]
    results = run(scope, jaxprs.solve.jaxpr, jaxprs.solve.consts, [*constants, *right])
    given = [*operands[: lengths.matvec], *right]
    nodes = without_stops(
        [each.value.node for each in results], [each.value.node for each in given]
    )
    pairs = zip(nodes, results, strict=True)
    return [Operand(scope.trace.value(node), each.shape) for node, each in pairs]


def without_stops(results: Sequence[Node], given: Sequence[Node]) -> list[Node]:
    """Return results that stop no gradient between them and what is given."""
    kept = set(walk(given))
    done: dict[Node, Node] = {}
    for node in walk(results):
        operands = tuple(done[each] for each in node.operands)
        if node in kept or operands == node.operands:
            done[node] = node
        else:
            done[node] = make_node(node.op, operands, dict(node.attrs), node.type)
        if node.op is ops.STOP_GRADIENT and node not in kept:
            done[node] = operands[0]
    return [done[node] for node in results]
