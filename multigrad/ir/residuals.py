"""The residual cut: the fewest bytes that forward must keep so that backward can be computed.

A minimum vertex cut between what forward knows and what backward needs: a bool mask (one byte an element) in the
place of a float input. A float computed in forward and kept would lose its derivative where the backward is itself
differentiated (torch saves it detached), so only the input, bools and integers are cut at, unless the framework
differentiates residuals or the rule's author promises that nobody will.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import ops
from .graph import Graph, Node, make_node
from .passes import substitute
from .types import BOOL, INPUT_SHAPE, ROW, T, Type

INFINITE = 1 << 40
# Costs in 64ths of a byte per element. A computed float costs more than the input, which mostly lives on anyway.
FULL, REDUCED, SINGLE = 64, 8, 1
BYTES = {BOOL: 1, "float16": 2, "bfloat16": 2, "int32": 4, "float32": 4, "float64": 8, T: 4}


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A backward split at what forward keeps for it.

    Attributes:
        keep: `tin, output, *params -> residuals`, those that forward computes for backward.
        backward: `grad_out, *residuals, *params, [key] -> grad`.
        residuals: the names of what is kept, in order: "tin", "output", "kept", "kept_1", ...
    """

    keep: Graph
    backward: Graph
    residuals: tuple[str, ...]

    @property
    def computed(self) -> tuple[str, ...]:
        """The residuals that `keep` computes, in the order of its outputs."""
        return tuple(name for name in self.residuals if name not in ("tin", "output"))

    def type(self, residual: str) -> Type:
        """Return the type of a residual."""
        node = self.backward.input(residual)
        assert node is not None
        return node.type


def cut_residuals(forward: Graph, backward: Graph, *, floats: bool, output: bool) -> Cut:
    """Choose what forward keeps for backward.

    Args:
        forward: `tin -> output`.
        backward: `grad_out, tin, *params, [key] -> grad`.
        floats: whether computed floats may be kept (norms as scalars).
        output: whether the output may be kept in the place of the input.
    """
    known = find_known(backward)
    needed = find_needed(backward, known)
    result = forward.outputs[0]
    costs = {node: cost(node, result if output else None, floats) for node in known}
    names: dict[Node, str] = {}
    computed = 0
    for node in minimum_cut(costs, needed):
        if node.op is ops.INPUT:
            names[node] = "tin"
        elif node is result and output:
            names[node] = "output"
        else:
            names[node] = f"kept_{computed}" if computed else "kept"
            computed += 1
    return _split(forward, backward, names)


def keep_input(forward: Graph, backward: Graph) -> Cut:
    """Return the cut that keeps the input alone, where backward reads it."""
    tin = backward.input("tin")
    return _split(
        forward, backward, {tin: "tin"} if tin is not None and backward.reads("tin") else {}
    )


def find_known(backward: Graph) -> dict[Node, None]:
    """Return, in order, the nodes that depend on tin and on neither grad_out nor the key."""
    depends: dict[Node, tuple[bool, bool]] = {}  # on tin, on what only backward has
    for node in backward.nodes():
        if node.op is ops.INPUT:
            name = node.attr("name")
            depends[node] = (name == "tin", name in ("grad_out", "key"))
        else:
            pairs = [depends[operand] for operand in node.operands]
            depends[node] = (any(a for a, _ in pairs), any(b for _, b in pairs))
    return {node: None for node, (on_tin, later) in depends.items() if on_tin and not later}


def find_needed(backward: Graph, known: Mapping[Node, None]) -> list[Node]:
    """Return the known nodes that the rest of backward reads."""
    needed = dict.fromkeys(node for node in backward.outputs if node in known)
    for node in backward.nodes():
        if node not in known:
            needed.update(dict.fromkeys(operand for operand in node.operands if operand in known))
    return list(needed)


def cost(node: Node, output: Node | None, floats: bool) -> int:
    """Return what keeping a node costs, in 64ths of a byte per element of the input."""
    if node.op is ops.INPUT:
        return BYTES[T] * FULL
    if node is output:
        return BYTES[T] * FULL - 1
    type_ = node.type
    exact = type_.dtype == BOOL or "int" in type_.dtype
    if type_.kind != "tensor" or not (floats or exact):
        return INFINITE
    if type_.shape == INPUT_SHAPE:
        return BYTES[type_.dtype] * FULL + (type_.dtype != BOOL)
    if type_.shape == ROW:
        return SINGLE
    return BYTES[type_.dtype] * REDUCED if isinstance(type_.shape, tuple) else INFINITE


def minimum_cut(costs: Mapping[Node, int], needed: list[Node]) -> list[Node]:
    """Return the cheapest nodes that separate `needed` from the input, those near the input at a tie.

    Maximum flow by augmenting paths (Edmonds and Karp, 1972); each node is an edge from (node, 0) to (node, 1).
    """
    capacity: dict[Any, dict[Any, int]] = {"needed": {}}

    def join(a: Any, b: Any, amount: int) -> None:
        capacity.setdefault(a, {})[b] = amount
        capacity.setdefault(b, {}).setdefault(a, 0)

    for node, amount in costs.items():
        join((node, 0), (node, 1), amount)
        if node.op is ops.INPUT:
            join("tin", (node, 0), INFINITE)
        for operand in node.operands:
            if operand in costs:
                join((operand, 1), (node, 0), INFINITE)
    for node in needed:
        join((node, 1), "needed", INFINITE)
    reached = _reach(capacity) if needed else {}
    while "needed" in reached:
        path, place = [], "needed"
        while place != "tin":
            path.append((reached[place], place))
            place = reached[place]
        amount = min(capacity[a][b] for a, b in path)
        for a, b in path:
            capacity[a][b] -= amount
            capacity[b][a] += amount
        reached = _reach(capacity)
    return [node for node in costs if (node, 0) in reached and (node, 1) not in reached]


def _reach(capacity: Mapping[Any, Mapping[Any, int]]) -> dict[Any, Any]:
    """Return from where each place can be reached along edges with capacity left, breadth first."""
    reached: dict[Any, Any] = {"tin": None}
    queue = deque(["tin"])
    while queue and "needed" not in reached:
        place = queue.popleft()
        for other, left in capacity[place].items():
            if left > 0 and other not in reached:
                reached[other] = place
                queue.append(other)
    return reached


def _split(forward: Graph, backward: Graph, names: dict[Node, str]) -> Cut:
    """Return the graphs on both sides of the kept nodes."""
    inputs = {
        node: node if name == "tin" else make_node(ops.INPUT, (), {"name": name}, node.type)
        for node, name in names.items()
    }
    result = forward.outputs[0]
    output = make_node(ops.INPUT, (), {"name": "output"}, result.type)
    params = tuple(n for n in backward.inputs if n.attr("name") not in ("grad_out", "tin", "key"))
    computed = [node for node, name in names.items() if name not in ("tin", "output")]
    keep = Graph("keep", (*forward.inputs, output, *params), tuple(computed), backward.locations)
    if result.op is not ops.INPUT:
        keep = substitute(keep, {result: output})
    rest = substitute(backward, {node: new for node, new in inputs.items() if new is not node})
    heads = tuple(n for n in backward.inputs if n.attr("name") == "grad_out")
    tails = tuple(n for n in backward.inputs if n.attr("name") == "key")
    rest = Graph(
        backward.name, (*heads, *inputs.values(), *params, *tails), rest.outputs, rest.locations
    )
    return Cut(keep, rest, tuple(names.values()))
