"""`xg.show`: the rule IR as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .activation import Activation
from .errors import MultigradError
from .function import Function
from .ir.graph import Graph, format_graph
from .ir.record import NeedFact
from .registry import resolve
from .rule import Rule, Spec


def show(obj: str | Rule | Callable[..., Any] | Activation | Graph | Function) -> str:
    """Return the graph of a rule, an activation (also a module or layer) or a Function as text.

    Example:
        >>> print(xg.show("rectangular"))

    Raises:
        RuleError: the rule is unknown.
        TraceError: it cannot be captured.
    """
    if isinstance(obj, Graph):
        return format_graph(obj)
    if isinstance(obj, Function):
        return f"{format_graph(obj.forward)}\n\n{format_graph(obj.backward)}"
    inner = getattr(obj, "_activation", obj)  # of a module or layer
    if isinstance(inner, Activation):
        forward = format_graph(inner.forward.graph())
        own = inner.application()
        backward = format_graph(inner.forward.derivative()) if own is None else _show(own.spec)
        return f"{forward}\n\n{backward}"
    return _show(resolve(obj).spec())


def _show(spec: Spec) -> str:
    rule = spec.family.rule
    if rule.native is True:
        return f"{rule.name}: runs as it is (native=True), so it has no graph"
    try:
        return format_graph(spec.graph())
    except NeedFact as need:
        raise MultigradError(
            f"rule {rule.name!r} has one graph per {', '.join(need.facts)} of its input; "
            f"it is captured when it is first used"
        ) from need
