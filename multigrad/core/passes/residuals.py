"""The residual cut: the fewest bytes that forward must keep so that backward can be computed.

A minimum vertex cut between what forward knows and what backward needs: a bool mask (one byte an
element) instead of a float input. A computed float that forward keeps would lose its derivative
where the backward is itself differentiated (torch saves it detached), so only inputs, bools and
integers are cut at, unless the framework differentiates residuals or the rule's author promises
that nobody will. An output that backward reads as forward gave it is kept itself, and so is a
rectifier's where it decides the same as a mask of the input: the next layer mostly keeps it anyway.
A derivative of the backward passes through such an output, which bears a mark, by the Function's
own gradient and not by the ops that computed it.
"""

from __future__ import annotations

import itertools
import operator
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from .. import ops
from ..ir.graph import OPERANDS, Graph, Node, make_node, walk
from ..ir.op import BOOL, INPUT_SHAPE, SCALAR_SHAPE, UNKNOWN, Op, T, Type, is_float
from ..support.records import record
from .simplify import substitute


def as_input(node: Node, name: str) -> Node:
    """Return an input of this name in place of a node."""
    return make_node(ops.INPUT, (), {"name": name}, node.type)


def decide_by_outputs(forward: Graph, backward: Graph, names: Sequence[str]) -> Graph:
    """Return a backward that compares a rectifier's output instead of its input, if equivalent."""
    output_of = {
        node.operands[0]: as_input(node, name)
        for node, name in zip(forward.outputs, names, strict=True)
        if node.op is ops.RELU
    }
    if not output_of:
        return backward
    replacements: dict[Node, Node] = {}
    for node in backward.nodes:
        if node.op not in (ops.GT, ops.LE, ops.GE, ops.LT):
            continue
        x, limit = node.operands
        if x not in output_of or limit.op is not ops.CONST:
            continue
        value = limit.attr("value")
        # max(x, 0) > c exactly if x > c, for a number c of at least 0; NaN stays NaN.
        if value > 0 or (value == 0 and node.op in (ops.GT, ops.LE)):
            replacements[node] = make_node(node.op, (output_of[x], limit), {}, node.type)
    return substitute(backward, replacements)


# The capacity of what must not be cut: above any sum of costs.
INFINITE = 1 << 40
SHAPE_ONLY = operator.attrgetter("shape_only")
# Costs in 64ths of a byte per element. A computed float costs more than the input, which mostly
# lives on anyway.
FULL, REDUCED, SINGLE = 64, 8, 1
BYTES = {
    BOOL: 1, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "int16": 2,
    "int32": 4, "int64": 8, "float8_e4m3fn": 1, "float8_e5m2": 1, "float32": 4, "float64": 8, T: 4,
}  # fmt: skip


@record()
class ResidualCut:
    """A backward split at what forward keeps for it.

    Attributes:
        keep: `*inputs, *outputs, *params -> residuals`, those that forward computes for backward.
        backward: `*cotangents, *residuals, *params, [key] -> *gradients`.
        residuals: the names of the residuals, in order: an input's, an output's, "kept", "kept_1",
            ...
        computed: the residuals that `keep` computes, in the order of its outputs.
        likes: the residuals of which backward reads only the shape and dtype.
    """

    keep: Graph
    backward: Graph
    residuals: tuple[str, ...]
    computed: tuple[str, ...]

    def type(self, residual: str) -> Type:
        node = self.backward.input(residual)
        assert node is not None
        return node.type

    @property
    def likes(self) -> tuple[str, ...]:
        nodes = self.backward.nodes
        read = reader_of(self.backward)
        read_nodes = set(itertools.chain(self.backward.outputs, *map(read, nodes)))
        inputs = zip(self.backward.names, self.backward.inputs, strict=True)
        is_like = {name: node not in read_nodes for name, node in inputs}
        return tuple([name for name in self.residuals if is_like[name]])


def reads_shape_alone(op: Op, position: int) -> bool:
    """Return whether an op reads only an operand's shape and dtype, and does not return it."""
    if position not in op.shape_only or op.name in ("place_key", "from_shard"):
        return False
    return op.operands[position] == "like" or op is ops.FULL_LIKE


