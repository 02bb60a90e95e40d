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
from ..ir.graph import OPERANDS, Graph, Node, dependents, make_node, walk
from ..ir.op import BOOL, INPUT_SHAPE, SCALAR_SHAPE, UNKNOWN, Op, T, Type, is_float
from ..support.records import record
from .memory import COPY, in_memory, nodes_of, owned, owner_of_memory, without
from .simplify import substitute


def mark_output(node: Node, position: int) -> Node:
    """Return the node of an output of this value in backward; itself if no float tensor."""
    if node.type.kind != "tensor" or not is_float(node.type):
        return node
    return make_node(ops.OUTPUT, (unmarked(node),), {"position": position}, node.type)


def unmarked(node: Node) -> Node:
    while node.op is ops.OUTPUT:
        (node,) = node.operands
    return node


def marks(graph: Graph) -> tuple[tuple[Node, int], ...]:
    """Return the marked nodes that a graph reads, each with the position of its output."""
    return tuple([(node, node.attr("position")) for node in nodes_of(graph, ops.OUTPUT)])


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


def drop_marks(graph: Graph) -> Graph:
    """Return a graph in which marked outputs are replaced by the nodes that computed them."""
    return without(graph, ops.OUTPUT)


def mark_everywhere(graph: Graph, outputs: Sequence[Node]) -> Graph:
    """Return a backward in which every node that is an output bears its mark."""
    mark_of = {
        node: mark_output(node, position)
        # Reversed, so that of equal outputs the first position wins.
        for position, node in reversed([*enumerate(outputs)])
        if node.op is not ops.INPUT
    }
    return substitute(graph, {node: mark for node, mark in mark_of.items() if mark is not node})


KEPT = "kept"  # as `MEMORY` says it: a value that the code keeps, which is not computed again


def find_unkept(
    graph: Graph,
    computed: Collection[Node],
    outputs: Mapping[str, Node],
    *,
    keeps_outputs: bool = False,
) -> tuple[tuple[str, ...], Graph]:
    """Return the names of the inputs that gradients read only through what forward computed and
    kept, and of the outputs of these that are not kept themselves; and the gradients.

    Marks of copies are left only at what is kept of an input that gradients read itself, too.
    """
    kept_outputs = {unmarked(node) for node, _ in marks(graph)}
    if keeps_outputs:  # marked ones are values that the code keeps, as any others
        graph = substitute(graph, {n: in_memory(n.operands[0], KEPT) for n, _ in marks(graph)})
    marks_of_copies = {n: n.operands[0] for n in graph.nodes if is_kept_copy(n)}
    held = {*marks_of_copies, *(node for node in computed if node.op is not ops.INPUT)}
    ends = {*held, *(node for node, _ in marks(graph))}
    direct = {*walk(graph.outputs, reader_of(graph), ends)}
    tensors = [n for n in graph.nodes if n.op is ops.INPUT and n.type.kind == "tensor"]
    unkept = [node for node in tensors if node not in direct]
    later = dependents([*walk(outputs.values())], unkept, by_value=True)
    names = [node.attr("name") for node in unkept]
    names += [name for name, n in outputs.items() if n in later and n not in kept_outputs]
    apart = dependents(graph.nodes, direct.intersection(tensors), by_value=True)
    changes = {n: source for n, source in marks_of_copies.items() if n not in apart}
    changes |= {n: in_memory(n, KEPT) for n in held - marks_of_copies.keys() if n in apart}
    return tuple(names), substitute(graph, changes)


def is_kept_copy(node: Node) -> bool:
    return node.op is ops.MEMORY and node.attr("how") == KEPT


def without_kept(graph: Graph) -> Graph:
    """Return a graph that may compute again what code keeps."""
    return without(graph, ops.MEMORY, is_kept_copy)


