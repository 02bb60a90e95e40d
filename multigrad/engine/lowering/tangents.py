"""Forward mode: the code of the tangents of a pair's outputs, by the author's own map or the
transpose of backward.

The VJP of a linear map is its transpose. So the graph `cotangents -> gradients`, differentiated
with respect to the cotangents, is `tangents of the inputs -> tangents of the outputs`. A backward
that is not linear, such as one that clips, has no forward mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...core import ops
from ...core.backend.emitted import Body, Checks
from ...core.ir.graph import Graph, Node, derive_node, make_node
from ...core.ir.op import UNKNOWN, is_float
from ...core.lowering.derivatives import accumulate_all, is_linear
from ...core.lowering.emit import emit_body
from ...core.lowering.function_graph import FunctionGraph
from ...core.lowering.lower import Lowering
from ...core.passes.residuals import ResidualCut
from ...core.passes.simplify import constant, rebuild, rename_inputs, simplify, substitute
from ...core.trace.coercion import cast_node
from ...core.trace.trace import Trace, Value
from ...core.trace.xp import all as xp
from ...errors import UnsupportedOp
from ..passes.residuals import by_value, outputs_as_inputs
from .calls import drop_calls, gradients_lost
from .checks import second_refusal


def emit_tangent(lowering: Lowering, cut: ResidualCut, checks: Checks) -> Body:
    """Emit the code of the tangents; residuals that it reads refuse a derivative where gradients
    do.
    """
    graph, once = tangent_map(lowering.graphs, cut.backward), checks.second_derivative
    tangent = emit_body(drop_calls(graph), lowering.emission)
    forbid, lost = lowering.backend.autodiff.forbid_derivative, gradients_lost(graph)
    if lost and forbid is not None:
        message = second_refusal(lowering.graphs.name, False, lost, "jvp")
        once = lowering.emission.bind("once", forbid(message))
    if not once:
        return tangent
    names = [r for r in cut.residuals if r in tangent.reads and is_float(cut.type(r))]
    guards = [f"{name} = {once}({name})" for name in names]
    return replace(tangent, lines=(*guards, *tangent.lines))


def tangent_name(position: int) -> str:
    # No input or param has a space in its name.
    return f"tangent {position}"


def tangent_map(pair: FunctionGraph, backward: Graph) -> Graph:
    """Return `*tangents, *inputs, *outputs, ... -> tangents of the outputs that carry a gradient`:
    the author's own, or the transpose of the backward of `cut_at_inputs`.

    Raises:
        UnsupportedOp: there is none of the author's, and backward is not linear in the cotangents.
    """
    if pair.pushed is not None:
        pushed = outputs_as_inputs(pair.pushed, pair.roles)
        leaves = [node for node in pushed.nodes if node.op is ops.INPUT]
        pushed = replace(pushed, inputs=tuple(dict.fromkeys((*pushed.inputs, *leaves))))
        names = {tangent_name(i): name for i, name in enumerate(pair.tangents)}
        return simplify(rename_inputs(pushed, names))
    tangent_of = dict(zip(pair.inputs, pair.tangents, strict=True))
    tangents = [
        make_node(ops.INPUT, (), {"name": tangent_of[name]}, pair.type_of(name) or gradient.type)
        for name, gradient in zip(pair.wrt, backward.outputs, strict=True)
    ]
    outputs = [
        make_node(ops.INPUT, (), {"name": name}, node.type)
        for name, node in zip(pair.outputs, pair.forward.outputs, strict=True)
    ]
    is_alone = len(pair.inputs) == 1 and outputs[0].type == tangents[0].type
    if is_alone and outputs[0].type.shape != UNKNOWN:
        outputs[0] = tangents[0]  # an available tensor of the same shape
    noun = "rule" if pair.is_rule else "function"
    graph = transpose(backward, pair.cotangents, tangents, outputs, noun)
    pairs = zip(pair.seeds, graph.outputs, strict=True)
    tangents_out = tuple([node for seed, node in pairs if seed is not None])
    return Graph(graph.name, graph.inputs, tangents_out, graph.locations)


def transpose(
    backward: Graph,
    cotangents: Sequence[str],
    tangents: Sequence[Node],
    outputs: Sequence[Node],
    noun: str,
) -> Graph:
    """Return the graph `*tangents, *inputs without cotangents -> tangents of the outputs`.

    Args:
        cotangents: the names of the backward's.
        tangents: an input for each gradient of the backward.
        outputs: nodes with the shapes of the cotangents; a rule's has the tangent's.
        noun: names the backward in messages.
    """
    words = cotangents[0] if len(cotangents) == 1 else "its cotangents"
    if not is_linear(backward, cotangents):
        raise UnsupportedOp(
            f"{noun} {backward.name!r} is not linear in {words}, so it has no forward mode; "
            "take its gradient by reverse mode"
        )
    heads = [backward.input(name) for name in cotangents]  # None: the backward lacks the input
    pairs = [*zip(heads, outputs, strict=True)]
    known_heads = {head: output for head, output in pairs if head is not None}
    trace = Trace(f"tangent of {backward.name}")
    seeds = [
        (gradient, _in_dtype_of(trace.value(tangent), gradient))
        for gradient, tangent in zip(backward.outputs, tangents, strict=True)
    ]
    # For each output the derivative of the backward with respect to its cotangent.
    shares = accumulate_all(trace, seeds, [*known_heads])
    share_of = dict(zip(known_heads, shares, strict=True))
    results = []
    for head, output in pairs:
        share = None if head is None else share_of[head]
        zeros = xp.zeros_like(trace.value(output))
        results.append((zeros if share is None else _in_dtype_of(share, output)).node)
    others = [node for node in backward.inputs if node not in known_heads]
    inputs = dict.fromkeys((*tangents, *others, *outputs))
    graph = Graph(trace.name, tuple(inputs), tuple(results), backward.locations)
    graph = simplify(read_shapes_alone(graph))
    if not by_value(graph.outputs).isdisjoint(known_heads):
        raise UnsupportedOp(f"{noun} {backward.name!r}: the transpose of it reads {words}")
    # What it still reads of the cotangents is their shapes, which are those of the outputs.
    return simplify(substitute(graph, known_heads))


def _in_dtype_of(value: Value, node: Node) -> Value:
    # The transpose of a cast that a framework makes on the way.
    dtype = node.type.dtype
    has_dtype = value.node.type.dtype == dtype or node.type.kind == "scalar"
    return value if has_dtype else value.trace.value(cast_node(value.node, dtype))


def read_shapes_alone(graph: Graph) -> Graph:
    """Return a graph whose scans take zeros for operands that are read for their shape only."""
    zero = constant(0.0)

    def change(node: Node) -> Node:
        if node.op.loop != "rows":
            return node
        body, carried = node.attr("body").graph, node.attr("carried")
        read_nodes = by_value(body.outputs)
        operands = [*node.operands]
        for i, (parameter, operand) in enumerate(zip(body.inputs, node.operands, strict=True)):
            # Zeros, so that nothing depends on the numbers there.
            if i >= carried and parameter not in read_nodes and operand.type.kind == "tensor":
                attrs = {"dtype": operand.type.dtype}
                operands[i] = derive_node(ops.FULL_LIKE, (operand, zero), attrs)
        return make_node(node.op, operands, dict(node.attrs), node.type)

    return rebuild(graph, change)
