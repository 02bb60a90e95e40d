"""What a rule or a Function of ours states in its graph: which laws it does not mean to keep.

A law is asked all the same; what breaks one that is stated here is no finding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..functions.calls.decision import SHOWN
from ..functions.function import Function
from ..functions.recipes.examples import find_variant
from ..graph import ops
from ..graph.passes.simplify import is_elementwise
from ..look.show import captured_graph
from ..look.subject import gives_surrogate
from ..lowering.function_graph import FunctionGraph
from ..rules.in_force.activation import Activation
from ..rules.model.rule import Rule
from ..trace.derived.derivatives import is_linear

LINEAR = ("linear", "scale", "ones", "each output")


def excuse(obj: Any, law: str) -> str:
    """Return why an object does not mean to keep a law, "" where nothing of it says so."""
    try:
        graphs = _graphs_of(obj)
    except Exception:  # of the user's code, too: no graph states nothing
        return ""
    if graphs is None:
        return ""
    if graphs.is_random:  # few draws may be alike twice
        return "it draws at random, as its graph says"
    if not graphs.is_rule:
        return ""
    if law in LINEAR and not is_linear(graphs.backward, graphs.cotangents):
        return "it is not linear in the cotangent, as its graph says, and meant to differ"
    if law == "not finite" and not is_elementwise(graphs.backward):
        return "its gradient is of all elements together, as its graph says"
    if law == "second derivative" and graphs.first_order:
        return "it is registered with first_order=True: nobody differentiates it again"
    if law == "second derivative" and any(n.op is ops.STOP_GRADIENT for n in graphs.backward.nodes):
        return "it counts a number as a constant, by stop_gradient"
    return ""


def _graphs_of(obj: Any) -> FunctionGraph | None:
    """Return an object's graphs; those whose gradient is meant to differ count as rules."""
    inner = getattr(obj, "_activation", obj)  # of a module or layer
    inner = getattr(inner, "captured_form", inner)  # of what `override` returned
    if isinstance(inner, Function):
        return replace(find_variant(inner, SHOWN).graphs, is_rule=gives_surrogate(inner))
    if isinstance(inner, str | Rule):
        inner = Activation("Linear", inner)
    if isinstance(inner, Activation):
        in_force = inner.in_force()
        if in_force is not None:
            rule = in_force.specialization.rule
            backward = captured_graph(in_force.bound_rule)
            return FunctionGraph(
                rule.name, inner.forward.graph(), backward, rule.first_order, is_rule=True
            )
    return None