class Roles(NamedTuple):
    """The roles of the inputs of a Function's graphs, by name; any other is a param or the key."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    cotangents: tuple[str, ...]


@record()
class Keepable:
    """What forward may keep for backward instead of the inputs.

    The engine's `KeepMore` says more in the methods: of marks, loops, and tensors that others may
    write to.

    Attributes:
        floats: computed floats (norms as scalars).
        outputs: the names of outputs that may be kept in place of the inputs.
        deciding: outputs in place of masks, where they decide the same.
        apart: what is kept is computed after forward, from its outputs.
    """

    floats: bool
    outputs: Collection[str]
    deciding: bool = False
    apart = True

    def opened(self, backward: Graph, roles: Roles) -> Graph:
        """Return the backward to cut, in which nothing stands for an input."""
        return backward

    def price(
        self, costs: dict[Node, int], backward: Graph, free: Collection[str]
    ) -> Collection[Node]:
        """Change costs of nodes; return those below which the cut lies: they are kept or above."""
        return ()

    def copied(self, backward: Graph, residuals: Collection[Node]) -> Collection[Node]:
        """Return the inputs of which a copy is kept."""
        return ()

    def stored(self, computed: Sequence[Node]) -> Sequence[Node]:
        """Return the nodes whose values are kept for those that forward computes for backward."""
        return computed

    def closed(self, graph: Graph) -> Graph:
        """Return one of the graphs of a cut as it is emitted."""
        return graph

    def finished(self, cut: ResidualCut, forward: Graph) -> ResidualCut:
        return cut


def cut_residuals(forward: Graph, backward: Graph, roles: Roles, keepable: Keepable) -> ResidualCut:
    """Choose what forward keeps for backward.

    Args:
        forward: `*inputs, *params, [key] -> *outputs`.
        backward: `*cotangents, *inputs, *params, [key] -> *gradients`.
        roles: the names of these.
    """
    backward = complements_as_one(keepable.opened(backward, roles))
    named = zip(forward.outputs, roles.outputs, strict=True)
    results = {node: name for node, name in named if name in keepable.outputs}
    total, residuals = choose(backward, roles, results, keepable)
    # A rectifier's output is mostly kept by the next layer, so it is counted as free here.
    variant = decide_by_outputs(forward, backward, roles.outputs) if keepable.deciding else backward
    if variant is not backward:
        variant_total, variant_nodes = choose(variant, roles, results, keepable, free=roles.outputs)
        if variant_total < total:
            backward, residuals = variant, variant_nodes
    names: dict[Node, str] = {}
    computed = 0
    copied = keepable.copied(backward, residuals)
    for node in residuals:
        if node.op is ops.INPUT and node not in copied:
            names[node] = node.attr("name")
        elif node in results:
            names[node] = results[node]
        else:
            prefix = "kept" if keepable.apart else "history"
            names[node] = f"{prefix}_{computed}" if computed else prefix
            computed += 1
    # Small outputs that backward would compute again are kept too: reductions of the input, such as
    # norms, which have fewer elements.
    again = computed_again(backward, names)
    small = [n for n in results if n.type.kind == "tensor" and isinstance(n.type.shape, tuple)]
    names |= {node: results[node] for node in small if node in again}
    cut = split(forward, backward, roles, names, keepable)
    return keepable.finished(cut, forward)


def choose(
    backward: Graph,
    roles: Roles,
    results: Collection[Node],
    keepable: Keepable,
    *,
    free: Collection[str] = (),
) -> tuple[int, list[Node]]:
    """Return the cost and the nodes to keep; an input named in `free` costs next to nothing."""
    known, read = find_known(backward, roles), reader_of(backward)
    # The known nodes that the rest of backward reads.
    unknown = [node for node in backward.nodes if node not in known]
    operands = itertools.chain(backward.outputs, *map(read, unknown))
    needed = list(dict.fromkeys([node for node in operands if node in known]))
    costs = {node: cost(node, node in results, keepable.floats) for node in known}
    inputs = [node for node in known if node.op is ops.INPUT]
    costs |= {n: SINGLE for n in inputs if n.attr("name") in free}
    sources = keepable.price(costs, backward, free)
    cut = minimum_cut(costs, needed, sources, read)
    total = sum(costs[node] for node in cut)
    # Inputs above the cut are read for their shape and dtype alone, which takes no bytes.
    above = computed_again(backward, cut)
    return total, [n for n in known if n in cut or (n.op is ops.INPUT and n in above)]


def reader_of(graph: Graph) -> Callable[[Node], Sequence[Node]]:
    """Return `read_by`, or what is faster for a graph that reads no shape alone."""
    return read_by if any(map(SHAPE_ONLY, graph.ops)) else OPERANDS


def read_by(node: Node) -> list[Node]:
    """Return a node's operands, leaving out inputs whose shape alone it reads."""
    return [
        operand
        for position, operand in enumerate(node.operands)
        if operand.op is not ops.INPUT or not reads_shape_alone(node.op, position)
    ]


