"""Loops in emitted code: a call of the backend's loop, whose regions are functions of the module.

v1 = scan((x,), (rows,), (), body, False)      and its results are v1[0], v1[1], ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...core.backend.emitted import Body
from ...core.ir.graph import Node, Region, walk
from ...core.ir.op import is_float
from ...core.lowering.emit import Emission, Writer, emit_body
from ...core.lowering.function_graph import FunctionGraph
from ...core.passes.simplify import substitute
from ..ops.loops import OF_A_LOOP, joined, key_of_loop
from ..passes.turns import assume_alike


def write_loop(writer: Writer, node: Node) -> str:
    """Return the code of a loop's result; the loop runs once for all of its results."""
    key, emission, kernels = key_of_loop(node), writer.emission, writer.backend.kernels
    name = writer.loops.get(key)
    if name is None:
        run, kernel_name = getattr(kernels, node.op.name), node.op.name
        if run is None:
            raise writer.lacking(node.op, "it has none")
        values = [writer.hoisted_text(node, operand)[0] for operand in node.operands]
        is_scan = node.op.loop == "rows"
        arguments = _scan_of(writer, node, values) if is_scan else _while_of(emission, node, values)
        has_turns = writer.fast and f"{writer.backend.name}.turns" not in emission.off
        if is_scan and has_turns and kernels.fast.turns is not None:
            run, kernel_name = kernels.fast.turns, "turns"
            arguments.append(_define_turn(emission, node))
        name = writer.loops[key] = writer.fresh()
        run = getattr(run, "load", lambda: run)()  # the function itself of one that loads late
        writer.lines.append(f"{name} = {emission.bind(kernel_name, run)}({', '.join(arguments)})")
    writer.loops[node] = name
    result = f"{name}[{node.attr('position')}]"
    if node.op.loop != "values" or not is_float(node.type):
        return result
    guard = emission.known.get("guard of loops")
    forbid = emission.backend.autodiff.forbid_derivative
    if guard is None and forbid is not None:  # where the framework would take a derivative
        guard = emission.known["guard of loops"] = forbid(f"rule {emission.rule!r}: {OF_A_LOOP}")
    return result if guard is None else f"{emission.bind('once', guard)}({result})"


def _while_of(emission: Emission, node: Node, values: Sequence[str]) -> list[str]:
    count = len(node.attr("body").graph.outputs)
    condition = _define(emission, node.attr("condition"), single=True)
    body = _define(emission, node.attr("body"), single=False)
    return [_listed(values[:count]), _listed(values[count:]), condition, body]


def _scan_of(writer: Writer, node: Node, values: Sequence[str]) -> list[str]:
    carried = node.attr("carried")
    first = carried + node.attr("rows")
    parts = map(_listed, (values[:carried], values[carried:first], values[first:]))
    body = _define(writer.emission, node.attr("body"), single=False, fast=writer.fast)
    return [*parts, body, repr(node.attr("reverse"))]


def _listed(values: Sequence[str]) -> str:
    return f"({''.join(f'{value}, ' for value in values).strip()})"


def _define(emission: Emission, region: Region, *, single: bool, fast: bool = False) -> str:
    """Return the name of the function that computes a region: its only result, or a tuple."""
    # Defined once and before all other code: a framework knows a function by its identity.
    name = emission.known.get((region, fast))
    if name is None:
        body = emit_body(region.graph, emission, fast)
        name = emission.known[region, fast] = emission.bind(region.graph.name, (region, fast))
        _add(emission, name, body, single=single)
    return name


def _define_turn(emission: Emission, node: Node) -> str:
    """Return the last arguments of `FastKernels.turns` as text: "turn_1, ((1, 0),), ()".

    These are the name of the function of one turn, which takes a place for each result after its
    operands; pairs of a row and the carried value whose shape it is assumed to have; and pairs of a
    result and the carried value that it is, unchanged.
    """
    carried, rows, region = node.attr("carried"), node.attr("rows"), node.attr("body")
    turn = emission.known.get((region, carried, rows))
    if turn is None:
        graph, assumed = assume_alike(region.graph, carried, rows)
        places = [f"place_{i}" for i in range(len(graph.outputs))]
        # Carried position -> the first output after the carry that repeats it, unchanged.
        repeats: dict[int, int] = {}
        for i, output in enumerate(graph.outputs[carried:], carried):
            if output in graph.inputs[:carried]:
                repeats.setdefault(graph.inputs.index(output), i)
        name = emission.bind("turn", (region, carried, rows))
        _add(emission, name, emit_body(graph, emission, True, into=places), *places)
        pairs = [tuple(assumed.items()), tuple((i, j) for j, i in repeats.items())]
        turn = emission.known[region, carried, rows] = ", ".join((name, *map(repr, pairs)))
    return turn


def _add(emission: Emission, name: str, body: Body, *places: str, single: bool = False) -> None:
    results = body.result if single else f"({body.result},)"
    emission.definitions.append(
        f"def {name}({', '.join((*body.parameters, *places))}):\n{body.indented(4)}"
        f"    return {results}\n\n\n"
    )


def run_scans_of_backward(pair: FunctionGraph) -> FunctionGraph:
    """Return the pair whose forward runs the scans that backward reads."""
    forward, backward = pair.forward, pair.backward
    while True:
        scans = [n for g in (forward, backward) for n in g.nodes if n.op.loop == "rows"]
        joins = {node: wide for node, wide in joined(scans).items() if node is not wide}
        # Scans below other scans first, because a substitution rebuilds the nodes above it.
        lowest: dict[Node, Any]
        lowest = {n: w for n, w in joins.items() if joins.keys().isdisjoint(walk(n.operands))}
        if not lowest:
            return replace(pair, forward=forward, backward=backward)
        forward, backward = substitute(forward, lowest), substitute(backward, lowest)
