"""Packed masks: masks that forward keeps as bits, eight to a byte.

`residuals="packed"` and "recompute" ask for them. A mask is packed if a cotangent has its shape, by
which it is unpacked. The two ops for this are in emitted graphs only, and call `Kernels.bits`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..backend.fast import kernel
from ..graph.ir.graph import Graph, Node, make_node
from ..graph.ir.types import BOOL, SCALAR_SHAPE, UNKNOWN, Type
from ..graph.passes.residuals import ResidualCut
from ..graph.passes.simplify import substitute

BITS = Type("tensor", "uint8", UNKNOWN)


def _same(x: Type, *others: Type) -> Type:
    return x


PACK = kernel("pack_bits", "mask", _same)
UNPACK = replace(kernel("unpack_bits", "bits like", _same), shape_only=(1,))


def pack_masks(cut: ResidualCut, cotangents: Sequence[str]) -> ResidualCut:
    """Return a cut whose masks are bits, those that a cotangent has the shape of."""
    cotangent_of: dict[Any, Node] = {}  # by shape
    for node in cut.backward.inputs:
        if node.attr("name") in cotangents and node.type.kind == "tensor":
            cotangent_of.setdefault(node.type.shape, node)
    given = {node.attr("name"): node for node in cut.backward.inputs}
    outputs, changes = [], {}
    for name, node in zip(cut.computed, cut.keep.outputs, strict=True):
        like = cotangent_of.get(node.type.shape)
        # Without a cotangent of its shape, nothing would tell how many bits to unpack.
        if node.type.dtype != BOOL or node.type.shape in (UNKNOWN, SCALAR_SHAPE) or like is None:
            outputs.append(node)
            continue
        outputs.append(make_node(PACK, (node,), {}, BITS))
        mask = given[name]
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