def complements_as_one(backward: Graph) -> Graph:
    """Return a backward that reads a != b as the complement of a == b, where it reads both."""
    if not {ops.EQ, ops.NE} <= backward.ops:
        return backward
    # One of the two masks is enough; with NaN too.
    equality_of = {node.operands: node for node in backward.nodes if node.op is ops.EQ}
    complements = [n for n in backward.nodes if n.op is ops.NE and n.operands in equality_of]
    changes = {n: make_node(ops.NOT, (equality_of[n.operands],), {}, n.type) for n in complements}
    return substitute(backward, changes) if changes else backward


def computed_again(backward: Graph, kept: Collection[Node]) -> set[Node]:
    """Return the nodes that backward reads beside what is kept, and not through it."""
    return {*walk(backward.outputs, until=kept)}.difference(kept)


def find_known(backward: Graph, roles: Roles) -> dict[Node, None]:
    """Return, in order, the nodes that depend on an input or output, and on no cotangent or key."""
    known: dict[Node, None] = {}
    backward_only: set[Node] = set()  # depend on what only backward has
    for node in backward.nodes:
        name = node.attr("name") if node.op is ops.INPUT else None
        if name in (*roles.cotangents, "key") or not backward_only.isdisjoint(node.operands):
            backward_only.add(node)
        elif name in (*roles.inputs, *roles.outputs) or not known.keys().isdisjoint(node.operands):
            known[node] = None
    return known


def cost(node: Node, is_output: bool, floats: bool) -> int:
    """Return the cost of keeping a node, in 64ths of a byte per element of an input."""
    type_ = node.type
    full = BYTES.get(type_.dtype, 4) * FULL
    if node.op is ops.INPUT:
        return full
    if is_output and type_.kind == "tensor":
        # One less than an input: at a tie the output is kept, which mostly lives on anyway.
        return full - 1
    is_exact = type_.dtype == BOOL or "int" in type_.dtype
    if type_.kind != "tensor" or not (floats or is_exact):
        return INFINITE
    # One more than an input of the same dtype, which is kept at a tie.
    if type_.shape == INPUT_SHAPE or (type_.shape == UNKNOWN and is_exact):
        return full + (type_.dtype != BOOL)
    if type_.shape == SCALAR_SHAPE:
        return SINGLE
    return BYTES[type_.dtype] * REDUCED if isinstance(type_.shape, tuple) else INFINITE


def minimum_cut(
    costs: Mapping[Node, int],
    needed: list[Node],
    found: Collection[Node] = (),
    reads: Callable[[Node], Sequence[Node]] = OPERANDS,
) -> list[Node]:
    """Return the cheapest nodes that separate `needed` from the inputs and from those `found`.

    At a tie those near the inputs. Maximum flow by augmenting paths (Edmonds and Karp, 1972); each
    node is an edge from (node, 0) to (node, 1).
    """
    sources = [node for node in costs if node.op is ops.INPUT or node in found]
    if all(node.op is ops.INPUT for node in needed):  # nothing is between
        return [node for node in sources if node in needed]
    users = [(operand, node) for node in costs for operand in reads(node) if operand in costs]
    edges: list[tuple[Any, Any, int]] = [
        *[("inputs", (node, 0), INFINITE) for node in sources],
        *[((node, 0), (node, 1), amount) for node, amount in costs.items()],
        *[((operand, 1), (user, 0), INFINITE) for operand, user in users],
        *[((node, 1), "needed", INFINITE) for node in needed],
    ]
    capacity: dict[Any, dict[Any, int]] = {"needed": {}}
    for a, b, amount in edges:
        capacity.setdefault(a, {})[b] = amount
        # An edge back, without capacity, by which a later path can undo an earlier one.
        capacity.setdefault(b, {}).setdefault(a, 0)
    predecessors = _reach(capacity) if needed else {}
    while "needed" in predecessors:
        path, place = [], "needed"
        while place != "inputs":
            path.append((predecessors[place], place))
            place = predecessors[place]
        amount = min([capacity[a][b] for a, b in path])
        for a, b in path:
            capacity[a][b] -= amount
            capacity[b][a] += amount
        predecessors = _reach(capacity)
    # Nodes with one side reached are the saturated edges, which are the cut.
    return [node for node in costs if (node, 0) in predecessors and (node, 1) not in predecessors]


