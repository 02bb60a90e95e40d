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
from .rule import Rule


def show(obj: str | Rule | Callable[..., Any] | Activation | Graph | Function) -> str:
    """Return the graph of a rule, an activation or a Function as text, one operation a line.

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
    if isinstance(obj, Activation):
        forward = format_graph(obj.forward.graph())
        own = obj.application()
        if own is None:
            return f"{forward}\n\n{format_graph(obj.forward.derivative())}"
        return f"{forward}\n\n{_show_family(own.spec.family)}"
    return _show_family(resolve(obj).spec().family)


def _show_family(family: Any) -> str:
    if family.rule.native is True:
        return f"{family.rule.name}: runs as it is (native=True), so it has no graph"
    facts: dict[str, Any] = {}
    try:
        return format_graph(family.graph(True, facts))
    except NeedFact as need:
        raise MultigradError(
            f"rule {family.rule.name!r} has one graph per {', '.join(need.facts)} of its input; "
            f"it is captured when it is first used"
        ) from need
