"""Masks that forward keeps, eight to a byte: what `residuals="packed"` and "recompute" do to a cut.

A mask is packed whose shape a cotangent has, by which it is unpacked; any other stays as it is. The
two ops occur only in what is emitted, and call `Kernels.bits`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..backend.fast import kernel
from ..errors import RuleValueError, suggest
from ..graph.ir.graph import Graph, Node, make_node
from ..graph.ir.types import BOOL, SCALAR_SHAPE, UNKNOWN, Type
from ..graph.passes.residuals import Cut
from ..graph.passes.simplify import substitute

TIME = "time"
WAYS = ("auto", "input", "mask", "packed", "recompute", TIME)
CHEAP_MASKS = ("mask", "packed", "recompute")
PACKED = ("packed", "recompute")
BITS = Type("tensor", "uint8", UNKNOWN)


def _same(x: Type, *others: Type) -> Type:
    return x


PACK = kernel("pack_bits", "mask", _same)
UNPACK = replace(kernel("unpack_bits", "bits like", _same), shape_only=(1,))


def read_way(way: Any, subject: str) -> str:
    """Return a way of keeping residuals.

    Raises:
        RuleValueError: it is none.
    """
    if way not in WAYS:
        raise RuleValueError(
            f"{subject} got residuals={way!r:.40}; expected one of {', '.join(map(repr, WAYS))}"
            f"{suggest(str(way), list(WAYS))}"
        )
    return way


def pack_masks(cut: Cut, cotangents: Sequence[str]) -> Cut:
    """Return a cut that keeps its masks as bits."""
    likes: dict[Any, Node] = {}
    for node in cut.backward.inputs:
        if node.attr("name") in cotangents and node.type.kind == "tensor":
            likes.setdefault(node.type.shape, node)
    given = {node.attr("name"): node for node in cut.backward.inputs}
    outputs, changes = [], {}
    for name, node in zip(cut.computed, cut.keep.outputs, strict=True):
        like = likes.get(node.type.shape)
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
    keep = cut.keep
    return replace(
        cut,
        keep=Graph(keep.name, keep.inputs, tuple(outputs), keep.locations),
        backward=backward,
    )


def without_packing(keep: Graph, backward: Graph) -> tuple[Graph, Graph]:
    """Return what `pack_masks` had packed with masks as bools, for code that packs by itself."""
    outputs = [node.operands[0] if node.op is PACK else node for node in keep.outputs]
    masks = {
        node: make_node(node.operands[0].op, (), {"name": node.operands[0].attr("name")}, node.type)
        for node in backward.nodes
        if node.op is UNPACK
    }
    keep = Graph(keep.name, keep.inputs, tuple(outputs), keep.locations)
    return keep, substitute(backward, masks)
