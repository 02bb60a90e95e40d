"""What forward keeps for backward beyond a plain rule's residuals: outputs that bear a mark, what
loops and exponentials gave, copies of tensors that others may write to, and masks as bits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from ...core import ops
from ...core.backend.rows import kernel
from ...core.ir.graph import Graph, Node, dependents, derive_node, make_node, walk
from ...core.ir.op import BOOL, SCALAR_SHAPE, UNKNOWN, T, Type, is_float, kept
from ...core.passes.residuals import (
    BYTES,
    FULL,
    INFINITE,
    SINGLE,
    Keepable,
    ResidualCut,
    Roles,
    as_input,
    reader_of,
    split,
)
from ...core.passes.simplify import COPY, nodes_of, rebuild, simplify, substitute, without
from ...core.support.records import record
from .memory import KEPT, in_memory, is_kept_copy, owned, owner_of_memory, without_kept

# --- marks of outputs -----------------------------------------------------------------------------


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


def outputs_as_inputs(backward: Graph, roles: Roles) -> Graph:
    """Return a backward with inputs for the outputs that it reads as forward gave them."""
    return substitute(
        backward,
        {node: as_input(node, roles.outputs[position]) for node, position in marks(backward)},
    )


# --- inputs that the code does not keep -----------------------------------------------------------


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
    copies = filter(is_kept_copy, nodes_of(graph, ops.MEMORY))
    marks_of_copies = {n: n.operands[0] for n in copies}
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


def find_unread(graph: Graph, outputs: Mapping[str, Node]) -> tuple[str, ...]:
    """Return the names of the computed outputs that gradients do not read as forward gave them."""
    read = {position for _, position in marks(graph)}
    return tuple(
        name
        for position, (name, node) in enumerate(outputs.items())
        # Others bear no mark, so nothing tells whether they are read.
        if position not in read and node.op is not ops.INPUT and is_float(node.type)
    )


# --- what to keep ---------------------------------------------------------------------------------
NAMES = "exp expm1 log log1p sin cos tan atan tanh sigmoid erf erfc erfinv pow"
COSTLY = frozenset(NAMES.split())


@record()
class KeepMore(Keepable):
    """What else forward may keep for backward.

    Attributes:
        forward: that of the pair.
        loops: results of scans, so that no scan runs again.
        costly: exponentials and the like, so that none is computed again.
        bits: masks as a bit an element, as if packed, instead of a byte.
        unkept: the inputs that may not be kept themselves, but a copy, or what is computed of them.
        written: whether inputs may change, so that what the code keeps is not computed again.
        unread: the outputs of which at most a copy may be kept.
    """

    forward: Graph | None = None
    loops: bool = False
    costly: bool = False
    bits: bool = False
    unkept: Collection[str] = ()
    written: bool = False
    unread: Mapping[str, Node] = field(default_factory=dict)

    @property
    def apart(self) -> bool:  # type: ignore[override]
        return not (self.loops or self.costly)

    def opened(self, backward: Graph, roles: Roles) -> Graph:
        return outputs_as_inputs(backward if self.written else without_kept(backward), roles)

    def price(
        self, costs: dict[Node, int], backward: Graph, free: Collection[str]
    ) -> Collection[Node]:
        inputs = [node for node in costs if node.op is ops.INPUT]
        # One more than what is computed of an input.
        costs |= {n: costs[n] + 2 for n in inputs if n.attr("name") in self.unkept}
        if self.bits:
            bools = [n for n in costs if n.type.dtype == BOOL and costs[n] < INFINITE]
            costs |= {node: max(costs[node] // 8, SINGLE) for node in bools}
        sources: set[Node] = set()  # the cut lies below them: they are not computed again
        if self.loops:  # of one that is read for its shape alone, compilers leave nothing
            sources = {node for node in costs if node.op.loop == "rows"}
            sources &= by_value(backward.outputs) if self.floats else sources
            # One more than an input, so that the input wins at a tie.
            costs |= dict.fromkeys(sources, BYTES[T] * FULL + 1)
        assert self.forward is not None
        again = computed_at_cost(self.forward, backward) if self.costly and not free else ()
        for node in (*again, *filter(is_kept_copy, nodes_of(backward, ops.MEMORY))):
            if node in costs:
                costs[node] = SINGLE if node.type.shape == SCALAR_SHAPE else BYTES[T] * FULL + 1
                sources.add(node)
        if self.written:  # of an input that the code itself keeps, backward reads what it is then
            held = {n for n in inputs if n.attr("name") not in self.unkept}
            later = dependents([n for n in costs if not is_kept_copy(n)], held, by_value=True)
            costs |= {n: INFINITE for n in later - held if is_float(n.type)}
        sources |= {node for node in costs if is_search(node)}
        return sources

    def copied(self, backward: Graph, residuals: Collection[Node]) -> Collection[Node]:
        if not self.unkept:
            return ()
        values = {*walk(backward.outputs, reader_of(backward), residuals)}
        return [node for node in residuals if node in values and is_named(node, self.unkept)]

    def stored(self, computed: Sequence[Node]) -> Sequence[Node]:
        sources = [n.operands[0] if is_kept_copy(n) else n for n in computed]
        return [in_memory(n, COPY) if n.op is ops.INPUT else n for n in sources]

    def closed(self, graph: Graph) -> Graph:
        return without_kept(graph)

    def finished(self, cut: ResidualCut, forward: Graph) -> ResidualCut:
        if not self.written:
            return self._apart_from_unread(cut)
        # What is kept of a view, or of an output, is a copy as well: others may write to these.
        owners = {*map(owner_of_memory, forward.outputs)}
        pairs = zip(cut.keep.outputs, owned(cut.keep, owners).outputs, strict=True)
        # A cast to another dtype is one already, and to its own none in the author's code either.
        copies = tuple([node if node.op is ops.CAST else own for node, own in pairs])
        return replace(cut, keep=replace(cut.keep, outputs=copies))

    def _apart_from_unread(self, cut: ResidualCut) -> ResidualCut:
        # A small one may be kept, such as a sum, but not in the memory that others may write to.
        owners = {n for n in map(owner_of_memory, self.unread.values()) if n.op is not ops.INPUT}
        owners |= {as_input(node, name) for name, node in self.unread.items()}
        if not owners:
            return cut
        outputs = cut.keep.outputs
        copies = [in_memory(n, COPY) if owner_of_memory(n) in owners else n for n in outputs]
        return replace(cut, keep=replace(cut.keep, outputs=tuple(copies)))


def is_named(node: Node, names: Collection[str]) -> bool:
    """Return whether a node is one of the inputs of these names."""
    return node.op is ops.INPUT and node.attr("name") in names


def is_search(node: Node) -> bool:
    """Return whether these are few integers that took long to find, which are never found again."""
    is_part = node.op.name == "getitem" and node.operands[0].op.name == "argsort"
    return is_part or node.op.name in ("argmax", "argmin")


def computed_at_cost(forward: Graph, backward: Graph) -> list[Node]:
    """Return the nodes of forward that backward would recompute at a high cost.

    These are exponentials and the like and, if there are any, the numbers to which tensors are
    reduced.
    """
    common = {*backward.nodes}.intersection(forward.nodes).difference(forward.outputs)
    costly = {node for node in common if node.op.name in COSTLY and node.type.kind == "tensor"}
    numbers = {n for n in common if n.type.kind == "tensor" and n.type.shape == SCALAR_SHAPE}
    return [n for n in forward.nodes if n in costly or (n in numbers and costly)]


def by_value(outputs: Sequence[Node]) -> set[Node]:
    """Return the nodes whose numbers, not only shapes, the outputs depend on."""
    return {*walk(outputs, lambda node: node.operands_read)}


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
    names = {nodes[name]: name for name in read_names}
    return split(forward, backward, roles, names, KeepMore(floats=False, outputs=()))


# --- masks as bits --------------------------------------------------------------------------------

# Eight to a byte, for residuals="packed" and "recompute". The two ops for it are in emitted graphs
# only, and call `Kernels.bits`.
BITS = Type("tensor", "uint8", UNKNOWN)
PACK = kernel("pack_bits", "mask", kept)
UNPACK = kernel("unpack_bits", "bits like", kept).with_fields(shape_only=(1,))


def pack_masks(cut: ResidualCut, cotangents: Sequence[str]) -> ResidualCut:
    """Return a cut whose masks are bits, those that a cotangent has the shape of.

    By that cotangent a mask is unpacked.
    """
    cotangent_of: dict[Any, Node] = {}  # by shape
    for node in cut.backward.inputs:
        if node.attr("name") in cotangents and node.type.kind == "tensor":
            cotangent_of.setdefault(node.type.shape, node)
    input_of = {node.attr("name"): node for node in cut.backward.inputs}
    outputs, changes = [], {}
    for name, node in zip(cut.computed, cut.keep.outputs, strict=True):
        like = cotangent_of.get(node.type.shape)
        # Without a cotangent of its shape, nothing would tell how many bits to unpack.
        if node.type.dtype != BOOL or node.type.shape in (UNKNOWN, SCALAR_SHAPE) or like is None:
            outputs.append(node)
            continue
        outputs.append(make_node(PACK, (node,), {}, BITS))
        mask = input_of[name]
        bits = make_node(mask.op, (), {"name": name}, BITS)
        changes[mask] = make_node(UNPACK, (bits, like), {}, mask.type)
    if not changes:
        return cut
    inputs = [
        changes[node].operands[0] if node in changes else node for node in cut.backward.inputs
    ]
    backward = replace(substitute(cut.backward, changes), inputs=tuple(inputs))
    return replace(cut, keep=replace(cut.keep, outputs=tuple(outputs)), backward=backward)


def without_packing(keep: Graph, backward: Graph) -> tuple[Graph, Graph]:
    """Return the graphs with the masks of `pack_masks` as bools, for code that packs by itself."""
    outputs = [node.operands[0] if node.op is PACK else node for node in keep.outputs]
    masks = {
        node: make_node(node.operands[0].op, (), {"name": node.operands[0].attr("name")}, node.type)
        for node in backward.nodes
        if node.op is UNPACK
    }
    return replace(keep, outputs=tuple(outputs)), substitute(backward, masks)


# --- of graphs that are recorded or written down --------------------------------------------------


def without_stops(graph: Graph, of: Sequence[str] | None = None) -> Graph:
    """Return a backward without stop_gradient, so that a refused derivative reaches its source.

    For a backward that nobody may differentiate. `of`: inputs; only what depends on one of them is
    not stopped; None means all.
    """
    carriers = None if of is None else {node for node in graph.inputs if node.attr("name") in of}
    stops = {
        node: node.operands[0]
        for node in graph.nodes
        if node.op is ops.STOP_GRADIENT
        and (carriers is None or not carriers.isdisjoint(walk(node.operands)))
    }
    return without_stops(substitute(graph, stops), of) if stops else graph


def with_dtype(graph: Graph, old: str, new: str) -> Graph:
    """Return a graph that computes in `new` where it computes in `old`."""

    def change(node: Node) -> Node:
        if dict(node.attrs).get("dtype") != old:
            return node
        return derive_node(node.op, node.operands, {**dict(node.attrs), "dtype": new})

    return simplify(rebuild(graph, change))