# The capacity of what must not be cut: above any sum of costs.
INFINITE = 1 << 40
SHAPE_ONLY = operator.attrgetter("shape_only")
NAMES = "exp expm1 log log1p sin cos tan atan tanh sigmoid erf erfc erfinv pow"
COSTLY = frozenset(NAMES.split())
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
        is_like = {node.attr("name"): node not in read_nodes for node in self.backward.inputs}
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

    Attributes:
        floats: computed floats (norms as scalars).
        outputs: outputs in place of the inputs.
        deciding: outputs in place of masks, where they decide the same.
        loops: results of scans, so that no scan runs again.
        costly: exponentials and the like, so that none is computed again.
        bits: masks as a bit an element, as if packed, instead of a byte.
        unkept: the inputs that may not be kept themselves, but a copy, or what is computed of them.
        written: whether inputs may change, so that what the code keeps is not computed again.
    """

    floats: bool
    outputs: bool
    deciding: bool = False
    loops: bool = False
    costly: bool = False
    bits: bool = False
    unkept: Collection[str] = ()
    written: bool = False


def cut_residuals(forward: Graph, backward: Graph, roles: Roles, keepable: Keepable) -> ResidualCut:
    """Choose what forward keeps for backward.

    Args:
        forward: `*inputs, *params, [key] -> *outputs`.
        backward: `*cotangents, *inputs, *params, [key] -> *gradients`.
        roles: the names of these.
    """
    backward = backward if keepable.written else without_kept(backward)
    backward = complements_as_one(outputs_as_inputs(backward, roles))
    results = dict(zip(forward.outputs, roles.outputs, strict=True)) if keepable.outputs else {}
    costly = computed_at_cost(forward, backward) if keepable.costly else ()
    total, residuals = choose(backward, roles, results, keepable, again=costly)
    # A rectifier's output is mostly kept by the next layer, so it is counted as free here.
    variant = decide_by_outputs(forward, backward, roles.outputs) if keepable.deciding else backward
    if variant is not backward:
        variant_total, variant_nodes = choose(variant, roles, results, keepable, free=roles.outputs)
        if variant_total < total:
            backward, residuals = variant, variant_nodes
    is_apart = not (keepable.loops or keepable.costly)
    names: dict[Node, str] = {}
    computed = 0
    values: set[Node] = set()
    if keepable.unkept:
        values.update(walk(backward.outputs, reader_of(backward), residuals))
    for node in residuals:
        is_copied = node in values and is_named(node, keepable.unkept)
        if node.op is ops.INPUT and not is_copied:
            names[node] = node.attr("name")
        elif node in results:
            names[node] = results[node]
        else:
            prefix = "kept" if is_apart else "history"
            names[node] = f"{prefix}_{computed}" if computed else prefix
            computed += 1
    # Small outputs that backward would compute again are kept too: reductions of the input, such as
    # norms, which have fewer elements.
    again = computed_again(backward, names)
    small = [n for n in results if n.type.kind == "tensor" and isinstance(n.type.shape, tuple)]
    names |= {node: results[node] for node in small if node in again}
    cut = _split(forward, backward, roles, names, alike=keepable.outputs, apart=is_apart)
    if not keepable.written:
        return cut
    # What is kept of a view, or of an output, is a copy as well: others may write to these.
    owners = {*map(owner_of_memory, forward.outputs)}
    pairs = zip(cut.keep.outputs, owned(cut.keep, owners).outputs, strict=True)
    # A cast to another dtype is one already, and to its own none in the author's code either.
    kept = tuple([node if node.op is ops.CAST else own for node, own in pairs])
    return replace(cut, keep=replace(cut.keep, outputs=kept))


def choose(
    backward: Graph,
    roles: Roles,
    results: Collection[Node],
    keepable: Keepable,
    *,
    free: Collection[str] = (),
    again: Collection[Node] = (),
) -> tuple[int, list[Node]]:
    """Return the cost and the nodes to keep.

    An input named in `free` costs next to nothing, and none of `again` is computed again.
    """
    known, read = find_known(backward, roles), reader_of(backward)
    # The known nodes that the rest of backward reads.
    unknown = [node for node in backward.nodes if node not in known]
    operands = itertools.chain(backward.outputs, *map(read, unknown))
    needed = list(dict.fromkeys([node for node in operands if node in known]))
    costs = {node: cost(node, node in results, keepable.floats) for node in known}
    inputs = [node for node in known if node.op is ops.INPUT]
    costs |= {n: SINGLE for n in inputs if n.attr("name") in free}
    # One more than what is computed of an input.
    costs |= {n: costs[n] + 2 for n in inputs if n.attr("name") in keepable.unkept}
    if keepable.bits:
        bools = [node for node in known if node.type.dtype == BOOL and costs[node] < INFINITE]
        costs |= {node: max(costs[node] // 8, SINGLE) for node in bools}
    sources: set[Node] = set()  # the cut lies below them: they are not computed again
    if keepable.loops:  # of one that is read for its shape alone, compilers leave nothing
        sources = {node for node in known if node.op.loop == "rows"}
        sources &= by_value(backward.outputs) if keepable.floats else sources
        # One more than an input, so that the input wins at a tie.
        costs |= dict.fromkeys(sources, BYTES[T] * FULL + 1)
    for node in (*again, *filter(is_kept_copy, nodes_of(backward, ops.MEMORY))):
        if node in known:
            costs[node] = SINGLE if node.type.shape == SCALAR_SHAPE else BYTES[T] * FULL + 1
            sources.add(node)
    if keepable.written:  # of an input that the code itself keeps, backward reads what it is then
        held = {n for n in inputs if n.attr("name") not in keepable.unkept}
        later = dependents([n for n in known if not is_kept_copy(n)], held, by_value=True)
        costs |= {n: INFINITE for n in later - held if is_float(n.type)}
    sources |= {node for node in known if is_search(node)}
    cut = minimum_cut(costs, needed, sources, read)
    total = sum(costs[node] for node in cut)
    # Inputs above the cut are read for their shape and dtype alone, which takes no bytes.
    above = computed_again(backward, cut)
    return total, [n for n in known if n in cut or (n.op is ops.INPUT and n in above)]


def is_named(node: Node, names: Collection[str]) -> bool:
    """Return whether a node is one of the inputs of these names."""
    return node.op is ops.INPUT and node.attr("name") in names


def is_search(node: Node) -> bool:
    """Return whether these are few integers that took long to find, which are never found again."""
    is_part = node.op.name == "getitem" and node.operands[0].op.name == "argsort"
    return is_part or node.op.name in ("argmax", "argmin")


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


def computed_at_cost(forward: Graph, backward: Graph) -> list[Node]:
    """Return the nodes of forward that backward would recompute at a high cost.

    These are exponentials and the like and, if there are any, the numbers to which tensors are
    reduced.
    """
    common = {*backward.nodes}.intersection(forward.nodes).difference(forward.outputs)
    costly = {node for node in common if node.op.name in COSTLY and node.type.kind == "tensor"}
    numbers = {n for n in common if n.type.kind == "tensor" and n.type.shape == SCALAR_SHAPE}
    return [n for n in forward.nodes if n in costly or (n in numbers and costly)]


def complements_as_one(backward: Graph) -> Graph:
    """Return a backward that reads a != b as the complement of a == b, where it reads both."""
    if not {ops.EQ, ops.NE} <= backward.ops:
        return backward
    # One of the two masks is enough; with NaN too.
    equality_of = {node.operands: node for node in backward.nodes if node.op is ops.EQ}
    complements = [n for n in backward.nodes if n.op is ops.NE and n.operands in equality_of]
    changes = {n: make_node(ops.NOT, (equality_of[n.operands],), {}, n.type) for n in complements}
    return substitute(backward, changes) if changes else backward


def by_value(outputs: Sequence[Node]) -> set[Node]:
    """Return the nodes whose numbers, not only shapes, the outputs depend on."""
    return {*walk(outputs, lambda node: node.operands_read)}


def computed_again(backward: Graph, kept: Collection[Node]) -> set[Node]:
    """Return the nodes that backward reads beside what is kept, and not through it."""
    return {*walk(backward.outputs, until=kept)}.difference(kept)


def outputs_as_inputs(backward: Graph, roles: Roles) -> Graph:
    """Return a backward with inputs for the outputs that it reads as forward gave them."""
    return substitute(
        backward,
        {node: as_input(node, roles.outputs[position]) for node, position in marks(backward)},
    )


def keep_inputs(
    forward: Graph, backward: Graph, roles: Roles, pushed: Graph | None = None
) -> ResidualCut:
    """Return the cut that keeps whatever backward reads of inputs and of forward's outputs, and
    `pushed`, if it runs on the same.
    """
    backward = outputs_as_inputs(without_kept(backward), roles)
    also = () if pushed is None else outputs_as_inputs(pushed, roles).nodes
    inputs = [node for node in (*also, *backward.nodes) if node.op is ops.INPUT]
    nodes = {node.attr("name"): node for node in inputs}
    read_names = [name for name in (*roles.inputs, *roles.outputs) if name in nodes]
    return _split(forward, backward, roles, {nodes[name]: name for name in read_names}, alike=False)


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


def _split(
    forward: Graph,
    backward: Graph,
    roles: Roles,
    names: dict[Node, str],
    *,
    alike: bool,
    apart: bool = True,
) -> ResidualCut:
    # `alike`: the derivative of an output is that of its ops. `apart`: residuals are computed after
    # forward, from its outputs.
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
    sources = [n.operands[0] if is_kept_copy(n) else n for n in computed]
    kept = [in_memory(n, COPY) if n.op is ops.INPUT else n for n in sources]
    read_outputs = [node for node in input_nodes if name_of[node] in roles.outputs]
    outputs = dict.fromkeys((*results.values(), *read_outputs))
    keep = Graph("keep", (*arguments, *outputs, *params), tuple(kept), backward.locations)
    keep = without_kept(keep)
    shortened = substitute(keep, results) if apart else keep
    if not alike:  # a float through which another derivative passes is computed again
        pairs = zip(keep.outputs, shortened.outputs, strict=True)
        exact_outputs = [before if is_float(before.type) else after for before, after in pairs]
        shortened = replace(shortened, outputs=tuple(exact_outputs))
    tail = substitute(backward, {node: new for node, new in inputs.items() if new is not node})
    tail = without_kept(tail)
    cotangents = tuple([n for n in backward.inputs if name_of[n] in roles.cotangents])
    keys = tuple([n for n in backward.inputs if name_of[n] == "key"])
    tail = replace(tail, inputs=(*cotangents, *dict.fromkeys(inputs.values()), *params, *keys))
    residuals = tuple(dict.fromkeys(names.values()))
    return ResidualCut(shortened, tail, residuals, tuple([names[node] for node in computed]))
