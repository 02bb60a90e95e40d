"""A rule on a list of gradients at once, by torch's `_foreach` kernels.

Each tensor of the rule's graph becomes a list with one tensor for each gradient, and a value
without axes, such as a norm, one vector for all of them. For 161 gradients a rule costs 5 calls
instead of 161 times 5. No number is read from another device. The bits are those of one call for
each gradient, except that `_foreach_norm` on CUDA adds in its own order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch

from multigrad.core import ops
from multigrad.core.backend.rows import is_whole_norm, kernel
from multigrad.core.ir.graph import Graph, Node, make_node
from multigrad.core.ir.op import SCALAR_SHAPE, UNKNOWN, Op, elementwise

from ..core.kernels import fast
from ..core.kernels.elementwise import HALVES
from ..core.kernels.ops import OPS
from ..core.state import BATCHED, KINDS, count_modes, is_included, tracing_state, transforms_active

Tensor: TypeAlias = torch.Tensor
Many: TypeAlias = list[Tensor]
# What a node becomes: a list of tensors, a vector with one element each, a number for all.
LIST, VECTOR, NUMBER = "list", "vector", "number"
FOREACH_NORM, FOREACH_RECIPROCAL, FOREACH_COPY = (
    getattr(torch, f"_foreach_{name}") for name in ("norm", "reciprocal", "copy_")
)


def norms(tensors: Many) -> Tensor:
    return torch.stack(FOREACH_NORM(tensors))


def numbers(vector: Tensor) -> Sequence[Any]:
    """Return a number for each gradient: Python's for a vector on the CPU, else 0-d tensors."""
    return vector.tolist() if vector.device.type == "cpu" else vector.unbind()


def each(row: Callable[..., Tensor], tensors: Many, *operands: Any, **attrs: Any) -> Many:
    """Apply a kernel to each tensor in turn; other operands are lists, or one value for all."""
    columns = [value if isinstance(value, list) else [value] * len(tensors) for value in operands]
    return [row(*values, **attrs) for values in zip(tensors, *columns, strict=True)]


def divided(tensors: Many, number: float) -> Many:
    """Return a number divided by each tensor, rounded as torch divides a number by a tensor."""
    return written(ops.MUL)(list(FOREACH_RECIPROCAL(tensors)), number)


def subtracted(tensors: Many, number: float) -> Many:
    return [torch.rsub(tensor, number) for tensor in tensors]


def copied(tensors: Many, results: Many) -> Many:
    FOREACH_COPY(tensors, results)
    return tensors


def written(op: Op) -> Callable[[Many, Any], Many]:
    """Return the kernel of an op that writes over its first list."""
    over_list, over_tensor = getattr(torch, f"_foreach_{op.name}_"), getattr(Tensor, f"{op.name}_")

    def run(tensors: Many, other: Any) -> Many:
        if isinstance(other, float) and tensors[0].dtype in HALVES:
            # _foreach (torch 2.13) would round the number to 16 bits first.
            for tensor in tensors:
                over_tensor(tensor, other)
        else:
            over_list(tensors, other)
        return tensors

    return run


NORMS = kernel("torch.foreach_norm", "x", elementwise)
NUMBERS = kernel("torch.numbers", "x", elementwise)
COPY = kernel("torch.foreach_copy", "x results", elementwise)
DIVIDED = kernel("torch.foreach_divided", "x number", elementwise)
SUBTRACTED = kernel("torch.foreach_subtracted", "x number", elementwise)
# By op: the kernel for a list with a list or number, and the one that writes over the first list.
PAIRS = {op: f"_foreach_{op.name}" for op in (ops.ADD, ops.SUB, ops.MUL, ops.DIV)}
FOREACH = {op: kernel(f"torch.foreach_{op.name}", "x y", elementwise) for op in PAIRS}
OVER = {op: kernel(f"torch.foreach_{op.name}_", "x y", elementwise) for op in PAIRS}
FROM_NUMBER = {
    ops.ADD: FOREACH[ops.ADD],
    ops.MUL: FOREACH[ops.MUL],
    ops.SUB: SUBTRACTED,
    ops.DIV: DIVIDED,
}
ALONE = (ops.NEG, ops.ABS, ops.SQRT)
FOREACH_ALONE = {op: kernel(f"torch.foreach_{op.name}", "x", elementwise) for op in ALONE}
# Ops without a `_foreach` kernel, or without one of the same bits.
IN_TURN = (ops.SIGN, ops.CLIP, ops.MEAN, ops.SUM, ops.NORM, ops.SQUARE)
EACH = {op: kernel(f"torch.each_{op.name}", " ".join(op.operands), elementwise) for op in IN_TURN}
# Ops that have the same bits on a vector as on its elements.
EXACT = (*PAIRS, ops.MAXIMUM, ops.MINIMUM, ops.NEG, ops.ABS, ops.SQRT, ops.RECIPROCAL)

KERNELS: dict[Op, Callable[..., Any]] = {
    NORMS: norms,
    NUMBERS: numbers,
    COPY: copied,
    DIVIDED: divided,
    SUBTRACTED: subtracted,
    **{FOREACH[op]: getattr(torch, name) for op, name in PAIRS.items()},
    **{OVER[op]: written(op) for op in PAIRS},
    **{FOREACH_ALONE[op]: getattr(torch, f"_foreach_{op.name}") for op in ALONE},
    **{EACH[op]: partial(each, OPS.get(op) or getattr(operator, op.name)) for op in EACH},
}
fast.KERNELS.update(KERNELS)


