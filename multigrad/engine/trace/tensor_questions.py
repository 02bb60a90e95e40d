"""What code asks of a tensor besides its numbers: whether it needs a gradient, and its layout."""

from __future__ import annotations

from typing import Any

from ...core import ops
from ...core.ir.graph import walk
from ...core.ir.op import is_float
from ...core.trace.coercion import NeedsConcrete
from ...core.trace.source import SPARSE


def gradient_of(value: Any) -> bool:
    """Return whether a tensor requires a gradient; for arguments that is a fact of the capture."""
    trace, node = value.trace, value.node
    if not is_float(node.type):
        return False
    is_recorded = trace.backward.is_running or trace.kind == "function"  # a class's forward is not
    if trace.kind == "rule" or (is_recorded and node.op is not ops.INPUT):
        raise trace.error(
            "asks whether a tensor that it computed requires a gradient, which is autograd's"
        )
    if node.op is not ops.INPUT:
        return False
    name = node.attr("name")
    if trace.backward.is_running and name.startswith("grad_out"):
        raise trace.error(
            "asks whether the gradient itself requires one, which is known when it runs only"
        )
    return needs_gradient(trace, (name,))[0]


def needs_gradient(trace: Any, names: tuple[str, ...]) -> tuple[bool, ...]:
    facts = [f"gradient:{name}" for name in names]
    missing = [fact for fact in facts if fact not in trace.facts]
    if missing and not trace.facts.tell(missing):  # what was recorded so far is the same either way
        raise NeedsConcrete(*missing)
    return tuple(trace.facts[fact] for fact in facts)


def refuse_other_layouts(value: Any) -> None:
    """Refuse a question for the layout unless the arguments are dense, a fact of the capture."""
    trace = value.trace
    names = [node.attr("name") for node in walk((value.node,)) if node.op is ops.INPUT]
    # Torch alone has sparse gradients.
    if trace.kind == "imported function" and trace.backward.is_running:
        trace.omit(SPARSE)
        names = [name for name in names if not name.startswith("grad_out")]
    if trace.kind == "rule" or any(name.startswith("grad_out") for name in names):
        raise trace.error("asks for the layout of a tensor, which is known when it runs only")
    facts = [f"strided:{name}" for name in names if name != "key"]
    missing = [fact for fact in facts if fact not in trace.facts]
    if missing:
        raise NeedsConcrete(*missing)
    if not all(trace.facts[fact] in (True, None) for fact in facts):
        raise trace.error("asks for the layout of a sparse tensor, which is not captured")


def is_dense(value: Any) -> bool:
    """Return whether a tensor is contiguous. No value shows that, so that code which asks is
    recorded with both answers, which must give the same graph.
    """
    value.trace.memory.is_asked = True
    return value.trace.memory.is_dense
