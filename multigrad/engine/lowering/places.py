"""Where emitted code writes: into arrays that are given for outputs, over parts of tensors that
nothing reads again, and by masks instead of products.
"""

from __future__ import annotations

from ...core import ops
from ...core.ir.graph import Node, make_node
from ...core.ir.op import BOOL, is_float
from ...core.lowering.emit import Writer


def by_mask(node: Node) -> Node:
    if node.op is not ops.MUL or not is_float(node.type):
        return node
    for i, (cast, other) in enumerate((node.operands, node.operands[::-1])):
        is_mask = cast.op is ops.CAST and cast.operands[0].type.dtype == BOOL
        if is_mask and other.type.kind == "tensor" and other.type.dtype == node.type.dtype:
            operands = (cast.operands[0], other) if i == 0 else (other, cast.operands[0])
            return make_node(ops.MUL, operands, {}, node.type)
    return node


def write_into_place(writer: Writer, node: Node) -> str | None:
    kernel = writer.backend.kernels.fast.into.get(node.op)
    operands = node.operands
    dtypes = {o.type.dtype for o in operands if o.type.kind == "tensor"}
    if kernel is None or dtypes != {node.type.dtype}:
        return None
    # The kernels take the tensor first, and these two ops commute.
    if operands[0].type.kind == "scalar":
        if node.op not in (ops.ADD, ops.MUL):
            return None
        operands = operands[::-1]
    arguments = [writer.operand_in_tensor_dtype(node, o)[0] for o in operands]
    name = writer.emission.bind(f"{node.op.name}_to", kernel)
    return f"{name}({', '.join(arguments)}, out={writer.into[node]})"


def is_held(writer: Writer, node: Node, user: Node) -> bool:
    """Return whether a node's memory, or a view of it, is read when `user` writes over it.

    y[1] += y[0] * 2      PUT(y, GETITEM(y, 1) + GETITEM(y, 0) * 2)
                          both views are read by new tensors before PUT runs: not held
    y[1:] = y[:-1]        PUT(y, GETITEM(y, :-1)): held, it would read what it has written
    """
    if writer.readers is None:
        writer.readers = Readers(writer)
    return writer.readers.hold(node, user)


class Readers:
    """Which nodes of a graph read another one, and in which order they are written."""

    def __init__(self, writer: Writer) -> None:
        self.writer, nodes = writer, writer.graph.nodes
        self.order = {node: i for i, node in enumerate(nodes)}
        self.users: dict[Node, list[Node]] = {}
        for node in nodes:
            for operand in dict.fromkeys(node.operands):
                self.users.setdefault(operand, []).append(node)

    def hold(self, node: Node, writer: Node) -> bool:
        if node in self.writer.graph.outputs:
            return True
        for user in self.users[node]:
            if user is writer:
                if writer.operands[0] is not node or node in writer.operands[1:]:
                    return True
            elif self.order[user] > self.order[writer]:
                return True
            elif not self.writer.owns_memory(user):
                if self.hold(user, writer):
                    return True
            elif not self.runs_before(user, writer):
                return True
        return False

    def runs_before(self, node: Node, writer: Node) -> bool:
        # A node without a name runs where the expression does into which its text is nested; an
        # output runs at the end.
        while not self.writer.done[node][0].isidentifier():
            if node in self.writer.graph.outputs:
                return False
            (node,) = self.users[node]
            if self.order[node] >= self.order[writer]:
                return node is writer
        return True