# Bytes of gradients that a processor's cache holds from one op to the next.
BLOCK = 1 << 22


def many(
    graph: Graph, emit: Callable[[Graph], Callable[..., Any]], in_place: bool
) -> Callable[..., list[Tensor] | None] | None:
    """Return a rule on lists of gradients by torch's `_foreach` kernels; see `Autodiff.many`."""
    list_graph = over_many(graph, in_place)
    if list_graph is None:
        return None
    function = emit(list_graph)

    def run(
        gradients: Sequence[Tensor], values: Sequence[Any], tries: bool = False
    ) -> list[Tensor] | None:
        first = gradients[0]
        if type(first) not in KINDS or transforms_active() or count_modes():
            return None
        if tracing_state() is not None or is_included(BATCHED):
            return None
        device = first.device
        if any(g.device != device or g.layout is not torch.strided for g in gradients):
            return None
        # None sends the caller to one gradient at a time, which can be differentiated.
        if torch.is_grad_enabled() and any(g.requires_grad for g in gradients):
            return None
        # A dry run: the caller only asks whether the list would be taken.
        if tries:
            return []
        blocks = blocks_of(gradients) if device.type == "cpu" else [list(gradients)]
        return [g for block in blocks for g in function(block, *values)]

    return run


def blocks_of(gradients: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return gradients in blocks that fit a processor's cache.

    The 161 gradients of a ResNet-50 are clipped in 15.1 ms by blocks, and in 18.7 ms all at once.
    """
    blocks, size = [[gradients[0]]], gradients[0].nbytes
    for gradient in gradients[1:]:
        if size > BLOCK:
            blocks.append([])
            size = 0
        blocks[-1].append(gradient)
        size += gradient.nbytes
    return blocks


def over_many(graph: Graph, in_place: bool) -> Graph | None:
    """Return the graph of a rule on lists of gradients; None: an op has no kernel for them."""
    (gradient,) = graph.outputs
    # The caller compares an unknown shape with the gradient's, which lists do not allow.
    if gradient.type.shape == UNKNOWN:
        return None
    results_by_node: dict[Node, tuple[Node, str]] = {}
    for node in graph.nodes:
        node_and_kind = rewritten(node, [results_by_node[operand] for operand in node.operands])
        if node_and_kind is None:
            return None
        results_by_node[node] = node_and_kind
    result, kind = results_by_node[gradient]
    if kind != LIST:
        return None
    if in_place and result is not graph.inputs[0]:
        result = over(result, graph.inputs[0])
    return Graph(f"{graph.name}_of_many", graph.inputs, (result,), graph.locations)


def over(result: Node, target: Node) -> Node:
    for op, of_lists in FOREACH.items():
        if result.op is of_lists and result.operands[0] is target:
            return make_node(OVER[op], result.operands, {}, result.type)
    return make_node(COPY, (target, result), {}, result.type)


def rewritten(node: Node, done: Sequence[tuple[Node, str]]) -> tuple[Node, str] | None:
    """Return the node on lists for a node, given its rewritten operands, and its kind; or None."""
    operands, kinds = [operand for operand, _ in done], [kind for _, kind in done]
    attrs = dict(node.attrs)
    if node.op in (ops.INPUT, ops.CONST) or set(kinds) == {NUMBER}:
        kind = LIST if node.type.kind == "tensor" else NUMBER
        is_known = node.op in (ops.INPUT, ops.CONST) or kind == NUMBER
        new_node = node if not operands else make_node(node.op, operands, attrs, node.type)
        return (new_node, kind) if is_known and node.type.kind in ("tensor", "scalar") else None
    if LIST not in kinds:
        fits = node.op in EXACT and not attrs
        return (make_node(node.op, operands, attrs, node.type), VECTOR) if fits else None
    if is_whole_norm(node):
        return make_node(NORMS, operands, {}, node.type), VECTOR
    if VECTOR in kinds:
        return spread(node, operands, kinds)
    if node.op in FOREACH:
        if kinds[0] != NUMBER:
            return make_node(FOREACH[node.op], operands, {}, node.type), LIST
        return make_node(FROM_NUMBER[node.op], operands[::-1], {}, node.type), LIST
    if node.op in FOREACH_ALONE:
        return make_node(FOREACH_ALONE[node.op], operands, {}, node.type), LIST
    if node.op in EACH and kinds[0] == LIST and node.type.shape != SCALAR_SHAPE:
        return make_node(EACH[node.op], operands, attrs, node.type), LIST
    return None


def spread(node: Node, operands: Sequence[Node], kinds: Sequence[str]) -> tuple[Node, str] | None:
    """Return a product, quotient or sum of each gradient with its own number from a vector."""
    if node.op not in (ops.MUL, ops.DIV, ops.ADD) or NUMBER in kinds:
        return None
    if kinds[0] != LIST:
        operands = operands[::-1]
        if node.op is ops.DIV:
            return None
    tensors, vector = operands
    numbers_of_each = make_node(NUMBERS, (vector,), {}, vector.type)
    return make_node(FOREACH[node.op], (tensors, numbers_of_each), {}, node.type), LIST
