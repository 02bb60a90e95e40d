"""The capture of a rule's Python function as a graph, and the checks of its result.

`run_or_import` calls the function, and a `Witness` looks for effects that the graph would not have.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ...backend.discovery import in_use
from ...errors import GradientError, MultigradError, TraceError
from ...graph import ops
from ...graph.ir import questions
from ...graph.ir.graph import Graph, Location, every_node
from ...graph.ir.types import BOOL, FLOAT_SCALAR, INPUT, INPUT_SHAPE, SCALAR_SHAPE, UNKNOWN, T
from ...graph.passes.simplify import simplify
from ...trace.derived.custom_calls import drop_calls
from ...trace.trace import NeedsConcrete, Trace, Value, constant
from ..dialect import load_dialects
from ..dialects import xp
from ..foreign_calls import describe_routes, intercepting
from ..values.tracer import V
from .witness import Witness

Run = Callable[[Trace, Value, Value | None, Mapping[str, Any]], Any]
# Symbols that an error of a library may name: it needs the real thing, so the capture is repeated
# with this fact.
OPAQUE = {"SymbolicDType": "dtype", "SymbolicShape": "shape", "SymbolicDevice": "device"}


def capture(
    name: str,
    run: Run,
    *,
    has_tin: bool,
    runtime: tuple[str, ...],
    static: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> Graph:
    """Run a rule on symbolic values and return its simplified graph.

    Args:
        name: the rule's name, for messages.
        run: runs the rule (one function, or a chain of them) in a trace.
        has_tin: whether the rule gets its forward input; else `tin` is None.
        runtime: names of the params that are run-time scalars, in order.
        static: the other params.
        facts: what is fixed for this capture: "ndim", "dtype", "shape", "param:<name>".

    Raises:
        NeedsConcrete: Python needed something concrete that is not among the facts.
        TraceError: the rule cannot be captured.
        GradientError: its result is no gradient of its input.
    """

    in_use()  # frameworks imported by now register their dialects
    load_dialects()

    def record(facts: Mapping[str, Any]) -> tuple[Trace, Graph]:
        trace = Trace(name, facts, V, namespace=xp)
        with intercepting():
            trace.source.witness = Witness(trace)
            graph = _run(trace, run, has_tin, runtime, static)
            trace.source.witness.refuse_escaped_symbols()
        return trace, graph

    try:
        trace, graph = record(facts)
        _refuse_if_not_repeatable(trace, graph, record, static)
    except NeedsConcrete as need:
        if need.facts != ("device",):
            raise
        # Rules stay on their input's device, so it is no fact about the input.
        known = {**facts, "device": True}
        return capture(name, run, has_tin=has_tin, runtime=runtime, static=static, facts=known)
    return replace(simplify(graph), origin=describe_routes(trace))


def _refuse_if_not_repeatable(
    trace: Trace,
    graph: Graph,
    record: Callable[[Mapping[str, Any]], tuple[Trace, Graph]],
    static: Mapping[str, Any],
) -> None:
    # A number that the source does not contain may be a draw: a second run must give the same
    # graph.
    first = trace.source.witness
    if not first.is_suspect and not has_number_from_elsewhere((graph,), trace, static):
        return
    with first.outside.dropping_added():
        again, other = record(trace.facts)
    differs = drop_calls(other).outputs != drop_calls(graph).outputs
    # Another thread may have drawn meanwhile, once; both runs drawing is no coincidence.
    both_drew = first.outside.moved and again.source.witness.outside.moved
    if differs or both_drew:
        raise TraceError(
            f"rule {trace.name!r} gives another graph each time: it draws a number, or reads one "
            "that changes. Draw with xp.rand_like(grad_out), or make the number a param"
        )


def _run(
    trace: Trace, run: Run, has_tin: bool, runtime: tuple[str, ...], static: Mapping[str, Any]
) -> Graph:
    facts = trace.facts
    grad_out = trace.input("grad_out", INPUT)
    tin = trace.input("tin", INPUT) if has_tin else None
    scalars = {param: trace.input(param, FLOAT_SCALAR) for param in runtime}
    inputs = [x.node for x in (grad_out, tin, *scalars.values()) if x is not None]
    for param in runtime:
        if f"param:{param}" in facts:
            scalars[param] = trace.value(constant(facts[f"param:{param}"]))
    try:
        with trace.source.witness, questions.asking():
            result = run(trace, grad_out, tin, {**static, **scalars})
    except (NeedsConcrete, MultigradError):
        raise
    except Exception as error:
        opaque = find_opaque(trace, error)
        if opaque and opaque not in facts:
            raise NeedsConcrete(opaque) from error
        place = _place(trace, error)
        at = f" ({Location(*place)})" if place else ""
        raise TraceError(
            f"rule {trace.name!r}{at} raised {type(error).__name__} while captured: {error}", place
        ) from error
    node = _check_result(trace, result).node
    if trace.key is not None:
        inputs.append(trace.key)
    return Graph(trace.name, tuple(inputs), (node,), trace.source.locations)


def has_number_from_elsewhere(
    graphs: Iterable[Graph], trace: Trace, static: Mapping[str, Any]
) -> bool:
    """Return whether a graph holds a float that the captured source does not contain.

    It may come from a global or from arithmetic; but a draw is one too, and must not be frozen.
    """
    has_array = ops.ARRAY in {node.op for graph in graphs for node in every_node(graph)}
    return has_array or bool(numbers_from_elsewhere(graphs, trace, static))


def numbers_from_elsewhere(
    graphs: Iterable[Graph], trace: Trace, static: Mapping[str, Any]
) -> set[float]:
    """Return the floats of graphs that the source does not contain, without their signs."""
    nodes = [node for graph in graphs for node in every_node(graph)]
    constants = [node.attr("value") for node in nodes if node.op is ops.CONST]
    codes = [code.co_consts for code in trace.source.codes]
    written = _numbers((*trace.facts.values(), *static.values(), *trace.source.numbers, *codes))
    foreign = _numbers(constants) - written - {0.0, 1.0}
    if math.inf in foreign:  # `clamp(min=0)` records an infinite limit for the open side
        infinite = {n for n in nodes if n.op is ops.CONST and abs(n.attr("value")) == math.inf}
        users = [node.op for node in nodes if not infinite.isdisjoint(node.operands)]
        foreign -= {math.inf} if {*users} == {ops.CLIP} else set()
    return foreign


def _numbers(values: Iterable[Any]) -> set[float]:
    magnitudes: set[float] = set()
    for value in values:
        if isinstance(value, tuple):
            magnitudes |= _numbers(value)
        elif isinstance(value, float):
            magnitudes.add(abs(value))
    return magnitudes


def find_opaque(trace: Trace, error: Exception) -> str:
    """Return the fact that replaces the symbol which a library could not take, "" for none."""
    word = next((word for word in OPAQUE if word in str(error)), "")
    if not word and trace.facts.gives_dtype and isinstance(error, TypeError):
        return "dtype"  # not every message shows its argument
    return OPAQUE[word] if word else ""


def _place(trace: Trace, error: BaseException) -> tuple[str, int] | None:
    # The innermost line of the user's code in a traceback.
    frames = traceback.walk_tb(error.__traceback__)
    lines = [(f.f_code.co_filename, line) for f, line in frames if f.f_code in trace.source.codes]
    return lines[-1] if lines else None


def _check_result(trace: Trace, result: Any) -> Value:
    name = trace.name
    if not isinstance(result, Value):
        shown = "None" if result is None else f"{type(result).__name__} {result!r}"
        raise GradientError(
            f"rule {name!r} returned {shown}; expected the gradient, a tensor like tin. For zero "
            "write xp.zeros_like(grad_out)"
        )
    type_ = result.node.type
    if type_.kind != "tensor":
        raise GradientError(
            f"rule {name!r} returned a scalar; expected a tensor of tin's shape. Write grad_out * "
            "scalar or xp.full_like(grad_out, scalar)"
        )
    if type_.shape not in (INPUT_SHAPE, UNKNOWN):
        raise GradientError(
            f"rule {name!r} returned {_describe(type_.shape)}; expected tin's shape. Use "
            "keepdims=True and combine with grad_out"
        )
    if type_.dtype == BOOL:
        raise GradientError(
            f"rule {name!r} returned bools; multiply by grad_out or cast to its dtype"
        )
    if type_.dtype != T:
        if "dtype" not in trace.facts:
            raise NeedsConcrete("dtype")
        if type_.dtype != trace.facts["dtype"]:
            raise GradientError(
                f"rule {name!r} returned {type_.dtype} for a {trace.facts['dtype']} input; cast it "
                "back with .to(grad_out.dtype)"
            )
    return result


def _describe(shape: Any) -> str:
    if shape == SCALAR_SHAPE:
        return "one number"
    _, axis, keepdims = shape
    kept = "with 1 for" if keepdims else "without"
    return f"tin's shape {kept} {'all axes' if axis is None else f'axis {axis}'}"