def _reach(capacity: Mapping[Any, Mapping[Any, int]]) -> dict[Any, Any]:
    # Each place with the one before it, breadth first, along edges with capacity left.
    predecessors: dict[Any, Any] = {"inputs": None}
    queue = deque(["inputs"])
    while queue and "needed" not in predecessors:
        place = queue.popleft()
        for neighbor, spare in capacity[place].items():
            if spare > 0 and neighbor not in predecessors:
                predecessors[neighbor] = place
                queue.append(neighbor)
    return predecessors


def _dtype_carrier(backward: Graph, roles: Roles, names: dict[Node, str]) -> dict[Node, str]:
    cotangents = [node for node in backward.inputs if node.attr("name") in roles.cotangents]
    # An input to keep for its dtype, where backward casts to it and nothing else tells it.
    if any(node.type.dtype == T for node in (*cotangents, *names)):
        return {}
    if all(dict(node.attrs).get("dtype") != T for node in backward.nodes):
        return {}
    inputs = (node for node in backward.inputs if node.attr("name") in roles.inputs)
    carrier = next((node for node in inputs if node.type.dtype == T), None)
    return {} if carrier is None else {carrier: carrier.attr("name")}


def split(
    forward: Graph,
    backward: Graph,
    roles: Roles,
    names: dict[Node, str],
    keepable: Keepable,
) -> ResidualCut:
    """Return the cut at nodes that have these names."""
    names = names | _dtype_carrier(backward, roles, names)
    inputs = {node: as_input(node, name) for node, name in names.items()}
    results = {
        node: as_input(node, name)
        for node, name in zip(forward.outputs, roles.outputs, strict=True)
        if node.op is not ops.INPUT
    }
    role_names = (*roles.cotangents, *roles.inputs, *roles.outputs, "key")
    input_nodes = [node for node in backward.nodes if node.op is ops.INPUT]
    nodes = dict.fromkeys((*backward.inputs, *forward.inputs, *input_nodes))
    name_of = {node: node.attr("name") for node in nodes}
    params = tuple([node for node, name in name_of.items() if name not in role_names])
    arguments = tuple([node for node in forward.inputs if name_of[node] in roles.inputs])
    computed = [n for n in names if names[n] not in (*roles.inputs, *roles.outputs)]
    kept = keepable.stored(computed)
    read_outputs = [node for node in input_nodes if name_of[node] in roles.outputs]
    outputs = dict.fromkeys((*results.values(), *read_outputs))
    keep = Graph("keep", (*arguments, *outputs, *params), tuple(kept), backward.locations)
    keep = keepable.closed(keep)
    shortened = substitute(keep, results) if keepable.apart else keep
    if not keepable.outputs:  # a float through which another derivative passes is computed again
        pairs = zip(keep.outputs, shortened.outputs, strict=True)
        exact_outputs = [before if is_float(before.type) else after for before, after in pairs]
        shortened = replace(shortened, outputs=tuple(exact_outputs))
    tail = substitute(backward, {node: new for node, new in inputs.items() if new is not node})
    tail = keepable.closed(tail)
    cotangents = tuple([n for n in backward.inputs if name_of[n] in roles.cotangents])
    keys = tuple([n for n in backward.inputs if name_of[n] == "key"])
    tail = replace(tail, inputs=(*cotangents, *dict.fromkeys(inputs.values()), *params, *keys))
    residuals = tuple(dict.fromkeys(names.values()))
    return ResidualCut(shortened, tail, residuals, tuple([names[node] for node in computed]))
