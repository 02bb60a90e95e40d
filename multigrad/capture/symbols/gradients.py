"""Gradients that captured code takes itself, and where it says that none passes.

A library takes a gradient with respect to one tensor; equal tensors are other ones to it, but one
node to us. So where code takes gradients it is captured once more, each tensor with a name of its
own: the fact "identity".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ...errors import UnsupportedOp
from ...graph import ops
from ...graph.ir.graph import Graph, Node, make_node, walk
from ...graph.ir.types import is_float
from ...graph.passes.facts import IDENTITY
from ...trace.derived.calls import CustomCall
from ...trace.derived.derivatives import accumulate_all
from ...trace.trace import NeedsConcrete, Trace, Value
from ...trace.xp import all as xp
from ..code.table import registered_dialects


def rename(node: Node) -> Node:
    """Return another node of the same value, through which derivatives pass as they are."""
    cotangent = make_node(ops.INPUT, (), {"name": "grad_out"}, node.type)
    same = Graph("same", (cotangent,), (cotangent,), {})
    called = CustomCall(same, ("grad_out",), ("x",), ("x",), (node,))
    return make_node(ops.CALL, (node, node), {"function": called, "position": 0}, node.type)


def renamed(value: Value) -> Value:
    return value.trace.value(rename(value.node))


def prepare(trace: Trace) -> Trace:
    """Return a trace that heeds where libraries say that no gradient passes; and, where code takes
    gradients, tells equal tensors apart.
    """
    tells_apart = bool(trace.facts.get(IDENTITY))
    if tells_apart:
        trace.backward.rename = rename
    # A class's own code runs where none passes: that matters to what it differentiates alone.
    heeds = tells_apart or trace.kind == "function"
    asked = [each.pauses for each in registered_dialects().values() if each.pauses is not None]

    def is_paused() -> bool:  # asked at each op
        for pauses in asked:  # which may refuse
            if pauses():
                return heeds
        return False

    trace.backward.is_paused = is_paused
    return trace


@contextmanager
def passing() -> Iterator[list[Callable[[], str]]]:
    """Let gradients pass, whatever the libraries are set to around a capture; give what says which
    variables it has read that wait for one.
    """
    with ExitStack() as stack:
        dialects = tuple(registered_dialects().values())
        entered = [stack.enter_context(each.passes()) for each in dialects if each.passes]
        yield [watched for watched in entered if watched is not None]


def take_gradients(
    outputs: Sequence[Value],
    cotangents: Sequence[Value | None],
    sources: Sequence[Value],
) -> list[Value | None]:
    """Return the gradient with respect to each source, None where no output depends on it.

    Args:
        cotangents: of the outputs; None: ones.
    """
    trace = sources[0].trace
    if lost := trace.backward.lost_gradient:
        raise trace.error(f"takes a gradient through {lost}, whose own gradient is not captured")
    with trace.backward.plainly():
        seeds = [
            (output.node, xp.ones_like(output) if cotangent is None else cotangent)
            for output, cotangent in zip(outputs, cotangents, strict=True)
        ]
        try:
            found = accumulate_all(trace, seeds, [source.node for source in sources])
        except UnsupportedOp as error:
            raise trace.error(f"takes a gradient of what has none: {error}") from error
        return [None if each is None else renamed(each) for each in found]


def tell_apart(trace: Trace) -> None:
    """Say that code takes gradients with respect to tensors as they are."""
    if IDENTITY not in trace.facts:
        raise NeedsConcrete(IDENTITY)


def carries_gradient(node: Node, held: Sequence[Node] = ()) -> bool:
    """Return whether a gradient of this passes to an input, other than through `held`."""
    reached: set[Node] = set()
    for each in walk((node,)):
        if each in held or each.op is ops.STOP_GRADIENT or not is_float(each.type):
            continue
        shape_only = {each.operands[i] for i in each.op.shape_only}
        passes = [o for o in each.operands if o in reached and o not in shape_only]
        if each.op is ops.INPUT or passes:
            reached.add(each)
    return node in reached
