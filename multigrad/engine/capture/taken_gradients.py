"""Gradients that captured code takes itself, and the places where a library lets none pass.

A library takes a gradient with respect to one tensor object. Equal tensors are distinct objects
there but one node here, so code that takes gradients is captured once more with a distinct node for
each tensor: the fact "identity".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ...core import ops
from ...core.ir.graph import Node, walk
from ...core.ir.op import is_float
from ...core.lowering.derivatives import accumulate_all
from ...core.passes.facts import IDENTITY
from ...core.trace.trace import NeedsConcrete, Value
from ...core.trace.xp import all as xp
from ...errors import UnsupportedOp
from ..lowering.calls import route
from ..trace.code_trace import CodeTrace
from .dialect import registered_dialects


def rename(node: Node) -> Node:
    """Return a distinct node of the same value, through which derivatives pass unchanged."""
    return route(node, to=node)


def renamed(value: Value) -> Value:
    return value.trace.value(rename(value.node))


def prepare(trace: CodeTrace) -> CodeTrace:
    """Return a trace that respects the places where libraries let no gradient pass.

    If the code takes gradients, the trace also keeps equal tensors apart.
    """
    tells_apart = bool(trace.facts.get(IDENTITY))
    if tells_apart:
        trace.backward.rename = rename
    # A class gives its own backward, so a pause in its code matters only if it differentiates.
    respects_pauses = tells_apart or trace.kind == "function"
    optional_pauses = [each.gradients.pauses for each in registered_dialects().values()]
    all_pauses = [pauses for pauses in optional_pauses if pauses is not None]

    def is_paused() -> bool:  # runs at each op
        for pauses in all_pauses:  # a call may refuse
            if pauses():
                return respects_pauses
        return False

    trace.backward.is_paused = is_paused
    return trace


@contextmanager
def passing() -> Iterator[list[Callable[[], str]]]:
    """Let gradients pass in all libraries, whatever is set around a capture.

    Yields functions that name the variables read meanwhile that wait for a gradient.
    """
    with ExitStack() as stack:
        contexts = [each.gradients.passes for each in registered_dialects().values()]
        watchers = [stack.enter_context(each()) for each in contexts if each]
        yield [watcher for watcher in watchers if watcher is not None]


def take_gradients(
    outputs: Sequence[Value],
    cotangents: Sequence[Value | None],
    sources: Sequence[Value],
) -> list[Value | None]:
    """Return the gradient with respect to each source; None if no output depends on it.

    Args:
        cotangents: of the outputs; None: ones.
    """
    trace = sources[0].trace
    if name := trace.backward.lost_gradient:
        raise trace.error(f"takes a gradient through {name}, whose own gradient is not captured")
    with trace.backward.plainly():
        seeds = [
            (output.node, xp.ones_like(output) if cotangent is None else cotangent)
            for output, cotangent in zip(outputs, cotangents, strict=True)
        ]
        try:
            gradients = accumulate_all(trace, seeds, [source.node for source in sources])
        except UnsupportedOp as error:
            raise trace.error(f"takes a gradient that does not exist: {error}") from error
        return [None if each is None else renamed(each) for each in gradients]


def tell_apart(trace: CodeTrace) -> None:
    """Require a capture that keeps equal tensors apart: the code takes gradients."""
    if IDENTITY not in trace.facts:
        raise NeedsConcrete(IDENTITY)


def carries_gradient(node: Node, held: Sequence[Node] = ()) -> bool:
    """Return whether a gradient passes from a node to an input, other than through `held`."""
    reached: set[Node] = set()
    for each in walk((node,)):
        if each in held or each.op is ops.STOP_GRADIENT or not is_float(each.type):
            continue
        if each.op is ops.INPUT or not reached.isdisjoint(each.operands_read):
            reached.add(each)
    return node in reached
